"""Starts a session when the program imports PyTorch. Imports no PyTorch itself: most processes never need it."""

import importlib.abc
import importlib.util
import os
import sys

FOLDER = "FP8LAB_WATCH_FOLDER"  # each process leaves here what it measured
MEASURE = "FP8LAB_WATCH_MEASURE"  # "memory,traffic"
STEPS = "FP8LAB_WATCH_STEPS"  # "3:10", both included

_session = None
_named = (None, None)


def steps_of(text):
    """(first, last) of "3:10", "3:", ":10" or "5"; last is None without an end."""
    first, colon, last = text.partition(":")
    begin = int(first) if first else 1
    return begin, (int(last) if last else None) if colon or not text else begin


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Calls `then` once when torch has been imported."""

    def __init__(self, then):
        self.then = then

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_attach(module):
            execute(module)
            self.then()

        spec.loader.exec_module = execute_and_attach
        return spec


def when_torch_is_imported():
    if os.environ.get(FOLDER):
        sys.meta_path.insert(0, _AfterTorch(_start))


def _start():
    global _session
    try:
        from .session import Session

        _session = Session(os.environ[FOLDER], os.environ.get(MEASURE, ""), os.environ.get(STEPS, ""))
        _session.start()
        _session.name(*_named)
    except Exception as error:  # the program runs on, without instruments
        _session = None
        sys.stderr.write(f"fp8lab watch: cannot attach: {type(error).__name__}: {error}\n")


def name(model, optimizer):
    global _named
    _named = (model, optimizer) if os.environ.get(FOLDER) else (None, None)
    if _session is not None:
        _session.name(model, optimizer)
