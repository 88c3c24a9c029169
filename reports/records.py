"""What is wrong with a cell's record."""

import json
import math
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

_TEXT = (str, type(None))
_NUMBER = (int, float, type(None))
_HOLDERS = [{"holder": str, "bytes": (int, float)}]
# What the report stands on, as results.schema.json has it: types, lists of one shape, and mappings of all the keys named,
# of which those that end in `?` may be absent; "*" stands for every key.
_METRIC = {"value": _NUMBER, "predicted?": _NUMBER, "unit": str, "reason?": str}
_ARM = {
    "status": str,
    "reason?": _TEXT,
    "signal?": str,
    "metrics": {"*": _METRIC},
    "retained_by_holder?": _HOLDERS,
    "peak_by_holder?": _HOLDERS,
    "losses?": [_NUMBER],
    "samples?": {"*": [_NUMBER]},
    "noise?": [{"tensor": str, "of": str, "sqnr_db": _NUMBER, "reason?": str}],
    "notes?": [str],
    "emulated?": str,
}
_GATE = {
    "text": str,
    "arm": str,
    "metric": _TEXT,
    "pass": (bool, type(None)),
    "observed": _NUMBER,
    "limit": _NUMBER,
    "detail?": str,
}
_CLAIM = {
    "source": str,
    "words": str,
    "metric": str,
    "arm": str,
    "value": (int, float),
    "unit": str,
    "predicted?": _NUMBER,
    "measured?": _NUMBER,
    "note?": str,
}
_CELL = {
    "id": str,
    "scenario": str,
    "title": str,
    "upstream": [str],
    "axes": {"*": str},
    "ranks": int,
    "fix": _TEXT,
    "verdict": str,
    "reason": _TEXT,
    "seconds": (int, float),
    "arms": {f"{arm}?": _ARM for arm in ARMS},
    "gates": [_GATE],
    "claims": [_CLAIM],
    "measure": [str],
    "config": dict,
}


def fault_of(record: Any) -> str:
    """What is wrong with a cell's record, or nothing."""
    if not isinstance(record, dict):
        return f"a cell must be an object, and this is {json.dumps(record)[:40]}"
    fault = _misfit(record, _CELL)
    if fault:
        return fault
    if record["verdict"] not in VERDICTS:
        return f"`verdict` is `{record['verdict']}`, which this version does not know"
    unknown = next((arm for arm in record["arms"] if arm not in ARMS), None)
    if unknown is not None:
        return f"`{unknown}` names no arm"
    for arm in record["arms"].values():
        for entry in arm["metrics"].values():
            entry.setdefault("predicted", None)
    return "" if _is_finite(record) else _not_finite(record)


def _misfit(entry: Any, shape: Any, path: str = "") -> str:
    """Where `entry` is not of the shape, or nothing."""
    kind = type(shape) if isinstance(shape, (dict, list)) else shape
    if not isinstance(entry, kind):
        return f"`{path}` has the wrong type"
    if isinstance(shape, list):
        return next(filter(None, (_misfit(item, shape[0], f"{path}[{i}]") for i, item in enumerate(entry))), "")
    if not isinstance(shape, dict):
        return ""
    if "*" in shape:
        return next(filter(None, (_misfit(value, shape["*"], f"{path}.{key}") for key, value in entry.items())), "")
    for name, inner in shape.items():
        key = name.removesuffix("?")
        where = f"{path}.{key}".lstrip(".")
        if key not in entry:
            if name == key:
                return f"`{where}` is missing"
        elif fault := _misfit(entry[key], inner, where):
            return fault
    return ""


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

