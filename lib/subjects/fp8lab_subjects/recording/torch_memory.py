"""Records what PyTorch programs hold: `python -m fp8lab_subjects.recording.torch_memory` writes measured/torch-memory.json.
`host N` or `cuda_shapes N` records the first N configurations with these operators.

The closed form of PyTorch's memory (lib/harness/eager) is held to these figures, and `fp8lab plan --as torch@...` states
how far it is from them. A configuration runs with the operators

  host           of the CPU, with values, over gloo
  cuda_shapes    of CUDA, without values: FakeTensorMode, with fused norms and flash attention in place of what a CPU
                 runs, over a process group that moves nothing. It counts the tensors that operators return: workspaces
                 of kernels, and the allocator's rounding, are not among them.

Figures are bytes of storages on rank 0 (ledger.py), and, over ranks of a host, of the full arrays of the last step's
collectives (traffic.py); `program` is `worker` (model.py) or `torchtitan` (published_model.py).
"""

import contextlib
import datetime
import json
import sys
import weakref

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed import _functional_collectives as functional
from torch.utils._pytree import tree_iter

from .. import cells, ledger, model, optimizers, ranks, sharding, traffic, training
from ..layers import chunked_loss, experts, ring
from ..layers.dispatch import Dispatch
from ..versions import version_of
from . import published_model
from .configurations import SMALL, DEFAULTS, configurations

SCHEMA = "fp8lab.torch-memory/1"

def with_float8(cell, built):
    """torchao's float8 in the products of layers, with CUDA's matrix product."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig(enable_fsdp_float8_all_gather=cell.quantized_weights)
    return convert_to_float8_training(built, config=config, module_filter_fn=lambda _, name: name != "head")


class ShapesLedger(ledger.HostLedger):
    """Counts the fake tensors of one mode: DTensor learns shapes from tensors of its own."""

    def __init__(self, mode):
        super().__init__()
        self.mode = mode

    def _add(self, tensor):
        storage = tensor.untyped_storage()  # on device `meta`, whatever the tensor's device is
        key = id(storage)
        if isinstance(tensor, FakeTensor) and tensor.fake_mode is self.mode and key not in self._live:
            self._live[key] = weakref.ref(storage, lambda _, key=key: self._live.pop(key, None))

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if any(not issubclass(one, FakeTensor) and ledger.has_subclass([one]) for one in types):
            return NotImplemented
        out = function(*args, **(kwargs or {}))
        if function.namespace != "prim":
            for value in tree_iter((args, out)):
                if isinstance(value, torch.Tensor):
                    self._add(value)
            self._peak = max(self._peak, self._now())
        return out


class FusedNorm(torch.autograd.Function):
    """What CUDA's fused norms return and save: a row's mean, if the norm has one, and deviation in FP32."""

    @staticmethod
    def forward(ctx, x, weight, bias, has_mean):
        row = (*x.shape[:-1], 1)
        saved = [torch.empty(row, dtype=torch.float32) for _ in range(2 if has_mean else 1)]
        ctx.save_for_backward(x, weight, *saved)
        ctx.has_bias = bias is not None
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx, gradient):
        x, weight, *_ = ctx.saved_tensors
        of_x, of_weight = (
            torch.empty_like(one) if needed else None
            for one, needed in zip((x, weight), ctx.needs_input_grad, strict=False)
        )
        return of_x, of_weight, torch.empty_like(weight) if ctx.has_bias else None, None


def cudas_attention(q, k, v, is_causal, enable_gqa):
    """SDPA by a kernel of CUDA. Flash attention has none for values of another width than the keys'; cuDNN has."""
    if q.shape[-1] == v.shape[-1]:
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal, False)[0]
    return torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, is_causal, False)[0]


