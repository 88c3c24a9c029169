"""The arm protocol of lib/harness/run/arm_process.h: a byte on descriptor 0 starts an arm, a byte back reports its end.

Descriptor 3 is a file in memory: the request (the arm's name, a newline, the cell as JSON), then the result. Libraries
print to descriptors 1 and 2, which the harness keeps as the arm's output.
"""

import json
import math
import os
import socket

CONTROL, EXCHANGE = 0, 3


def exact(value):
    """JSON has no NaN and no infinities: they are written as text, so that gates see them."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {key: exact(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [exact(one) for one in value]
    return value


def parse_request(text):
    """Returns the arm's name and the cell of a request."""
    arm, _, cell = text.partition("\n")
    return arm, json.loads(cell)


def result(metrics=None, status="ok", reason=None):
    """An arm's result. `metrics`: name -> (value or None, unit, reason)."""
    return {
        "status": status,
        "reason": reason,
        "seconds": 0,
        "metrics": {
            name: {"value": value, "predicted": None, "unit": unit} | ({"reason": why} if why else {})
            for name, (value, unit, why) in (metrics or {}).items()
        },
        "retained_by_holder": [],
        "peak_by_holder": [],
        "notes": [],
        "sequence_hash": None,
    }


def written_out(out):
    """A result as the harness reads it: a line of JSON, then the memory timeline, if there is one."""
    timeline = out.pop("timeline", "")
    return json.dumps(exact(out)) + "\n" + timeline


def serve(answer):
    """Calls answer(arm, cell) for every request until the harness closes the control socket."""
    control = socket.socket(fileno=os.dup(CONTROL))
    with open(EXCHANGE, "r+b", buffering=0, closefd=False) as exchange:
        while control.recv(1):
            exchange.seek(0)
            request = exchange.read().decode()
            written = written_out(answer(*parse_request(request))).encode()
            exchange.seek(0)
            exchange.truncate()
            exchange.write(written)
            try:
                control.send(b"\1")
            except (BrokenPipeError, ConnectionResetError):
                return  # the harness asked for one arm and no longer listens
