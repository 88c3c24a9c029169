"""Parity with BF16: the arm and its BF16 twin leave their values in files, and the program scores them."""

import json
import os
import pathlib
import subprocess

from .. import cells, rank, ranks
from . import twin_rules

SCORE = "__score"  # the program's hidden command


def _train(cell, folder, has_twin=False):
    folder.mkdir()

    def one(number, ranks_folder):
        return rank.train(cell, "parity", number, ranks_folder, folder, has_twin)

    return ranks.run(one, cell["ranks"])[0]


def _same_after(cell):
    """The cell as the after arm runs it, for the comparison of both; None if that needs another version."""
    if cell.arm != "before" or cell.control == "none":
        return None
    return cell.changed(arm="after")


def _about(cell):
    """What the program needs to score the values."""
    return {
        "ranks": cell["ranks"],
        "sharded": cell.sharded,
        "has_ranks": cell.has_ranks,
        "shards": cell.mesh[1] if cell.sharded else 1,
        "micro_batches": cell["training.micro_batches"],
        "in_f32": cell["training.param_dtype"] == "f32",
        "reduced_in_f32": cell.get("reduce_dtype", cell["training.param_dtype"]) == "f32",
        "sums_loss": cell["training.loss"] == "sum",
        "has_equal_bits": twin_rules.has_equal_bits(cell),
        "why_not_joined": twin_rules.why_not_joined(cell),
    }


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
        first = _train(cell, folder / "arm", has_twin=True)
        if cell.arm == cells.BF16:
            (folder / "bf16").symlink_to(folder / "arm")
        else:
            _train(cell.changed(arm=cells.BF16), folder / "bf16")
        after = _same_after(cell)
        if after is not None:
            _train(after, folder / "after")
        (folder / "cell.json").write_text(json.dumps(_about(cell)))
        scored = score(folder)
        return scored | {"notes": first["notes"] + scored.get("notes", [])}
