"""Parity with BF16: the arm and its BF16 twin leave their values in files, and the program scores them."""

import json
import os
import pathlib
import subprocess

from .. import cells, rank, ranks

SCORE = "__score"  # the program's hidden command


def _train(cell, folder):
    folder.mkdir()

    def one(number, ranks_folder):
        return rank.train(cell, "parity", number, ranks_folder, folder)

    return ranks.run(one, cell["ranks"])[0]


def _same_after(cell):
    """The cell as the after arm runs it, for the comparison of both; None if that needs another version."""
    if cell.arm != "before" or cell.control == "none":
        return None
    return cells.Cell("after", cell.config, cell.measure, cell.timeout_s)


def score(folder):
    program = os.environ.get("FP8LAB_PROGRAM", "fp8lab")
    done = subprocess.run([program, SCORE, str(folder)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ranks.Failure(f"{program} {SCORE} failed: {done.stderr.strip()}")
    return json.loads(done.stdout)


def measure(cell):
    """Metrics, losses, noise by tensor and notes."""
    with ranks.temporary_folder("fp8lab-values-") as temporary:
        folder = pathlib.Path(temporary)
        first = _train(cell, folder / "arm")
        if cell.arm == cells.BF16:
            (folder / "bf16").symlink_to(folder / "arm")
        else:
            _train(cells.Cell(cells.BF16, cell.config, cell.measure, cell.timeout_s), folder / "bf16")
        after = _same_after(cell)
        if after is not None:
            _train(after, folder / "after")
        (folder / "cell.json").write_text(json.dumps({"ranks": cell["ranks"], "sharded": cell.sharded}))
        return score(folder) | {"notes": first["notes"]}
