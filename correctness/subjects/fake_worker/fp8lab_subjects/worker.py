"""A worker without a library: it speaks the protocol of arms, and a version names what goes wrong."""

import json
import os
import signal
import socket
import sys
import time


def version_of(arm, config):
    return config.get("versions.before" if arm == "before" else "versions.after") or ""


def answer(arm, cell):
    """The arm's result, with the defect that its version names."""
    config = cell["config"]
    version = version_of(arm, config)
    if version == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if version == "hang":
        time.sleep(600)
    if version == "exit":
        sys.exit("ModuleNotFoundError: no such library")
    figures = {
        "memory.retained_bytes": ("B", 100 if version == "leak" else 0),
        "traffic.collectives": ("1", 13 if version == "extra_collective" else 12),
    }
    if version == "nothing":
        figures = {}
    return {
        "status": "ok",
        "reason": None,
        "seconds": 0,
        "metrics": {name: {"value": value, "predicted": None, "unit": unit} for name, (unit, value) in figures.items()},
        "retained_by_holder": [{"holder": "ctx of layers[0].fc1", "bytes": 100}] if version == "leak" else [],
        "peak_by_holder": [],
        "notes": [f"pid {os.getpid()}", f"version {version or 'installed'}", f"path {sys.path[0]}"],
        "sequence_hash": None,
    }


def serve():
    control = socket.socket(fileno=0)
    exchange = open(3, "r+b", buffering=0)
    while control.recv(1):
        exchange.seek(0)
        arm, _, cell = exchange.read().decode().partition("\n")
        exchange.seek(0)
        exchange.truncate()
        exchange.write((json.dumps(answer(arm, json.loads(cell))) + "\n").encode())
        control.send(b"\1")


def check(text):
    arm, _, cell = text.partition("\n")
    config = json.loads(cell)["config"]
    if config["training.recipe"] == "mxfp8":
        return {"skip": f"training.recipe: the fake has no mxfp8 ({arm})"}
    return {}


def describe(subject):
    installed = subject == "double"
    return {
        "subject": subject,
        "available": installed,
        "reason": "" if installed else f"{subject} cannot be imported",
        "version": "1" if installed else "",
        "libraries": {"python": "3"},
    }


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        print(json.dumps(check(sys.stdin.read())))
    elif sys.argv[1:2] == ["--describe"]:
        print(json.dumps(describe(sys.argv[2])))
    else:
        serve()
