"""The shapes of records that a report reads, and the check of a cell's record."""

from typing import Any

from documents import (
    FLAG,
    FLAG_OR_NULL,
    NUMBER,
    NUMBER_OR_NULL,
    PLAIN,
    SCALAR,
    TEXT,
    TEXT_OR_NULL,
    INTEGER,
    Leaf,
    described,
    misfit,
    one_of,
    step,
)

ARMS = ("before", "after", "bf16")
VERDICTS = (
    "confirmed",
    "unaffected",
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
GOOD_VERDICTS = frozenset({"confirmed", "unaffected", "pass", "skipped"})

_HOLDERS = [{"holder": TEXT, "bytes": NUMBER}]
# The part of results.schema.json on which the report depends.
_METRIC = {"value": NUMBER_OR_NULL, "predicted?": NUMBER_OR_NULL, "unit": TEXT, "reason?": TEXT_OR_NULL}
_ARM = {
    "status": TEXT,
    "reason?": TEXT_OR_NULL,
    "signal?": TEXT_OR_NULL,
    "metrics": {"*": _METRIC},
    "retained_by_holder?": _HOLDERS,
    "peak_by_holder?": _HOLDERS,
    "losses?": [NUMBER_OR_NULL],
    "validation_losses?": [{"step": INTEGER, "loss": NUMBER_OR_NULL}],
    "samples?": {"*": [NUMBER_OR_NULL]},
    "casts?": [
        {
            "tensor": TEXT,
            "steps": [NUMBER],
            "sqnr_db": [NUMBER_OR_NULL],
            "clip_fraction": [NUMBER_OR_NULL],
            "underflow_fraction": [NUMBER_OR_NULL],
        }
    ],
    "noise?": [{"tensor": TEXT, "of": TEXT, "sqnr_db": NUMBER_OR_NULL, "reason?": TEXT}],
    "notes?": [TEXT],
    "emulated?": TEXT,
}
_GATE = {
    "text": TEXT,
    "arm": TEXT,
    "metric": TEXT_OR_NULL,
    "pass": FLAG_OR_NULL,
    "observed": NUMBER_OR_NULL,
    "limit": NUMBER_OR_NULL,
    "detail?": TEXT,
    "ratio?": {"value": NUMBER, "low": NUMBER, "high": NUMBER, "pairs": INTEGER},
}
_CLAIM = {
    "source": TEXT,
    "words": TEXT,
    "metric": TEXT,
    "arm": TEXT,
    "value": NUMBER,
    "unit": TEXT,
    "predicted?": NUMBER_OR_NULL,
    "measured?": NUMBER_OR_NULL,
    "note?": TEXT,
}
# An id is part of file names, and an absolute path would leave the set's folder.
_ID = Leaf(
    "a path below the set's folder",
    lambda value: type(value) is str and value != "" and not value.startswith("/"),
)
_CELL = {
    "id": _ID,
    "scenario": TEXT,
    "title": TEXT,
    "upstream": [TEXT],
    "axes": {"*": TEXT},
    "ranks": INTEGER,
    "fix": TEXT_OR_NULL,
    "counterfactual?": FLAG_OR_NULL,
    "verdict": one_of(*VERDICTS),
    "good?": FLAG_OR_NULL,
    "undecided?": FLAG_OR_NULL,
    "reason": TEXT_OR_NULL,
    "seconds": NUMBER,
    "arms": {f"{arm}?": _ARM for arm in ARMS},
    "gates": [_GATE],
    "claims": [_CLAIM],
    "measure": [TEXT],
    "text_checksum?": TEXT_OR_NULL,
    "timelines?": {f"{arm}?": TEXT_OR_NULL for arm in ARMS},
    "config": {"*": SCALAR},
}
_FINDING = {
    "text": TEXT,
    "kind?": TEXT_OR_NULL,
    "fix?": TEXT_OR_NULL,
    "scenarios": [TEXT],
    "metric?": TEXT_OR_NULL,
    "unit?": TEXT_OR_NULL,
    "before?": NUMBER_OR_NULL,
    "after?": NUMBER_OR_NULL,
    "predicted?": NUMBER_OR_NULL,
    "shown": FLAG,
    "reason?": TEXT_OR_NULL,
    "cells": INTEGER,
    "of": INTEGER,
    "cell?": TEXT_OR_NULL,
}
# The parts of an environment that a report needs; the others are shown as they are.
_ENVIRONMENT: dict[str, Any] = {
    "program": {"git_commit?": TEXT_OR_NULL, "git_dirty?": FLAG_OR_NULL},
    "cpu": {"model?": TEXT_OR_NULL},
    "devices": {"*": SCALAR},
}


def fault_of(record: Any) -> str:
    """The message about what is wrong with a cell's record, or an empty text."""
    if not isinstance(record, dict):
        return f"a cell must be an object, and this is {described(record)}"
    fault = misfit(record, _CELL)
    if fault:
        return fault
    unknown = next((arm for arm in record["arms"] if arm not in ARMS), None)
    if unknown is not None:
        return f"`{step('arms', unknown)}` names no arm; there are {', '.join(ARMS)}"
    for arm in record["arms"].values():
        for entry in arm["metrics"].values():
            entry.setdefault("predicted", None)
    return ""


def fault_of_finding(finding: Any) -> str:
    return misfit(finding, _FINDING, "finding")


def usable_environment(environment: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The valid parts of an environment, and messages about the others."""

    def fault_in(part: str) -> str:
        path = step("environment", part)
        return misfit(environment[part], PLAIN, path) or misfit(environment[part], _ENVIRONMENT.get(part, PLAIN), path)

    faults = {part: fault_in(part) for part in environment}
    return {part: value for part, value in environment.items() if not faults[part]}, [*filter(None, faults.values())]