@contextlib.contextmanager
def cudas_operators():
    """Puts what CUDA runs in the place of what a CPU composes or runs by kernels of its own."""
    before = F.rms_norm, F.layer_norm, F.scaled_dot_product_attention, functional._maybe_wrap_tensor
    F.rms_norm = lambda x, shape, weight=None, eps=None: FusedNorm.apply(x, weight, None, False)
    F.layer_norm = lambda x, shape, weight=None, bias=None, eps=None: FusedNorm.apply(x, weight, bias, True)
    F.scaled_dot_product_attention = cudas_attention
    # A collective without values is waited for at once, and would return a second tensor.
    functional._maybe_wrap_tensor = lambda tensor: tensor
    try:
        yield
    finally:
        F.rms_norm, F.layer_norm, F.scaled_dot_product_attention, functional._maybe_wrap_tensor = before


def start_group(operators, count, rank, folder):
    if operators == "host":
        method = f"file://{folder}/rendezvous"
        torch.distributed.init_process_group("gloo", init_method=method, rank=rank, world_size=count)
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=rank, world_size=count, store=FakeStore())


def replicated_on_shapes(cell, built):
    """DistributedDataParallel without values: ranks compare no shapes, a reduction moves nothing, and the second step
    keeps the buckets of the first, whose sum is the same."""
    from torch.nn.parallel import DistributedDataParallel

    if not cell.replicated:
        return built

    def reduce_nothing(_, bucket):
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    class Reducer:
        def __init__(self, reducer):
            self._reducer = reducer

        def __getattr__(self, name):
            return getattr(self._reducer, name)

        def _rebuild_buckets(self):
            return False

    called = DistributedDataParallel(built, init_sync=False, broadcast_buffers=False)
    called.register_comm_hook(None, reduce_nothing)
    called.reducer = Reducer(called.reducer)
    return called


def trained(built):
    return [parameter for parameter in built.parameters() if parameter.requires_grad]


def make_optimizer(cell, program, built):
    if program == "worker" and (not cell.sharded or cell["training.master_weights"] == "f32"):
        return optimizers.make(cell, built.parameters())
    if cell["training.optimizer"] == "none":
        return None
    # Local parts: DTensor would learn shapes from tensors that the ledger counts.
    own = [torch.nn.Parameter(sharding.local(one.detach())) for one in trained(built)]
    algorithm = {"adam": "fused", "foreach_adam": "foreach"}[cell["training.optimizer"]]
    inner = torch.optim.AdamW(own, lr=1e-3, **{algorithm: True})
    inner.own = own
    return inner


def clip(parameters, limit):
    """clip_grad_norm_() over several meshes: computes a norm for each mesh, and clips all gradients by the norm of these
    norms."""
    meshes = {}
    for one in parameters:
        meshes.setdefault(getattr(one, "device_mesh", None), []).append(one)
    norms = [torch.nn.utils.get_total_norm([one.grad for one in of_mesh]) for of_mesh in meshes.values()]
    if len(norms) == 1:
        torch.nn.utils.clip_grads_with_norm_(parameters, limit, norms[0])
        return
    total = torch.linalg.vector_norm(torch.stack([sharding.full(norm) for norm in norms]))
    for of_mesh in meshes.values():
        torch.nn.utils.clip_grads_with_norm_(of_mesh, limit, total)


def step(cell, optimizer, built):
    clips_itself = isinstance(optimizer, (optimizers.Scheduled, optimizers.MasterWeights))
    if cell["training.clip_norm"] and not clips_itself:
        clip(trained(built), cell["training.clip_norm"])
    for mine, parameter in zip(getattr(optimizer, "own", ()), trained(built), strict=False):
        mine.grad = sharding.local(parameter.grad)
    optimizer.step()
    for mine in getattr(optimizer, "own", ()):
        mine.grad = None


def make_inputs(cell, device):
    if cell.vocabulary:
        return tuple(torch.zeros(cell.tokens, dtype=torch.int64, device=device) for _ in range(2))
    has_target = cell["training.loss"] == "mse"
    shape, dtype = (cell.tokens, cell["model.hidden"]), model.dtype_of(cell)
    x, target = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
    return x, target if has_target else None


