"""The libraries: what is installed, and what each can honour of a cell."""

import importlib
import importlib.util
import sys

from . import abilities
from .versions import checked, version_of

PACKAGES = {
    "torch": ("torch",),
    "torchao": ("torch", "torchao"),
    "transformer_engine": ("torch", "transformer_engine"),
    "double": ("torch",),
}


def absent(subject):
    """The reason why a library cannot be imported, or ""."""
    if subject not in PACKAGES:
        return f"the worker has no subject {subject}"
    for package in PACKAGES[subject]:
        if importlib.util.find_spec(package) is None:
            where = f"{package} is not installed in {sys.executable}; install it"
            if subject not in PACKAGES[subject]:  # no package of this name can be installed
                return f"{where}, or name another Python in FP8LAB_SUBJECT_PYTHON"
            return (
                f"{where}, name another Python in FP8LAB_SUBJECT_PYTHON, or give a release its own: "
                f"`fp8lab subjects --install {subject}==RELEASE`"
            )
    return ""


def load(subject):
    """The module that builds a subject's models. Imports the library."""
    return importlib.import_module(f".libraries.{subject}_subject", __package__)


def preload(cell):
    """Imports a library once, before ranks are forked.

    A library that uses the GPU when it is imported would leave CUDA unusable in forked processes: on GPUs only releases
    of which it is known that they do not.
    """
    module = load(cell.subject)
    getattr(module, "prepare", lambda _: None)(cell)
    first = getattr(module, "FORKED_ON_GPUS_SINCE", None)
    if cell["device"] == "cpu" or (first and checked(version_of(cell.subject), first)):
        for name in getattr(module, "PRELOADED", ()):
            importlib.import_module(name)


def machine(subject):
    """How many GPUs PyTorch sees, or why the library cannot be imported. For a process that ends afterwards."""
    try:
        for name in ("torch", *getattr(load(subject), "PRELOADED", ())):
            importlib.import_module(name)
        torch = importlib.import_module("torch")
    except Exception as error:  # a broken installation raises anything
        return {"skip": f"{subject} cannot be imported: {error}"}
    return {"gpus": torch.cuda.device_count()} if torch.cuda.is_available() else {"skip": "PyTorch sees no GPU"}


def unsupported(cell):
    """The reason why the worker cannot run a cell, by its key, or ""."""
    known = absent(cell.subject) or abilities.too_old(cell.subject) or abilities.unable(cell)
    return known or abilities.needs_newer(cell) or abilities.shares_experts_unevenly(cell)


def describe(subject):
    reason = absent(subject)
    libraries = {package: version_of(package) for package in PACKAGES.get(subject, ())} if not reason else {}
    main = PACKAGES.get(subject, ("",))[-1]
    return {
        "subject": subject,
        "available": not reason,
        "reason": reason,
        "version": libraries.pop(main, ""),
        "libraries": libraries,
    }
