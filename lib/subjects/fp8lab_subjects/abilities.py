"""What each library can honour of a cell: abilities.json, which the program reads too, so that it can say which cells
will be skipped without starting Python. Imports no library.

A rule of abilities.json: cells of `subjects` whose keys have one of the values of `when` may have the values `only` of
`key`. Values are written as in ids of cells; "" is a key that was left out. `sharded` and `version` are the cell's, and
`training.recipe` and `training.quantized_weights` have the arm's values; "*" at the end of `key` is every such key.
"""

import json
import pathlib

from .cells import BF16
from .versions import checked, version_of

RULES = json.loads((pathlib.Path(__file__).parent / "abilities.json").read_text())["rules"]

# The oldest releases that are known to have what the worker calls.
OLDEST = {"torch": (2, 6), "torchao": (0, 7), "transformer_engine": (2, 9)}
WITH_TWO_MESHES = (2, 15)  # PyTorch whose FSDP2 shards the experts of a layer over other ranks than its other parameters
# torchao with the grouped products and the MXFP8 layers that the worker calls, and PyTorch with what it wraps them in.
WITH_GROUPED_PRODUCTS, WITH_MXFP8_WEIGHTS = (0, 18), (2, 15)


def text(value):
    """A value as ids of cells write it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value)


def values_of(cell, key):
    """The cell's keys of a rule's key, with the texts of their values."""
    of_arm = {
        "measure": list(cell.measure), "sharded": [cell.sharded], "version": [cell.version],
        "training.recipe": [cell.recipe], "training.quantized_weights": [cell.quantized_weights],
    }  # fmt: skip
    if key.endswith("*"):
        return [(name, text(value)) for name, value in cell.config.items() if name.startswith(key[:-1])]
    return [(key, text(value)) for value in of_arm.get(key, [cell.config.get(key)])]


def _has_one_of(cell, key, values):
    return any(value in values for _, value in values_of(cell, key))


def unable(cell):
    """The key that the library cannot honour and why, or ""."""
    for rule in RULES:
        if cell.subject not in rule["subjects"]:
            continue
        if not all(_has_one_of(cell, key, values) for key, values in rule.get("when", {}).items()):
            continue
        for key, value in values_of(cell, rule["key"]):
            if value not in rule["only"]:
                only = ", ".join(word for word in rule["only"] if word)
                return f"{key}: {rule['why'].replace('{value}', value).replace('{only}', only)}"
    return ""


def _needs_newer_torchao(cell):
    """As needs_newer(), of torchao's products for experts and in MXFP8."""
    if cell.subject != "torchao" or cell.recipe == BF16 or not (cell.routes or cell.recipe == "mxfp8"):
        return ""
    key, what = ("model.top_k", "grouped products") if cell.routes else ("training.recipe", "MXFP8 layers")
    of = [("torchao", WITH_GROUPED_PRODUCTS)] + [("torch", WITH_MXFP8_WEIGHTS)] * (cell.recipe == "mxfp8")
    for package, oldest in of:
        version = version_of(package)
        if not checked(version, oldest):
            needed = ".".join(map(str, oldest))
            return f"{key}: torchao's {what} in {cell.recipe} are known from {package} {needed} on, and {version} is installed"
    return ""


def shares_experts_unevenly(cell):
    """The key that gives ranks unequal numbers of torchao's experts, or ""."""
    if cell.subject != "torchao" or cell.recipe == BF16 or not (cell.routes and cell.sharded):
        return ""
    shards = cell.mesh[1] // cell.expert_parallel
    if cell.own_experts % shards == 0:
        return ""
    return (
        f"model.experts: {shards} ranks cannot shard {cell.own_experts} experts equally, and torchao's weights of experts give"
        " FSDP2 no padded shards"
    )


def needs_newer(cell):
    """The key for which the installed release of a library is too old, or ""."""
    version = version_of("torch")
    if cell.expert_parallel > 1 and not checked(version, WITH_TWO_MESHES):
        needed = ".".join(map(str, WITH_TWO_MESHES))
        return f"expert_parallel: FSDP2 of torch {version} cannot shard a layer over two meshes; install {needed} or newer"
    return _needs_newer_torchao(cell)


def too_old(subject):
    """The reason why an installed release is too old, or ""."""
    for package, oldest in OLDEST.items():
        if package in (subject, "torch") and not checked(version_of(package), oldest):
            return f"{package} {version_of(package)} is older than {oldest[0]}.{oldest[1]}"
    return ""
