"""FSDP2 around a model: one group of parameters a layer, and one for the root, which has none of its own. Or
DistributedDataParallel with its default buckets."""

import contextlib

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

REDUCE_DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}


def make_mesh(cell, device_type):
    replicas, shards = cell.mesh
    if replicas > 1:
        return init_device_mesh(device_type, (replicas, shards), mesh_dim_names=("replicas", "shards"))
    return init_device_mesh(device_type, (shards,), mesh_dim_names=("shards",))


def shard(cell, model, device_type, mesh=None):
    """Shards every layer of `model`, and the root; over `mesh`, or the cell's."""
    options = {
        "mesh": mesh or make_mesh(cell, device_type),
        "reshard_after_forward": bool(cell["reshard_after_forward"]),
        "mp_policy": MixedPrecisionPolicy(reduce_dtype=REDUCE_DTYPES.get(cell.get("reduce_dtype"))),
    }
    for layer in model.layers:
        fully_shard(layer, **options)
    fully_shard(model, **{**options, "reshard_after_forward": False})  # FSDP2's default for a root


def replicated(cell, model):
    """What passes call: `model`, or DistributedDataParallel around it. Its parameters must have memory."""
    # Each rank counts the tokens of its experts by itself, and DistributedDataParallel would broadcast rank 0's counts.
    options = {"broadcast_buffers": False} if cell.has_router_biases else {}
    return DistributedDataParallel(model, **options) if cell.replicated else model


def passing(called, is_last):
    """A micro-batch's forward and backward run in it. Replicas reduce gradients in the last micro-batch of a step."""
    is_replica = isinstance(called, DistributedDataParallel)
    return called.no_sync() if is_replica and not is_last else contextlib.nullcontext()


def local(tensor):
    """The part of a parameter that this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def full(tensor):
    """The unsharded values of a parameter."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@contextlib.contextmanager
def gathered(layer):
    """While it is entered, the parameters of a sharded layer are those that FSDP2 gathers for its forward. Every rank
    enters it; after the first step only, in which FSDP2 makes its streams."""
    layer.unshard()
    try:
        yield
    finally:
        layer.reshard()


def first_row(tensor):
    """The row of the unsharded parameter with which this rank's part begins."""
    if not isinstance(tensor, DTensor):
        return 0
    mesh = tensor.device_mesh
    shards, rank = mesh.size(-1), mesh.get_local_rank(mesh.ndim - 1)
    rows = tensor.shape[0]
    return min(rows, rank * -(-rows // shards))  # as torch.chunk: ceil(rows / shards) each from rank 0 on
