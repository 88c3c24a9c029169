"""`fp8lab report` as users have it: from a real run, over bad input, and without the Python packages it needs."""

import errno
import json
import os
import pathlib
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

import sample

import files

PROGRAM = os.environ["FP8LAB_PROGRAM"]
SCENARIO = """version: 1
name: tiny
title: A tiny model
fix: release_attention_tensors
model: {layer: transformer_layer, form: gpt, layers: 2, hidden: 32, heads: 2, ffn: 64, seq: 32, batch: 2}
training: {steps: 3, optimizer: adam, recipe: delayed, fp8_attention: true, loss: mse}
matrix:
  device: [cpu, meta]
measure: [memory, parity]
expect:
  - {metric: memory.retained_bytes, arm: before, equals: predicted}
  - {metric: memory.retained_bytes, arm: after, equals: 0}
"""
# Without it the program searches for a Python, which takes longer; test_the_folder_can_be_elsewhere shows that search.
ENVIRONMENT = os.environ | {"FP8LAB_PYTHON": sys.executable}


def write_small_set(directory: pathlib.Path, **changes: Any) -> pathlib.Path:
    """Results of one figure, for tests of anything but figures."""
    cell = sample.cell()
    for arm in cell["arms"].values():
        arm["peak_by_holder"] = []
        for drawn in ("losses", "samples", "noise"):
            del arm[drawn]
    return sample.write_set(directory, [cell], **changes)


