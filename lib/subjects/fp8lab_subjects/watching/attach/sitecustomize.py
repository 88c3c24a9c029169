"""First on PYTHONPATH under `fp8lab watch`. Python imports it when it starts, in every process of the program."""

import importlib.machinery
import importlib.util
import os
import sys


def _attach():
    try:
        from fp8lab_subjects.watching import attaching

        attaching.when_torch_is_imported()
    except Exception as error:  # the program runs on, without instruments
        sys.stderr.write(f"fp8lab watch: cannot attach: {type(error).__name__}: {error}\n")


def _run_the_other_sitecustomize():
    """Python imports one module of this name; the module that it would have found without this folder runs too."""
    here = os.path.dirname(os.path.abspath(__file__))
    others = [folder for folder in sys.path if os.path.abspath(folder) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


_attach()
_run_the_other_sitecustomize()
