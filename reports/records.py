"""What is wrong with a cell's record."""

import json
import math
from collections.abc import Iterator
from typing import Any

ARMS = ("before", "after", "bf16")
VERDICTS = (
    "confirmed",
    "not_reproduced",
    "not_fixed",
    "regressed",
    "pass",
    "fail",
    "inconclusive",
    "skipped",
    "crashed",
    "timeout",
)
GOOD_VERDICTS = frozenset({"confirmed", "pass", "skipped"})

# What a cell must have for the report to stand on it, and of which type.
_CELL_KEYS: dict[str, type | tuple[type, ...]] = {
    "id": str,
    "scenario": str,
    "title": str,
    "upstream": list,
    "axes": dict,
    "ranks": int,
    "fix": (str, type(None)),
    "verdict": str,
    "reason": (str, type(None)),
    "seconds": (int, float),
    "arms": dict,
    "gates": list,
    "claims": list,
    "measure": list,
    "config": dict,
}
_NUMBER = (int, float, type(None))


def fault_of(record: Any) -> str:
    """What is wrong with a cell's record, or nothing."""
    if not isinstance(record, dict):
        return f"a cell must be an object, and this is {json.dumps(record)[:40]}"
    for key, kind in _CELL_KEYS.items():
        if key not in record:
            return f"`{key}` is missing"
        if not isinstance(record[key], kind):
            return f"`{key}` has the wrong type"
    if record["verdict"] not in VERDICTS:
        return f"`verdict` is `{record['verdict']}`, which this version does not know"
    return next(_faults_within(record), "") or ("" if _is_finite(record) else _not_finite(record))


def _is_finite(record: dict[str, Any]) -> bool:
    """Asked first: the encoder, which is not Python, is many times faster than the search for the place."""
    try:
        json.dumps(record, allow_nan=False)
    except ValueError:
        return False
    return True


def _not_finite(entry: Any, path: str = "") -> str:
    """JSON has no NaN, but Python reads and some programs write it."""
    if isinstance(entry, float) and not math.isfinite(entry):
        return f"`{path}` is {entry}, which is no figure"
    if isinstance(entry, dict):
        return next(filter(None, (_not_finite(value, f"{path}.{key}".lstrip(".")) for key, value in entry.items())), "")
    if isinstance(entry, list):
        return next(filter(None, (_not_finite(value, f"{path}[{i}]") for i, value in enumerate(entry))), "")
    return ""


def _faults_within(record: dict[str, Any]) -> Iterator[str]:
    for name, arm in record["arms"].items():
        if name not in ARMS:
            yield f"`{name}` names no arm"
        elif not isinstance(arm, dict) or not isinstance(arm.get("metrics"), dict) or not isinstance(arm.get("status"), str):
            yield f"arm {name} has no status or no metrics"
        else:
            for metric, entry in arm["metrics"].items():
                if (
                    not isinstance(entry, dict)
                    or not isinstance(entry.get("unit"), str)
                    or "value" not in entry
                    or not isinstance(entry["value"], _NUMBER)
                    or not isinstance(entry.get("predicted"), _NUMBER)
                ):
                    yield f"arm {name}: metric `{metric}` is malformed"
                else:
                    entry.setdefault("predicted", None)
    for gate in record["gates"]:
        if not isinstance(gate, dict) or not {"text", "arm", "metric", "pass", "observed", "limit"} <= gate.keys():
            yield "a gate is malformed"
    for claim in record["claims"]:
        if not isinstance(claim, dict) or not {"source", "words", "metric", "arm", "value", "unit"} <= claim.keys():
            yield "a claim is malformed"
