"""Small result sets for tests, written as `fp8lab run` writes them, and the report's modules."""

import copy
import gzip
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "reports"))
# As `fp8lab report` sets it.
os.environ["FP8LAB_RESULTS_SCHEMA"] = subprocess.run(
    [os.environ["FP8LAB_PROGRAM"], "schema", "results"], capture_output=True, text=True, check=True
).stdout

MIB = 2**20
ENVIRONMENT: dict[str, Any] = {
    "program": {
        "version": "0.1.0",
        "git_commit": "0123456789abcdef0123",
        "git_dirty": False,
        "compiler": "GNU 12",
        "flags": "",
        "build_type": "Release",
    },
    "libraries": {},
    "host": {"name": "host", "memory_bytes": 8 * 2**30},
    "cpu": {"model": "A CPU", "cores": 2},
    "devices": {"cpu": "inner loops for avx2", "meta": "", "cuda": "unavailable: built without the CUDA Toolkit"},
    "variables": {},
}


def metric(value: float | None, predicted: float | None = None, unit: str = "B", reason: str = "") -> dict[str, Any]:
    return {"value": value, "predicted": predicted, "unit": unit, **({"reason": reason} if reason else {})}


def arm(retained: int, recipe_gap: float) -> dict[str, Any]:
    return {
        "status": "ok",
        "reason": None,
        "seconds": 0.1,
        "metrics": {
            "memory.peak_bytes": metric(9 * MIB + retained, 9 * MIB + retained),
            "memory.retained_bytes": metric(retained, retained),
            "memory.unexplained_bytes": metric(0),
            "traffic.all_gather_bytes": metric(6 * MIB),
            "traffic.all_gather_payload_bytes": metric(5 * MIB),
            "traffic.all_gather_scale_bytes": metric(MIB),
            "traffic.reduce_scatter_bytes": metric(2 * MIB),
            "traffic.all_reduce_bytes": metric(None, None, "B", "nothing is replicated"),
            "traffic.collectives": metric(4, None, "1"),
            "host.pre_forward_ns": metric(1500, None, "ns"),
            "host.pre_forward_allocations": metric(8, 8, "1"),
            "host.pre_forward_quantizer_copies": metric(8, 8, "1"),
            "parity.loss_gap": metric(recipe_gap, None, "1"),
            "parity.output_sqnr_db": metric(31.5, None, "dB"),
        },
        "retained_by_holder": [{"holder": "context of layers[0].attention: q", "bytes": retained}] if retained else [],
        "peak_by_holder": [
            {"holder": f"{kind} of layers[*].weight", "bytes": 3 * MIB} for kind in ("parameter", "gradient", "optimizer state")
        ],
        "sequence_hash": "0011223344556677",
        "losses": [2.0, 1.5 + recipe_gap, 1.25 + recipe_gap],
        "samples": {"host.pre_forward_ns": [900, 1500, 9000]},
        "noise": [
            {"tensor": "output", "of": "output", "sqnr_db": 31.5},
            {"tensor": "w", "of": "gradient", "sqnr_db": 28 + recipe_gap},
            {"tensor": "w", "of": "weight", "sqnr_db": None, "reason": "equal to BF16 bit for bit: no noise"},
        ],
    }


def cell(
    scenario: str = "leak",
    recipe: str = "delayed",
    fix: str | None = "release_attention_tensors",
    device: str = "meta",
    gap: float = 0.01,
) -> dict[str, Any]:
    arms = {"after": arm(0, gap), "bf16": arm(0, 0.0)}
    if fix:
        arms["before"] = arm(3 * MIB, gap + 0.01)
    return {
        "id": f"{scenario}/device={device},recipe={recipe}",
        "scenario": scenario,
        "file": "s.yaml",
        "title": "Tensors <stay> & | leak",
        "upstream": ["TransformerEngine#1935"],
        "axes": {"device": device, "recipe": recipe},
        "ranks": 1,
        "fix": fix,
        "verdict": "confirmed" if fix else "pass",
        "reason": None,
        "seconds": 0.25,
        "arms": arms,
        "gates": [
            {
                "text": "before memory.retained_bytes equals predicted",
                "arm": "before",
                "metric": "memory.retained_bytes",
                "pass": True,
                "observed": 3 * MIB,
                "limit": 3 * MIB,
            }
        ],
        "claims": (
            [
                {
                    "source": "TransformerEngine#1935",
                    "words": "3 MiB leak",
                    "metric": "memory.retained_bytes",
                    "arm": "difference",
                    "value": 3,
                    "unit": "MiB",
                    "predicted": 3 * MIB,
                    "measured": 3 * MIB,
                }
            ]
            if fix
            else []
        ),
        "measure": ["memory"],
        "config": {"device": device, "arch": "hopper", "training.recipe": recipe},
        "hash": "0011223344556677",
    }