def loss_of(cell, built, output, target):
    """`output` are logits, or what the head reads if the loss computes them in parts."""
    if cell.loss_chunks > 1:
        has_group = isinstance(built, published_model.Model) and published_model.has_own_groups(cell)
        head = built.head if has_group else built.logits_of
        return chunked_loss.cross_entropy(head, output, target, cell.loss_chunks, 1 / cell["training.micro_batches"])
    if cell.vocabulary:
        return F.cross_entropy(output.float(), target)
    return output.sum() if target is None else F.mse_loss(output, target)


def make_meshes(cell, program, device_type):
    """What make_model() shards over: DeviceMeshes, of which only a torchtitan program has more than one; or nothing."""
    if not cell.sharded:
        return ()
    return published_model.make_meshes(cell, device_type) if program == "torchtitan" else (sharding.make_mesh(cell, device_type),)


def make_model(cell, program, meshes, device):
    """The model, sharded if the cell is; on a GPU a sharded one is made on the meta device, as people make it."""
    build = published_model.Model if program == "torchtitan" else model.build
    is_deferred = cell.sharded and device.type == "cuda"
    built = build(cell, torch.device("meta") if is_deferred else device)
    if cell.recipe != cells.BF16:
        built = with_float8(cell, built)
    model.freeze(cell, built)
    if cell.sharded:
        if program == "torchtitan":
            published_model.shard(cell, built, *meshes)
        else:
            sharding.shard(cell, built, device.type, *meshes)
    if is_deferred:
        built.to_empty(device=device)
        if cell.has_sinks:
            built.make_documents(device)  # attention reads their values
    return built


def train(cell, program, meshes, counts, device="cpu", collectives=None):
    """Trains, as training.py does, and returns figures in bytes. `collectives` ends with the calls of the last step."""
    device = torch.device(device)
    figures, peaks = {}, {}
    with contextlib.ExitStack() as counting:
        counting.enter_context(ring.on_gpus(cell, *meshes[2:]))
        if device.type == "cuda":
            counting.enter_context(counts)  # the allocator counts from here
        built = make_model(cell, program, meshes, device)
        if device.type != "cuda":
            counting.enter_context(counts)
            for tensor in [*built.parameters(), *built.buffers()]:
                for inner in ledger.inner_tensors(sharding.local(tensor.detach())):
                    counts._add(inner)
        replicated = replicated_on_shapes if isinstance(counts, ShapesLedger) else sharding.replicated
        called = replicated(cell, built)
        optimizer = make_optimizer(cell, program, built)
        asking = torch.zeros(0, requires_grad=True, device=device)
        loss = x = target = None
        for _ in range(cell["training.steps"]):
            if collectives is not None:
                collectives.calls.clear()
            for number in range(1, cell["training.micro_batches"] + 1):
                loss = x = target = None
                x, target = make_inputs(cell, device)
                counts.reset_peak()
                with sharding.passing(called, number == cell["training.micro_batches"]):
                    given = x if program == "torchtitan" else training.given_to_model(cell, x, asking)
                    loss = loss_of(cell, built, called(given), target)
                    figures["end_of_forward"] = counts.allocated()
                    peaks["forward"] = max(peaks.get("forward", 0), counts.peak())
                    counts.reset_peak()
                    loss.backward()
                    figures["end_of_backward"] = counts.allocated()
                    peaks["backward"] = max(peaks.get("backward", 0), counts.peak())
            counts.reset_peak()
            if optimizer is not None:
                step(cell, optimizer, built)
            experts.update_biases(cell, built)
            peaks["optimizer"] = max(peaks.get("optimizer", 0), counts.peak())
            for parameter in built.parameters():
                parameter.grad = None
            figures["end_of_step"] = counts.allocated()
    return {"peak": max(peaks.values()), **figures}


