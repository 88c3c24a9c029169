"""The libraries: what is installed, and what each can honour of a cell."""

import importlib
import importlib.util
import sys

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
    "training.weight_average": (False, "the worker keeps no average of weights"),
    "training.fused_quantize": (True, "which casts are fused is the library's choice"),
    "training.cache_weights": (False, "the worker does not tell layers which micro-batch is first"),
    "training.fp8_sums": ("f32", "the worker sums FP8 products as its device does"),
    "training.weight_rounding": ("nearest", "the worker's optimizers round to the nearest"),
    "training.first_layers_bf16": (0, "the worker builds every layer alike"),
    "training.last_layers_bf16": (0, "the worker builds every layer alike"),
    "training.initial_history_length": (0, "the worker builds a model under the recipe that runs it"),
    "training.masters_from": ("initial_values", "the worker starts masters from the parameters as they are"),
    "training.fp8_attention": (False, "the worker does not turn on attention in FP8"),
    "training.fp8_attention_backward": (True, "the worker does not turn on attention in FP8"),
    "training.fp8_mha": (False, "the worker does not turn on attention in FP8"),
    "capacity": (0, "a library has no limit of memory but the device's"),
    "context_parallel": (1, "the worker gives every rank entire sequences"),
}


def absent(subject):
    """The reason why a library cannot be imported, or ""."""
    if subject not in PACKAGES:
        return f"the worker knows no subject {subject}"
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
    """Imports a library once, before ranks are forked; on GPUs PyTorch alone.

    A library that asks for the GPU when it is imported would leave CUDA unusable in forked processes.
    """
    module = load(cell.subject)
    if cell["device"] == "cpu":
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
    return abilities.unsupported(cell)


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
