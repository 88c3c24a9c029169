"""The reviewed file of changes that a comparison accepts, each until a date and for a reason.

[[accept]]
cells = "attention.*device=cpu"   # regular expression on the ids of cells
metric = "memory.peak_bytes"
at_most = 1048576                 # of the newer run, in the metric's unit; at_least where more is better
expires = 2027-03-31              # the last day on which it counts
why = "#123: the cache is kept over two steps"

[[accept]]
cells = "^old_scenario/"
kind = "vanished"                 # in place of a metric and its limit: any change of this kind; KINDS lists them
expires = 2027-03-31
why = "#124: the scenario is removed"

[[accept]]
cells = "^mixtral/"
kind = "redefined"                # no regression, but a warning until it is accepted, as is "gates"
expires = 2027-03-31
why = "#125: 8 experts instead of 4"
"""

import dataclasses
import datetime
import math
import re
import tomllib

KEYS = {"cells": str, "metric": str, "at_most": (int, float), "at_least": (int, float), "kind": str, "expires": datetime.date,
        "why": str}
# Of the changes that `fp8lab compare --json` reports, those that have no limit.
KINDS = ("vanished", "verdict", "arm", "no_figure", "redefined", "gates")
REVIEWED = ("redefined", "gates")  # no regressions: ci/matrix warns of those that are not accepted


class AcceptError(Exception):
    """A mistake in the file; the message names the place and what to write instead."""


@dataclasses.dataclass
class Entry:
    place: str
    cells: re.Pattern
    kind: str
    metric: str | None  # where `kind` is "figure"
    low: float
    high: float
    expires: datetime.date
    why: str
    used: bool = False

    def covers(self, change):
        if change["kind"] != self.kind or self.cells.search(change["id"]) is None:
            return False
        value = change.get("is")
        return self.metric is None or (change.get("metric") == self.metric and isinstance(value, (int, float))
                                       and self.low <= value <= self.high)


def entry_of(row, place):
    if not isinstance(row, dict):
        raise AcceptError(f"{place}: not a table; write [[accept]] and its keys below")
    for key, value in row.items():
        if key not in KEYS:
            raise AcceptError(f"{place}: `{key}` is not known; there are {', '.join(KEYS)}")
        kind = KEYS[key]
        number = isinstance(value, (int, float))
        if not isinstance(value, kind) or isinstance(value, (bool, datetime.datetime)) or (number and not math.isfinite(value)):
            raise AcceptError(f"{place}: `{key}` cannot be {value!r}; ci/accepted.py shows an entry")
    for key in ("cells", "expires", "why"):
        if key not in row or row[key] == "":
            raise AcceptError(f"{place}: `{key}` is missing")
    if ("metric" in row) == ("kind" in row) or row.get("metric") == "":
        raise AcceptError(f"{place}: give one of `metric` and `kind`")
    limits = [key for key in ("at_most", "at_least") if key in row]
    if "kind" in row and row["kind"] not in KINDS:
        raise AcceptError(f"{place}: `kind` cannot be {row['kind']!r}; there are {', '.join(KINDS)}")
    if "kind" in row and limits:
        raise AcceptError(f"{place}: `{limits[0]}` belongs to a `metric`")
    if "kind" not in row and len(limits) != 1:
        raise AcceptError(f"{place}: give one of `at_most` and `at_least`")
    try:
        cells = re.compile(row["cells"])
    except re.error as error:
        raise AcceptError(f"{place}: `cells` is no regular expression: {error}") from error
    return Entry(place, cells, row.get("kind", "figure"), row.get("metric"), row.get("at_least", -math.inf),
                 row.get("at_most", math.inf), row["expires"], row["why"])


def read(path):
    """The entries of the file. Raises AcceptError for the first mistake."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise AcceptError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise AcceptError(f"{path}: not TOML: {error}") from error
    rows = document.pop("accept", [])
    if document or not isinstance(rows, list):
        raise AcceptError(f"{path}: only tables [[accept]] belong here")
    return [entry_of(row, f"{path}: entry {number}") for number, row in enumerate(rows, 1)]


def apply(entries, comparison, today):
    """Takes accepted regressions out of the comparison; returns each accepted change with its entry, and what is wrong
    with entries."""
    accepted, warnings = [], []
    valid = [entry for entry in entries if today <= entry.expires]
    for change in comparison["changes"]:
        matters = change["regression"] or change["kind"] in REVIEWED
        entry = next((entry for entry in valid if matters and entry.covers(change)), None)
        if entry is None:
            continue
        entry.used = True
        comparison["regressions"] -= change["regression"]
        change["regression"] = False
        accepted.append((change, entry))
    for entry in entries:
        if today > entry.expires:
            warnings.append(f"{entry.place}: expired on {entry.expires} and accepts nothing; renew or remove it")
        elif not entry.used:
            warnings.append(f"{entry.place}: accepts no change of this comparison; remove it if none is left")
    return accepted, warnings