def moved_bytes(cell, collectives):
    """By kind. One number is no gradient: norms, and losses that are compared. Of an all-to-all a rank sees what it sends
    itself: tokens for experts, of which with an even choice each rank sends as much, or gradients of keys and values, which
    travel around a ring."""
    out = {}
    for kind, size, dtype in collectives.calls:
        if size <= getattr(torch, dtype).itemsize:
            continue
        if kind == "all_to_all":
            size *= cell.expert_parallel * cell.context_parallel  # one of which is 1
            kind = "ring_exchange" if cell.context_parallel > 1 else kind
        out[kind] = out.get(kind, 0) + size
    return out


@contextlib.contextmanager
def even_choices(cell, on_shapes):
    """If ranks have experts between them, each expert gets equally many rows, as under torchtitan's
    `_debug_force_load_balance`, so that the closed form can predict what a rank receives. Tensors `on_shapes` have no values
    for the splits of an all-to-all."""
    if cell.expert_parallel == 1:
        yield
        return
    route, split, even = experts.route, Dispatch.split, cell.tokens * cell["model.top_k"] // cell.expert_parallel

    def evenly(*arguments):
        weights, chosen = route(*arguments)
        chosen.data.copy_((torch.arange(chosen.numel(), device=chosen.device) % cell["model.experts"]).view_as(chosen))
        return weights, chosen

    experts.route = evenly
    if on_shapes:
        Dispatch.split = lambda self, counts: [even] * self.ranks
    try:
        yield
    finally:
        experts.route, Dispatch.split = route, split


def measure(operators, program, keys, rank, folder):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    cell = cells.Cell("after", {**DEFAULTS, **SMALL, **keys}, ["memory"], 0)
    if cell.has_ranks:
        start_group(operators, cell["ranks"], rank, folder)
    meshes = make_meshes(cell, program, "cpu")
    if operators == "host":
        with traffic.Collectives() as collectives, even_choices(cell, False):
            held = train(cell, program, meshes, ledger.HostLedger(), collectives=collectives)
        return {"bytes": held, "traffic": moved_bytes(cell, collectives)} if cell.has_ranks else {"bytes": held}
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, cudas_operators(), even_choices(cell, True):
        return {"bytes": train(cell, program, meshes, ShapesLedger(mode))}


def figures_of_ranks(keys, figures):
    """The figures of rank 0; if ranks have sequences between them, the most that a rank holds."""
    if keys.get("context_parallel", 1) == 1:
        return figures[0]
    bytes_of = [one["bytes"] for one in figures]
    return {**figures[0], "bytes": {name: max(one[name] for one in bytes_of) for name in bytes_of[0]}}


def figures_of(operators, program, keys):
    """Shapes follow only two of the ranks that have sequences between them, one of which holds most."""

    def run(first, count):
        return ranks.run(lambda rank, folder: measure(operators, program, keys, first + rank, folder), count)

    if operators == "host":
        return figures_of_ranks(keys, run(0, keys.get("ranks", 1)))
    parts = keys.get("context_parallel", 1)
    return figures_of_ranks(keys, [run(first, 1)[0] for first in range(max(parts - 2, 0), parts)])


def record(of_operators=None, most=None):
    rows = []
    chosen = [one for one in configurations() if of_operators in (None, one[0])]
    for operators, program, keys in chosen[:most]:
        figures = figures_of(operators, program, keys)
        rows.append({"operators": operators, "program": program, "keys": {**SMALL, **keys}, **figures})
        print(json.dumps(rows[-1]), file=sys.stderr)
    return {
        "schema": SCHEMA,
        "subject": "torch",
        "measured": f"torch {torch.__version__}, torchao {version_of('torchao')}, {datetime.date.today()}, "
        "python -m fp8lab_subjects.recording.torch_memory",
        "rows": rows,
    }


if __name__ == "__main__":
    document = record(sys.argv[1], int(sys.argv[2])) if len(sys.argv) == 3 else record()
    rows = document.pop("rows")
    head = json.dumps(document)[:-1]
    print(head + ', "rows": [\n  ' + ",\n  ".join(json.dumps(row) for row in rows) + "\n]}")
