"""FSDP2 around a model: one group of parameters a layer, and one for the root, which has none of its own. If ranks have
experts between them, a layer's experts are a second group. Or DistributedDataParallel with its default buckets."""

import contextlib

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.nn.parallel import DistributedDataParallel

from .layers.dispatch import Dispatch

REDUCE_DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}

# By the mesh that shards a rank's experts: the ranks that have all experts between them.
_ranks_of_experts = {}


def make_mesh(cell, device_type):
    replicas, shards = cell.mesh
    if replicas > 1:
        return init_device_mesh(device_type, (replicas, shards), mesh_dim_names=("replicas", "shards"))
    return init_device_mesh(device_type, (shards,), mesh_dim_names=("shards",))


def make_mesh_of_experts(cell, device_type):
    """The same ranks as [replicas, shards of experts, experts] if they have experts between them; else None."""
    if cell.expert_parallel == 1:
        return None
    replicas, shards = cell.mesh
    sizes = replicas, shards // cell.expert_parallel, cell.expert_parallel
    return init_device_mesh(device_type, sizes, mesh_dim_names=("replicas", "shards_of_experts", "experts"))


def over_two_meshes(built, mesh, sparse, dimension=0):
    """FSDP2's `shard_placement_fn` if ranks have experts between them: experts are sharded in this dimension, over the ranks
    that have the same ones. Mixtures then send rows to the ranks of their experts."""
    from torch.distributed.fsdp._fully_shard._fsdp_common import ShardPlacementResult
    from torch.distributed.fsdp._fully_shard._fsdp_init import _get_mesh_info

    over = sparse["replicas", "shards_of_experts"] if sparse.size(0) > 1 else sparse["shards_of_experts"]
    info_of_experts, info = _get_mesh_info(over), _get_mesh_info(mesh)
    _ranks_of_experts[over] = sparse["experts"]
    mixtures = [module for module in built.modules() if hasattr(module, "expert_weights")]
    for mixture in mixtures:
        mixture.dispatch = Dispatch(sparse["experts"])
    of_experts = {id(weight) for mixture in mixtures for weight in mixture.expert_weights()}

    def placement(one):
        if id(one) in of_experts:
            return ShardPlacementResult(placement=Shard(dimension), mesh_info=info_of_experts)
        return ShardPlacementResult(placement=Shard(0), mesh_info=info)

    return placement


def shard(cell, model, device_type, mesh=None):
    """Shards every layer of `model`, and the root; over `mesh`, or the cell's."""
    mesh, sparse = mesh or make_mesh(cell, device_type), make_mesh_of_experts(cell, device_type)
    options = {
        "mesh": mesh,
        "reshard_after_forward": bool(cell["reshard_after_forward"]),
        "mp_policy": MixedPrecisionPolicy(reduce_dtype=REDUCE_DTYPES.get(cell.get("reduce_dtype"))),
    }
    placement = {} if sparse is None else {"shard_placement_fn": over_two_meshes(model, mesh, sparse)}
    for layer in model.layers:
        fully_shard(layer, **options, **placement)
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


def experts_of(tensor):
    """The ranks that have the rows of a parameter between them, each an equal part; None if this rank has all."""
    has_rows = isinstance(tensor, DTensor) and tensor.dim() > 0  # a norm has none
    return _ranks_of_experts.get(tensor.device_mesh) if has_rows else None


def full_rows(tensor):
    """The rows of the unsharded parameter."""
    experts = experts_of(tensor)
    return tensor.shape[0] * (1 if experts is None else experts.size())


def full(tensor):
    """The unsharded values of a parameter. Every rank calls it."""
    if not isinstance(tensor, DTensor):
        return tensor
    own, experts = tensor.full_tensor(), experts_of(tensor)
    if experts is None:
        return own
    parts = [torch.empty_like(own) for _ in range(experts.size())]
    torch.distributed.all_gather(parts, own.contiguous(), group=experts.get_group())
    return torch.cat(parts)


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
    mesh, experts = tensor.device_mesh, experts_of(tensor)
    shards, rank = mesh.size(-1), mesh.get_local_rank(mesh.ndim - 1)
    rows = tensor.shape[0]
    of_other_ranks = 0 if experts is None else experts.get_local_rank() * rows
    # As torch.chunk: ceil(rows / shards) each from rank 0 on.
    return of_other_ranks + min(rows, rank * -(-rows // shards))
