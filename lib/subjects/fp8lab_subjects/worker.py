"""The worker: `python -m fp8lab_subjects.worker` serves arms; --check, --machine and --describe answer and end."""

import json
import os
import signal
import stat
import sys

from . import cells, protocol, rank, ranks, subjects
from .scored import parity, twin


def measure(cell):
    """An arm's result: one set of ranks for each group of metrics. Figures come from rank 0. If tensors are recorded,
    nothing else is measured."""
    out = protocol.result()
    if os.environ.get(rank.VALUES):
        first = ranks.run(lambda one, folder: rank.record(cell, one, folder), cell["ranks"])[0]
        return out | {"notes": first["notes"]}
    metrics, scored, notes = {}, {}, []
    for group in cell.measure:
        if group == "parity":
            answer = parity.measure(cell)
            scored = answer.pop("metrics")
            notes += answer.pop("notes")
            out.update({key: answer[key] for key in ("losses", "noise", "values_hash") if key in answer})
            continue
        if group == "twin":
            figures, reported = twin.measure(cell)
            metrics.update(figures)
            notes += reported
            continue
        first = ranks.run(lambda one, folder: rank.train(cell, group, one, folder), cell["ranks"])[0]
        metrics.update(first["metrics"])
        notes += first["notes"]
        if group == "memory":
            for held in ("retained_by_holder", "peak_by_holder"):
                out[held] = [{"holder": name, "bytes": size} for name, size in first[held]]
            out["timeline"] = first["timeline"]
        if first["samples"]:
            out.setdefault("samples", {}).update(first["samples"])
    out["metrics"] = protocol.result(metrics)["metrics"] | scored
    out["notes"] = list(dict.fromkeys(notes))
    return out


def answer(arm, message):
    """The result of an arm. A rank that a signal ended ends the worker by the same signal, so that it shows."""
    cell = cells.read(arm, message)
    try:
        reason = subjects.unsupported(cell)
        if reason:
            return protocol.result(status="error", reason=reason)
        subjects.preload(cell)
        return measure(cell)
    except ranks.Crash as crash:
        if crash.number not in (signal.SIGKILL, signal.SIGSTOP):  # which no process can handle
            signal.signal(crash.number, signal.SIG_DFL)
        os.kill(os.getpid(), crash.number)
        raise
    except ranks.Failure as failure:
        return protocol.result(status="out_of_memory" if failure.out_of_memory else "error", reason=str(failure))


def check(text):
    cell = cells.read(*protocol.parse_request(text))
    absent = subjects.absent(cell.subject)
    if absent:
        return {"skip": absent, "every_cell": True}
    reason = subjects.unsupported(cell)
    return {"skip": reason} if reason else {}


def main(words):
    if words == ["--check"]:
        print(json.dumps(check(sys.stdin.read())))
    elif words[:1] == ["--machine"] and len(words) == 2:
        print(json.dumps(subjects.machine(words[1])))
    elif words[:1] == ["--describe"] and len(words) == 2:
        print(json.dumps(subjects.describe(words[1])))
    elif not words and stat.S_ISSOCK(os.fstat(protocol.CONTROL).st_mode):
        protocol.serve(answer)
    else:
        sys.exit(
            "usage: python -m fp8lab_subjects.worker [--check | --machine SUBJECT | --describe SUBJECT]\n"
            "Without an option it serves `fp8lab run`, which starts it with a socket as descriptor 0."
        )


if __name__ == "__main__":
    main(sys.argv[1:])
