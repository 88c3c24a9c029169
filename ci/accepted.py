"""The reviewed file of increases that a comparison accepts, each for a time and a reason.

[[accept]]
cells = "attention.*device=cpu"   # regular expression on the ids of cells
metric = "memory.peak_bytes"
at_most = 1048576                 # of the newer run, in the metric's unit; at_least where more is better
expires = 2027-03-31              # the last day on which it counts
why = "#123: the cache is kept over two steps"
"""

import dataclasses
import datetime
import math
import re
import tomllib

KEYS = {"cells": str, "metric": str, "at_most": (int, float), "at_least": (int, float), "expires": datetime.date, "why": str}


class AcceptError(Exception):
    """A mistake in the file; the message names the place and what to write instead."""


@dataclasses.dataclass
class Entry:
    place: str
    cells: re.Pattern
    metric: str
    low: float
    high: float
    expires: datetime.date
    why: str
    used: bool = False

    def covers(self, change):
        value = change.get("is")
        return (change["kind"] == "figure" and change.get("metric") == self.metric
                and isinstance(value, (int, float)) and self.low <= value <= self.high
                and self.cells.search(change["id"]) is not None)


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
    for key in ("cells", "metric", "expires", "why"):
        if key not in row or row[key] == "":
            raise AcceptError(f"{place}: `{key}` is missing")
    if ("at_most" in row) == ("at_least" in row):
        raise AcceptError(f"{place}: give one of `at_most` and `at_least`")
    try:
        cells = re.compile(row["cells"])
    except re.error as error:
        raise AcceptError(f"{place}: `cells` is no regular expression: {error}") from error
    return Entry(place, cells, row["metric"], row.get("at_least", -math.inf), row.get("at_most", math.inf),
                 row["expires"], row["why"])


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
    """Takes accepted regressions out of the comparison; returns what was accepted and what is wrong with entries."""
    accepted, warnings = [], []
    for change in comparison["changes"]:
        entry = next((entry for entry in entries if change["regression"] and entry.covers(change)), None)
        if entry is None:
            continue
        entry.used = True
        if today > entry.expires:
            continue
        change["regression"] = False
        comparison["regressions"] -= 1
        accepted.append(f"{change['id']}: {change['text']}; accepted until {entry.expires}: {entry.why}")
    for entry in entries:
        if today > entry.expires:
            warnings.append(f"{entry.place}: expired on {entry.expires} and accepts nothing; renew or remove it")
        elif not entry.used:
            warnings.append(f"{entry.place}: accepts no regression of this comparison; remove it if none is left")
    return accepted, warnings
