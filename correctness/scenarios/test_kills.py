"""Processes of runs are killed at random moments (SIGKILL), and no run hangs, leaves an orphan, loses a finished cell
or spoils a file.

FP8LAB_PROGRAM and FP8LAB_LAUNCHER (launch_ranks) name the programs. FP8LAB_KILLS is the number of kills, by default a
few; FP8LAB_SEED makes them the kills of another run.
"""

import json
import os
import pathlib
import random
import signal
import subprocess
import tempfile
import time
import unittest

PROGRAM, LAUNCHER = os.environ["FP8LAB_PROGRAM"], os.environ["FP8LAB_LAUNCHER"]
KILLS = int(os.environ.get("FP8LAB_KILLS", "24"))
SEED = int(os.environ.get("FP8LAB_SEED", "1"))
LIMIT = 10  # seconds that an arm may take: more than it needs on a busy machine
TIMEOUT = 60.0  # seconds that a run may take
RANKS = 2

LOCAL = """version: 1
name: local
title: Small cells
model: {layer: linear, hidden: 64, seq: 32}
training: {steps: 3, optimizer: adam, recipe: delayed}
matrix:
  device: [meta, cpu]
  seed: [1, 2, 3, 4, 5]
measure: [memory]
expect:
  - {metric: memory.retained_bytes, equals: 0}
"""
LAUNCHED = LOCAL.replace("local", "launched").replace("[meta, cpu]", f"[cpu]\n  ranks: [{RANKS}]")


def parents() -> dict[int, int]:
    """By process, of those that are not dead already."""
    out = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, parent = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state not in "ZX":
            out[int(entry.name)] = int(parent)
    return out


def descendants(pid: int) -> list[int]:
    parent_of = parents()
    found: list[int] = []
    level = [pid]
    while level:
        level = [child for child, parent in parent_of.items() if parent in level]
        found += level
    return found


def marked(mark: str) -> list[int]:
    """Processes that were started with `mark` in their environment, whatever their parent is now."""
    out = []
    for pid in parents():
        try:
            if mark.encode() in pathlib.Path(f"/proc/{pid}/environ").read_bytes():
                out.append(pid)
        except OSError:
            continue
    return out


class Kills(unittest.TestCase):
    def setUp(self) -> None:
        self.random = random.Random(f"{SEED} {self.id()}")
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.here = pathlib.Path(self.directory.name)
        self.out = self.here / "out"
        self.mark = f"{os.getpid()} {self.id()} {time.time_ns()}"
        self.kills = self.hits = 0
        self.latest = 0.15  # seconds after which no process is killed

    def start(self, scenario: str, *launcher: str) -> subprocess.Popen[str]:
        file = self.here / "scenario.yaml"
        file.write_text(scenario, encoding="utf-8")
        (self.out / "environment.json").unlink(missing_ok=True)
        options = ["-o", str(self.out), "-j", "3", "--timeout", str(LIMIT), "--resume"]
        command = [*launcher, PROGRAM, "run", str(file), *options]
        environment = {**os.environ, "FP8LAB_MARK": self.mark}
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)

    def kill_one(self, run: subprocess.Popen[str], itself: bool, ranks: bool) -> None:
        """Kills the run or one of its descendants at a random moment; ranks once they have connected."""
        while ranks and run.poll() is None and not (self.out / "environment.json").exists():
            time.sleep(0.001)
        time.sleep(self.random.uniform(0.0, self.latest))
        self.kills += 1
        below = [] if itself else descendants(run.pid)
        chosen = self.random.choice([run.pid] if itself else below or [0])
        if chosen and run.poll() is None:
            try:
                os.kill(chosen, signal.SIGKILL)
                self.hits += 1
            except ProcessLookupError:
                pass

    def finish(self, run: subprocess.Popen[str]) -> tuple[int, str]:
        """The output of a run, which must not hang."""
        try:
            text, _ = run.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            for pid in [run.pid, *descendants(run.pid)]:
                os.kill(pid, signal.SIGKILL)
            self.fail(f"after kill {self.kills} the run hangs: {run.communicate()[0]}")
        return run.returncode, text

    def expect_no_orphan(self) -> None:
        give_up = time.monotonic() + 20
        while (left := marked(self.mark)) and time.monotonic() < give_up:
            time.sleep(0.005)
        self.assertEqual(left, [], f"orphans after kill {self.kills}")

    def finished_cells(self) -> dict[str, str]:
        """Verdicts by id. Every line can be read, unless it is the last and was cut off, and every other file. A complete
        run leaves its cells in results.json only."""
        lines = self.out / "results.jsonl"
        text = lines.read_text(encoding="utf-8") if lines.exists() else ""
        records = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        documents = {file: json.loads(file.read_text(encoding="utf-8")) for file in self.out.rglob("*.json")}
        records += documents.get(self.out / "results.json", {}).get("cells", [])
        return {record["id"]: record["verdict"] for record in records}

    def run_until_all_pass(self, cells: int, scenario: str, *launcher: str) -> None:
        for _ in range(5):
            code, text = self.finish(self.start(scenario, *launcher))
            if code == 0:
                break
        self.assertEqual(code, 0, text)
        found = json.loads((self.out / "results.json").read_text(encoding="utf-8"))
        self.assertTrue(found["complete"])
        self.assertEqual([cell["verdict"] for cell in found["cells"]], ["pass"] * cells)
        for file in sorted(self.out.rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()

    def kill_runs(self, cells: int, scenario: str, *launcher: str, of_itself: float) -> None:
        # Kills later than half of an undisturbed run seldom find one alive: resumed runs have fewer cells.
        began = time.monotonic()
        self.run_until_all_pass(cells, scenario, *launcher)
        self.latest = min(self.latest, (time.monotonic() - began) / 2)
        known: dict[str, str] = {}
        while self.kills < KILLS // 2:
            run = self.start(scenario, *launcher)
            self.kill_one(run, self.random.random() < of_itself, bool(launcher))
            code, text = self.finish(run)
            self.expect_no_orphan()
            self.assertIn(code, (0, 4, -signal.SIGKILL, 128 + signal.SIGKILL), f"kill {self.kills}: {text}")
            now = self.finished_cells()
            self.assertLessEqual(known.keys(), now.keys(), f"kill {self.kills} lost cells")
            self.assertLessEqual(set(now.values()), {"pass", "crashed"})
            known = now
            if sum(verdict == "pass" for verdict in now.values()) == cells:
                self.run_until_all_pass(cells, scenario, *launcher)
                known = {}
        self.run_until_all_pass(cells, scenario, *launcher)
        self.assertGreater(self.hits, self.kills // 4, "too few kills met a process")
        print(f"{self.id()}: {self.kills} kills, {self.hits} of which met a process")

    def test_runners_and_arms(self) -> None:
        self.kill_runs(10, LOCAL, of_itself=0.5)

    def test_launched_ranks(self) -> None:
        self.kill_runs(5, LAUNCHED, LAUNCHER, str(RANKS), str(int(TIMEOUT) - 5), of_itself=0.0)


if __name__ == "__main__":
    unittest.main()