class Program(sample.Case):
    @classmethod
    def setUpClass(cls) -> None:
        cls.older = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        command = [PROGRAM, "report", write_small_set(cls.older / "good"), "--title=Older", "-o", cls.older / "report"]
        subprocess.run(command, capture_output=True, timeout=280, check=True, env=ENVIRONMENT)

    def copy_older_report(self) -> None:
        shutil.copytree(self.older / "report", self.directory / "report", dirs_exist_ok=True)

    def run_program(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        ended = subprocess.run(
            [PROGRAM, *arguments], capture_output=True, text=True, timeout=280, check=False, env=ENVIRONMENT | environment
        )
        ended.stderr = sample.without_progress(ended.stderr)
        return ended

    def report(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        return self.run_program("report", *arguments, "-o", str(self.directory / "report"), **environment)

    def markdown(self) -> str:
        return (self.directory / "report" / "report.md").read_text()

    def test_a_run_becomes_a_report(self) -> None:
        (self.directory / "tiny.yaml").write_text(SCENARIO)
        out = self.directory / "out"
        ran = self.run_program("run", str(self.directory), "-o", str(out))
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        ended = self.report(str(out), "--title=Mine", "--snapshots", "--traces", "--cells=device=cpu")
        self.assertEqual((ended.returncode, ended.stderr), (0, ""), ended.stdout)
        self.assertIn("snapshots: 3 files in", ended.stdout)
        self.assertIn("traces: 1 file in", ended.stdout)
        self.assertIn("# Mine", self.markdown())
        self.assertIn("2 confirmed", self.markdown())

        record = json.loads((out / "results.json").read_text())["cells"][0]
        before = record["arms"]["before"]
        self.assertEqual(len(before["losses"]), 3)
        by_kind = {entry["of"] for entry in before["noise"]}
        of = {"output", "gradient", "weight", "output with the same weights", "gradient with the same weights"}
        self.assertEqual(by_kind, of)

        # Snapshots repeat the ledger's account: the same peak and the same bytes at the end.
        snapshots = sorted((self.directory / "report" / "snapshots").iterdir())
        self.assertEqual([path.name.rsplit(".", 2)[1] for path in snapshots], ["after", "before", "bf16"])
        live, peak = {}, 0
        document = pickle.loads(snapshots[1].read_bytes())
        for entry in document["device_traces"][0]:
            if entry["action"] == "alloc":
                live[entry["addr"]] = entry["size"]
                peak = max(peak, sum(live.values()))
            elif entry["action"] == "free_completed":
                del live[entry["addr"]]
        self.assertEqual(peak, before["metrics"]["memory.peak_bytes"]["value"])
        end = before["metrics"]["memory.end_of_step_bytes"]["value"]
        self.assertEqual(sum(live.values()), end)
        self.assertEqual(document["segments"][0]["requested_size"], end)
        self.assertEqual(len(list((self.directory / "report" / "traces").iterdir())), 1)

    def test_a_scenario_without_a_fix_has_its_finding_and_its_memory_over_time(self) -> None:
        (self.directory / "mine.yaml").write_text(
            "version: 1\nname: mine\ntitle: My own\ndevice: cpu\n"
            "model: {layer: layernorm_mlp, hidden: 32, ffn: 64, seq: 32}\nmeasure: [memory]\n"
            "expect: [{metric: memory.retained_bytes, equals: 0}]\n"
        )
        out = self.directory / "out"
        self.assertEqual(self.run_program("run", str(self.directory / "mine.yaml"), "-o", str(out)).returncode, 0)
        (out / "results.jsonl").unlink()
        self.assertEqual(self.report(str(out)).returncode, 0)
        self.assertRegex(self.markdown(), r"\| 1 pass \| `mine` \| My own \| – \| retained bytes 0 B; peak bytes [0-9.]+ KiB")
        self.assertRegex(self.markdown(), r"### My own: mine\n")
        self.assertIn("figures/timeline-0-mine.svg", self.markdown())
        alone = self.report(str(out / "results.json"), "--snapshots", "--cells=absent")
        self.assertEqual(alone.returncode, 2)
        self.assertIn("matches no cell", alone.stderr)
        shutil.rmtree(out / "timelines")
        self.assertIn("snapshots: none, because", self.report(str(out), "--snapshots", "--cells=mine").stdout)

    def test_cells_of_long_ids_have_their_figures_and_files(self) -> None:
        # The ids differ only in their last axis, which the shortened names of files do not contain.
        axes = ["model.layers: [2]", "model.hidden: [32]", "model.heads: [2]", "model.ffn: [64]", "model.seq: [32]"]
        axes += ["model.batch: [2]", "training.steps: [3]", "training.optimizer: [adam]", "training.recipe: [delayed]"]
        axes += ["training.loss: [mse]", "training.fp8_attention: [true]", "training.learning_rate: [0.001]"]
        text = SCENARIO.replace("name: tiny", f"name: {'tiny-' * 16}").replace("matrix:", "\n  ".join(["matrix:", *axes]))
        (self.directory / "long.yaml").write_text(text)
        out = self.directory / "out"
        ran = self.run_program("run", str(self.directory), "-o", str(out))
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        ids = [cell["id"] for cell in json.loads((out / "results.json").read_text())["cells"]]
        self.assertEqual(len({cell_id[:260] for cell_id in ids}), 1, ids)
        ended = self.report(str(out), "--snapshots", "--traces", "--cells=tiny")
        self.assertEqual((ended.returncode, ended.stderr), (0, ""), ended.stdout)
        made = [path.name for path in (self.directory / "report").glob("*/*")]
        self.assertEqual(sum(name.startswith("timeline-") and name.endswith(".svg") for name in made), 1, made)
        self.assertEqual(sum(name.endswith(".pickle") for name in made), 6, made)
        self.assertEqual(len(list((self.directory / "report" / "traces").iterdir())), 2)

    def test_unreadable_files_are_named_and_the_rest_is_shown(self) -> None:
        write_small_set(self.directory / "good")
        cut = write_small_set(self.directory / "cut") / "timelines" / "leak" / "device=meta,recipe=delayed.before.json.gz"
        cut.write_bytes(cut.read_bytes()[:200])
        newer = write_small_set(self.directory / "newer", schema="fp8lab.results/9")
        ended = self.report(str(self.directory / "good"), str(self.directory / "cut"), str(newer))
        self.assertEqual(ended.returncode, 2)
        lines = ended.stderr.splitlines()
        self.assertEqual(len(lines), 2, ended.stderr)
        self.assertIn("newer/results.json: `schema`: is fp8lab.results/9, newer than", lines[0])
        self.assertIn(
            "device=meta,recipe=delayed.before.json.gz: timeline leak/device=meta,recipe=delayed, before: cannot be read", lines[1]
        )
        text = self.markdown()
        self.assertIn("## What could not be read", text)
        self.assertIn("The arm before could not be read.", text)
        self.assertIn("good", text)

    def test_no_report_is_written_of_nothing(self) -> None:
        unreadable, empty = self.directory / "results.json", sample.write_set(self.directory / "empty", [])
        unreadable.write_text("")
        cases = ((unreadable, 2, "results.json: is empty"), (empty, 5, "holds no cell that can be shown"))
        for out, code, error in cases:
            ended = self.report(str(out))
            self.assertEqual(ended.returncode, code)
            self.assertIn(error, ended.stderr)
            self.assertFalse((self.directory / "report").exists())

    def test_an_unexpected_error_is_one_line_and_not_the_exit_code_of_a_failed_gate(self) -> None:
        moved = self.directory / "moved"
        shutil.copytree(sample.ROOT / "reports", moved, ignore=shutil.ignore_patterns("__pycache__"))
        (moved / "load.py").write_text("raise KeyError('x\\x1b')\n", encoding="utf-8")
        write_small_set(self.directory / "good")
        for debug, lines in (("", 1), ("1", 2)):
            ended = self.report(str(self.directory / "good"), FP8LAB_REPORTS=str(moved), FP8LAB_DEBUG=debug)
            self.assertEqual(ended.returncode, 2)
            self.assertIn("fp8lab: error: internal error: KeyError: ", ended.stderr.splitlines()[-1])
            self.assertEqual("Traceback" in ended.stderr, debug == "1")
            self.assertGreaterEqual(len(ended.stderr.splitlines()), lines)

    def test_the_picture_of_readme_is_drawn_from_its_example(self) -> None:
        readme = (sample.ROOT / "README.md").read_text(encoding="utf-8")
        scenario = self.directory / "leak.yaml"
        scenario.write_text(readme.partition("```yaml\n")[2].partition("```")[0], encoding="utf-8")
        subprocess.run([PROGRAM, "run", scenario, "-o", self.directory / "out"], capture_output=True, timeout=280, check=True)
        self.assertEqual(self.report(str(self.directory / "out")).returncode, 0)
        drawn = next((self.directory / "report/figures").glob("timeline-0-leak-*.svg"))
        kept = sample.ROOT / "reports/pictures/timeline.svg"
        stale = f"{kept} is stale: run README's example, draw its report, and copy {drawn.name}"
        self.assertEqual(drawn.read_bytes(), kept.read_bytes(), stale)

    def test_missing_packages_are_named_with_the_command_that_installs_them(self) -> None:
        write_small_set(self.directory / "good")
        bare = self.directory / "python"
        bare.write_text("#!/bin/sh\nexit 1\n")
        bare.chmod(0o755)
        for python in (str(bare), str(self.directory / "none")):
            ended = self.report(str(self.directory / "good"), FP8LAB_PYTHON=python)
            self.assertEqual(ended.returncode, 2)
            self.assertIn("apt-get install python3-matplotlib python3-jinja2 python3-fastjsonschema", ended.stderr)
            self.assertIn("FP8LAB_PYTHON", ended.stderr)

    def test_the_folder_can_be_elsewhere(self) -> None:
        write_small_set(self.directory / "good")
        moved = self.directory / "moved"
        shutil.copytree(sample.ROOT / "reports", moved, ignore=shutil.ignore_patterns("__pycache__"))
        ended = self.report(str(self.directory / "good"), FP8LAB_REPORTS=str(moved), FP8LAB_PYTHON="")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        ended = self.report(str(self.directory / "good"), FP8LAB_REPORTS=str(self.directory))
        self.assertEqual(ended.returncode, 2)
        self.assertIn("does not hold the report's program (__main__.py)", ended.stderr)

    def test_usage_is_checked_before_anything_is_read(self) -> None:
        self.assertEqual(self.run_program("report", "-o", "x").returncode, 2)
        self.assertEqual(self.run_program("report", "out").returncode, 2)
        ended = self.report(str(self.directory), "--cells=(")
        self.assertEqual(ended.returncode, 2)
        self.assertIn("is not a regular expression", ended.stderr)

    def test_cells_that_match_nothing_are_reported(self) -> None:
        write_small_set(self.directory / "good")
        ended = self.report(str(self.directory / "good"), "--traces", "--cells=nothing")
        self.assertEqual(ended.returncode, 2)
        self.assertIn("--cells: `nothing` matches no cell; no snapshots or traces were written", ended.stderr)
        self.assertIn("good", self.markdown())

    def written(self) -> dict[str, bytes]:
        """Every file and directory in the report's place."""
        paths = [self.directory / "report", *self.directory.glob("report/**/*")]
        return {str(path): path.read_bytes() if path.is_file() else b"" for path in paths if path.exists()}

    def test_a_full_disk_is_one_line_and_leaves_an_older_report_as_it_was(self) -> None:
        # A limit of the file size acts as a full disk; this one lies between the sizes of report.md and of report.html.
        def shrink() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

        out = str(write_small_set(self.directory / "good"))
        command = [PROGRAM, "report", out, "--traces", "-o", str(self.directory / "report")]
        for older in (False, True):
            if older:
                self.copy_older_report()
            before = self.written()
            ended = subprocess.run(
                command, capture_output=True, text=True, timeout=280, check=False, env=ENVIRONMENT, preexec_fn=shrink
            )
            self.assertEqual((ended.returncode, ended.stdout), (2, ""))
            self.assertRegex(
                sample.without_progress(ended.stderr),
                r"\Afp8lab: error: \S+/report/report\.html: cannot be written: File too large; "
                r"make room, or give a directory on another disk with -o\n\Z",
            )
            self.assertEqual(self.written(), before)

    def test_a_file_that_no_report_made_is_not_replaced(self) -> None:
        out = str(write_small_set(self.directory / "good"))
        for name in ("report.html", "report.md", "report.pdf"):
            (self.directory / "report").mkdir(exist_ok=True)
            mine = self.directory / "report" / name
            mine.write_text("mine")
            ended = self.report(out)
            self.assertEqual(ended.returncode, 2)
            self.assertRegex(
                ended.stderr,
                rf"\Afp8lab: error: \S+/{name}: exists, and no report made it; move it, or give another directory with -o\n\Z",
            )
            self.assertEqual(mine.read_text(), "mine")
            mine.unlink()
        self.copy_older_report()
        self.assertIn("# Older", self.markdown())
        self.assertEqual(self.report(out).returncode, 0, "an earlier report is replaced")
        self.assertNotIn("Older", self.markdown())

    def test_the_remedy_fits_the_error(self) -> None:
        for number, remedy in (
            (errno.EACCES, "give another directory with -o, in which files may be made"),
            (errno.EROFS, "give another directory with -o, in which files may be made"),
            (errno.ENOSPC, "make room, or give a directory on another disk with -o"),
            (errno.ENOTDIR, "something else of that name is in the way; move it, or give another directory with -o"),
            (errno.EIO, "give another directory with -o"),
        ):
            message = f"out: cannot be written: {os.strerror(number)}; {remedy}"
            with self.subTest(message), self.assertRaises(files.Unwritable) as raised:
                with files._named_on_error(pathlib.Path("out")):
                    raise OSError(number, os.strerror(number))
            self.assertEqual(str(raised.exception), message)

    def test_an_output_that_cannot_be_a_directory_is_named(self) -> None:
        out = str(write_small_set(self.directory / "good"))
        (self.directory / "report").write_text("mine")
        ended = self.report(out)
        self.assertEqual(ended.returncode, 2)
        self.assertRegex(ended.stderr, r"\Afp8lab: error: \S+/report: cannot be written: File exists; something else of that name .*\n\Z")
        self.assertEqual((self.directory / "report").read_text(), "mine")

    def test_an_interrupt_is_one_line_and_leaves_an_older_report_as_it_was(self) -> None:
        def importing(pid: int) -> bool:
            return "numpy" in pathlib.Path(f"/proc/{pid}/maps").read_text()

        def painting(pid: int) -> bool:
            children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            return importing(pid) and len(children) > 0

        def drawing(_: int) -> bool:
            return (self.directory / "report" / "report.md.part").exists()

        out = str(sample.write_set(self.directory / "good", [sample.cell()]))
        for older in (False, True):
            if older:
                self.copy_older_report()
            for moment in (importing, painting, drawing):
                with self.subTest(older=older, moment=moment.__name__):
                    self.interrupt([out, "--snapshots"], moment)

    def test_an_interrupt_as_soon_as_a_directory_is_there_leaves_none(self) -> None:
        make = pathlib.Path.mkdir

        def interrupted(path: pathlib.Path, *arguments: Any, **words: Any) -> None:
            make(path, *arguments, **words)
            if path.name == "snapshots":
                raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt), mock.patch.object(pathlib.Path, "mkdir", interrupted):
            with files.Files() as out:
                out.make_directory(self.directory / "report" / "snapshots")
        self.assertFalse((self.directory / "report").exists())

    def test_links_in_the_folder_of_a_report_are_not_followed(self) -> None:
        victim, folder = self.directory / "victim", self.directory / "report"
        folder.mkdir()
        victim.write_text("precious")
        (folder / "page.part").symlink_to(victim)
        (folder / "page.txt").symlink_to(victim)
        with self.assertRaisesRegex(files.Unwritable, "something else of that name"), files.Files() as out:
            out.write(folder / "page", "new")
        with files.Files() as out:
            out.write(folder / "page.txt", "new")
        self.assertEqual(victim.read_text(), "precious")
        self.assertEqual((folder / "page.txt").read_text(), "new")

    def interrupt(self, arguments: list[str], moment: Callable[[int], bool]) -> None:
        """Sends the signal as a terminal does, to the workers too."""
        before = self.written()
        command = [PROGRAM, "report", *arguments, "-o", str(self.directory / "report")]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, start_new_session=True, env=ENVIRONMENT, **pipes) as process:
            while process.poll() is None and not moment(process.pid):
                time.sleep(0.002)
            try:
                for _ in range(2):  # as the impatient do
                    if process.poll() is None:
                        os.killpg(process.pid, signal.SIGINT)
                        time.sleep(0.05)
                stdout, stderr = process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        self.assertEqual((process.returncode, stdout, sample.without_progress(stderr)), (130, "", "fp8lab: error: interrupted\n"))
        self.assertEqual(self.written(), before)

    def test_standard_output_that_is_full_is_named(self) -> None:
        out = str(write_small_set(self.directory / "good"))
        with open("/dev/full", "w", encoding="utf-8") as full:
            ended = subprocess.run(
                [PROGRAM, "report", out, "-o", str(self.directory / "report")],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                timeout=280,
                check=False,
                env=ENVIRONMENT,
            )
        self.assertEqual(ended.returncode, 2)
        self.assertRegex(sample.without_progress(ended.stderr), r"\Afp8lab: error: standard output cannot be written.*\n\Z")
        self.assertIn("good", self.markdown())

    def test_without_a_browser_there_is_no_pdf_and_a_line_says_so(self) -> None:
        out = str(write_small_set(self.directory / "good"))
        self.copy_older_report()
        (self.directory / "bin").mkdir()
        ended = self.report(out, PATH=str(self.directory / "bin"))
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))
        self.assertIn("report.pdf: none; a PDF needs Chromium or Chrome", ended.stdout)
        self.assertFalse((self.directory / "report" / "report.pdf").exists(), "the older report's is removed")
        self.assertTrue((self.directory / "report" / "report.html").exists())

    def test_help_says_what_files_are_for(self) -> None:
        self.assertIn("PyTorch's memory viewer", self.run_program("report", "--help").stdout)


if __name__ == "__main__":
    unittest.main()
