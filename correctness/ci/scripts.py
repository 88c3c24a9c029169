"""Scripts under ci/ as modules."""

import importlib.machinery
import importlib.util
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]


def module(name):
    loader = importlib.machinery.SourceFileLoader(name, str(ROOT / "ci" / name))
    loaded = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(loaded)
    return loaded
