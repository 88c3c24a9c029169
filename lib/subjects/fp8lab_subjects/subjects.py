"""The libraries: what is installed, and what each can honour of a cell."""

import importlib
import importlib.util
import os

from . import abilities
from .versions import version_of

PACKAGES = {
    "torch": ("torch",),
    "torchao": ("torch", "torchao"),
    "transformer_engine": ("torch", "transformer_engine"),
    "double": ("torch",),
}
# Groups of metrics that a worker measures, each in processes of its own: instruments disturb each other.
GROUPS = ("memory", "traffic", "host", "time", "parity")

# Keys that no library has, the value that means nothing, and why another one cannot be honoured.
OWN_KEYS = {
    "model.dropout": (0, "its random numbers are the library's own, so that no two runs compare"),
    "training.validation_batches": (0, "the worker trains only"),
    "training.resume_at": (0, "the worker does not save training states"),
    "training.clip_norm": (0, "the worker does not clip gradients"),
    "training.weight_average": (False, "the worker keeps no average of weights"),
    "training.data": ("normal", "stressed values are made by this program's runtime alone"),
    "training.fused_quantize": (True, "which casts are fused is the library's choice"),
    "training.cache_weights": (False, "the worker does not tell layers which micro-batch is first"),
    "training.fp8_attention": (False, "the worker does not turn on attention in FP8"),
    "capacity": (0, "a library has no limit of memory but the device's"),
    "gather_ahead": (False, "prefetching is FSDP2's own choice"),
}


def absent(subject):
    """The reason why a library cannot be imported, or ""."""
    if subject not in PACKAGES:
        return f"the worker knows no subject {subject}"
    for package in PACKAGES[subject]:
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed in this Python"
    return ""


def load(subject):
    """The module that builds a subject's models. Imports the library."""
    return importlib.import_module(f".{subject}_subject", __package__)


def preload(cell):
    """Imports a library once, before ranks are forked; on GPUs PyTorch alone.

    A library that asks for the GPU when it is imported would leave CUDA unusable in forked processes.
    """
    module = load(cell.subject)
    if cell["device"] == "cpu":
        for name in getattr(module, "PRELOADED", ()):
            importlib.import_module(name)


def broken(cell):
    """The reason why the library of a cell on GPUs cannot be imported, or "". For a process that ends afterwards."""
    if cell["device"] == "cpu":
        return ""
    try:
        for name in getattr(load(cell.subject), "PRELOADED", ()):
            importlib.import_module(name)
    except Exception as error:  # a broken installation raises anything
        return f"{cell.subject} cannot be imported: {error}"
    return ""


def _of_device(cell):
    """The reason why the machine cannot run the cell, or ""."""
    if cell["device"] == "cpu":
        return ""
    # By NVML: CUDA that this process has used cannot be used by the ranks that it forks.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    try:
        import torch
    except Exception as error:  # a broken installation raises anything
        return f"torch cannot be imported: {error}"
    if not torch.cuda.is_available():
        return "device cuda: PyTorch sees no GPU"
    if torch.cuda.device_count() < cell["ranks"]:
        return f"ranks: {cell['ranks']} need as many GPUs, PyTorch sees {torch.cuda.device_count()}"
    return ""


def unsupported(cell):
    """The reason why the worker cannot run a cell, by its key, or ""."""
    reason = absent(cell.subject)
    if reason:
        return reason
    for group in cell.measure:
        if group not in GROUPS:
            return f"measure: {group} is of this program's runtime alone"
    for key, (plain, why) in OWN_KEYS.items():
        if cell.get(key, plain) != plain:
            return f"{key}: {why}"
    replicas, shards = cell.mesh
    if cell.sharded and replicas * shards != cell["ranks"]:
        return f"mesh: {replicas} x {shards} are not {cell['ranks']} ranks"
    return abilities.unsupported(cell) or _of_device(cell)


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