def finding(record: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """What `fp8lab run` records of the defect that a cell shows."""
    return {
        "text": "3.00 MiB retained after backward -> 0",
        "fix": record["fix"],
        "scenarios": [record["scenario"]],
        "metric": "memory.retained_bytes",
        "unit": "B",
        "before": 3 * MIB,
        "after": 0,
        "predicted": 3 * MIB,
        "effect": 3 * MIB,
        "kind": "bytes",
        "shown": True,
        "reason": None,
        "cells": 1,
        "of": 2,
        "cell": record["id"],
    } | changes


def timeline(retained: bool) -> dict[str, Any]:
    """A parameter that stays, a saved tensor that moves to another holder, and the end of a step."""
    size = MIB
    events: list[list[Any]] = [
        [9 * size, 9 * size, 9 * size, 1, "setup", 0],
        [3 * size, 3 * size, 12 * size, 3, "forward", 0],
        [0, 3 * size, 12 * size, 2, "backward", 0, 3],
        [size, size, 13 * size, 0, "backward", 0],
        [-size, size, 12 * size, 0, "backward", 0],
    ]
    if not retained:
        events.append([-3 * size, 3 * size, 9 * size, 2, "backward", 0])
    held = 3 * size if retained else 0
    return {
        "schema": "fp8lab.timeline/1",
        "holders": [
            {"kind": "workspace", "owner": "", "what": ""},
            {"kind": "parameter", "owner": "layers[0].weight", "what": ""},
            {"kind": "context", "owner": "layers[0].attention", "what": "q"},
            {"kind": "saved slot", "owner": "layers[0].attention", "what": "q"},
        ],
        "marks": [
            {"name": "end_of_forward", "live_bytes": 12 * size, "retained_bytes": 3 * size, "event": 2},
            {"name": "end_of_backward", "live_bytes": 9 * size + held, "retained_bytes": held, "event": len(events)},
        ],
        "events": events,
    }


def cells() -> list[dict[str, Any]]:
    return [
        cell(),
        cell(recipe="mxfp8", gap=0.02),
        cell("parity", fix=None, device="cpu"),
        cell("parity", "mxfp8", fix=None, device="cpu", gap=0.03),
    ]


def document(records: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    return {
        "schema": "fp8lab.results/1",
        "complete": True,
        "environment": copy.deepcopy(ENVIRONMENT),
        "cells": records,
    } | changes


def write_set(directory: pathlib.Path, records: list[dict[str, Any]] | None = None, **changes: Any) -> pathlib.Path:
    records = cells() if records is None else records
    directory.mkdir(parents=True, exist_ok=True)
    for record in records:
        record["timelines"] = {name: f"timelines/{record['id']}.{name}.json.gz" for name in record.get("arms", {})}
        for name, file in record["timelines"].items():
            path = directory / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(gzip.compress(json.dumps(timeline(name == "before")).encode(), compresslevel=1, mtime=0))
    (directory / "results.json").write_text(json.dumps(document(records, **changes)), encoding="utf-8")
    return directory


def benchmark(name: str, milliseconds: float, **counters: float) -> dict[str, Any]:
    return {
        "name": name,
        "run_name": name,
        "run_type": "iteration",
        "repetitions": 1,
        "iterations": 10,
        "real_time": milliseconds,
        "cpu_time": milliseconds,
        "time_unit": "ms",
        **counters,
    }


def write_benchmarks(path: pathlib.Path, rows: list[dict[str, Any]]) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"context": {"num_cpus": 2}, "benchmarks": rows}), encoding="utf-8")
    return path


def without_progress(stderr: str) -> str:
    """Standard error without the lines that a slow machine has."""
    return "".join(line for line in stderr.splitlines(keepends=True) if not line.startswith("report: "))


class Case(unittest.TestCase):
    """A test with a temporary directory of its own."""

    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.directory = pathlib.Path(temporary.name)
