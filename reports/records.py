"""Records that a report reads, and their check against the schema of results that the program publishes."""

import json
import os
from typing import Any

import shape
from documents import described

# `fp8lab report` puts the text of `fp8lab schema results` there.
SCHEMA_VARIABLE = "FP8LAB_RESULTS_SCHEMA"
if SCHEMA_VARIABLE not in os.environ:
    raise SystemExit(f"fp8lab report: {SCHEMA_VARIABLE} is not set; run `fp8lab report`, which sets it to the schema of results")
_SCHEMA = json.loads(os.environ[SCHEMA_VARIABLE])
_CELL, _FINDING = _SCHEMA["$defs"]["cell"], _SCHEMA["$defs"]["finding"]
_CELL["required"].remove("good")  # an older fp8lab wrote none
_CELL_SHAPE, _FINDING_SHAPE = (shape.Shape(one, _SCHEMA["$defs"]) for one in (_CELL, _FINDING))
_ENVIRONMENT = {part: shape.Shape(one) for part, one in _SCHEMA["properties"]["environment"]["properties"].items()}

ARMS = tuple(_CELL["properties"]["arms"]["properties"])
VERDICTS = tuple(_CELL["properties"]["verdict"]["enum"])
GOOD_VERDICTS = frozenset({"confirmed", "unaffected", "pass", "skipped"})  # if a record lacks `good`


def fault_of(record: Any) -> str:
    """The message about what is wrong with a cell's record, or an empty text."""
    if not isinstance(record, dict):
        return f"a cell must be an object, and this is {described(record)}"
    if fault := _CELL_SHAPE.fault(record):
        return fault
    if unknown := next((arm for arm in record["arms"] if arm not in ARMS), None):
        return f"`{shape.step('arms', unknown)}` names no arm; there are {', '.join(ARMS)}"
    return ""


def fault_of_finding(finding: Any) -> str:
    return _FINDING_SHAPE.fault(finding, "finding")


def usable_environment(environment: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The valid parts of an environment, and messages about the others."""

    def fault_in(part: str) -> str:
        path, value = shape.step("environment", part), environment[part]
        wrong = shape.plain_fault(value, path)
        return _ENVIRONMENT[part].fault(value, path) if not wrong and part in _ENVIRONMENT else wrong

    faults = {part: fault_in(part) for part in environment}
    return {part: value for part, value in environment.items() if not faults[part]}, [*filter(None, faults.values())]
