"""Which model a watched program trains, and how: what `fp8lab plan OUT` needs to predict its memory."""

import math

import torch

from ..fsdp_private import reshards, state_of
from . import words

SCHEMA = "fp8lab.model/1"
ADAM = ("Adam", "AdamW", "FusedAdam")
DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16"}


class Observed:
    """What is seen while steps run."""

    def __init__(self):
        self.micro_batches = 0  # backward passes before the last step of the optimizer
        self.autocast = False
        self.recomputes = False  # a module ran in backward
        self._backwards = 0
        self._tokens = {}  # size of an embedding's vocabulary: the shape of the tokens that it was called with
        self._inputs = None  # the shape of the tokens that the model was called with

    def enters(self, module, inputs, device):
        if isinstance(module, torch.nn.Embedding) and has_tokens(inputs):
            self.autocast = torch.is_autocast_enabled(device)
            self._tokens.setdefault(module.num_embeddings, tuple(inputs[0].shape))

    def model_begins(self, inputs):
        if self._inputs is None and has_tokens(inputs):
            self._inputs = tuple(inputs[0].shape)

    def backward_begins(self):
        self._backwards += 1

    def step_ends(self):
        self.micro_batches, self._backwards = self._backwards, 0

    def tokens(self, vocabulary):
        """(sequences, tokens of each) of a micro-batch, or None."""
        return self._tokens.get(vocabulary) or self._inputs


def has_tokens(inputs):
    """True for tokens that a model trains on."""
    if not inputs or not isinstance(inputs[0], torch.Tensor) or not torch.is_grad_enabled():
        return False
    return inputs[0].dtype == torch.int64 and inputs[0].dim() == 2


def trained_model(session):
    """{"schema", "model": its class, "config": what a Hugging Face config.json contains, or None, "unknown": why it is
    None, "keys": scenario keys by path, "differs": how the program differs from a plan with these keys, in words}"""
    name = ", ".join(type(model).__name__ for _, model in session.models()) or "no module"
    out = {"schema": SCHEMA, "model": name, "config": None, "unknown": "", "keys": {}, "differs": []}
    try:
        config = config_of(session)
        for keys, differs in (batch_of(session, config), precision_of(session), layers_of(session),
                              recomputation_of(session), updates_of(session)):
            out["keys"] |= keys
            out["differs"] += differs
    except Exception as error:  # attributes of the program raised it
        return out | {"unknown": f"reading how {name} is trained raised {type(error).__name__}: {error}"}
    if session.device == "cpu":
        out["keys"]["device"] = "cpu"
    if config is None:
        out["unknown"] = f"{name} has no Hugging Face config"
    return out | {"config": config}


def modules_of(session):
    return [module for _, model in session.models() for module in model.modules()]


def config_of(session):
    """The config of the outermost module that has one, without nested members; None if there is none."""
    for module in modules_of(session):
        config = getattr(module, "config", None)
        if isinstance(getattr(config, "model_type", None), str) and callable(getattr(config, "to_dict", None)):
            return {key: value for key, value in config.to_dict().items() if is_plain(value)} | {
                "model_type": config.model_type}
    return None


def is_plain(value):
    if isinstance(value, (list, tuple)):
        return all(isinstance(item, (bool, int, float, str)) for item in value)
    return isinstance(value, (bool, int, float, str))


def batch_of(session, config):
    keys, differs = {}, []
    shape = session.observed.tokens((config or {}).get("vocab_size"))
    if shape is None:
        differs.append("the tokens of its batches were not seen: planned is one sequence of the model's length")
    else:
        keys["model.batch"], keys["model.seq"] = shape
    if session.observed.micro_batches > 1:
        keys["training.micro_batches"] = session.observed.micro_batches
    return keys, differs


def precision_of(session):
    """Types of parameters and gradients, and who holds them."""
    parameters = [parameter for _, model in session.models() for parameter in model.parameters()]
    dtypes = {parameter.dtype for parameter in parameters}
    kept = DTYPES.get(next(iter(dtypes))) if len(dtypes) == 1 else None
    differs = []
    if kept is None:
        kept = "bf16"
        differs.append(f"its parameters have {words.names(sorted(str(one) for one in dtypes))}: planned is bf16")
    if session.observed.autocast:
        differs.append(f"it computes under autocast: planned layers compute in the parameters' type, {kept}")
    classes = {type(module).__name__: module for module in modules_of(session)}
    if "FullyShardedDataParallel" in classes:
        differs.append("it is sharded by FSDP1: planned is FSDP2")
        return {"training.param_dtype": kept, "training.master_weights": "none", "training.moments": kept}, differs
    replicas = classes.get("DistributedDataParallel")
    if getattr(replicas, "gradient_as_bucket_view", False):
        differs.append("its gradients are views of DistributedDataParallel's buckets: planned are buckets next to them")
    shards = shards_of(parameters)
    states = [state for state in map(state_of, modules_of(session)) if state is not None]
    if shards is not None and not states:
        differs.append("its parameters are divided without FSDP2, as by tensor parallelism: planned are entire ones")
    if shards is None or not states:
        keys = {"training.param_dtype": kept, "training.master_weights": "none", "training.moments": kept}
        if replicas is not None:
            keys["sharding"] = "ddp"
        elif session.world() > 1:
            keys["mesh"] = f"{session.world()}x1"
        return keys, differs
    policy = getattr(states[-1], "_mp_policy", None)  # a layer's: the outermost comes first
    if len(states) == 1:
        differs.append("FSDP2 gathers all parameters as one group: planned is a group for each layer")
    computes = DTYPES.get(getattr(policy, "param_dtype", None), kept)
    has_masters = (kept, computes) == ("f32", "bf16")
    keys = {"training.param_dtype": computes, "training.master_weights": "f32" if has_masters else "none",
            "training.moments": kept}
    if getattr(policy, "reduce_dtype", None) in DTYPES:
        keys["reduce_dtype"] = DTYPES[policy.reduce_dtype]
    if len(states) > 1 and not any(map(reshards, states[1:])):
        keys["reshard_after_forward"] = False
    if shards != session.world():
        keys["mesh"] = f"{session.world() // shards}x{shards}"
    return keys, differs


def shards_of(parameters):
    """Over how many ranks the first sharded parameter is split; None if none is."""
    for parameter in parameters:
        mesh, placements = getattr(parameter, "device_mesh", None), getattr(parameter, "placements", ())
        sharded = [index for index, placement in enumerate(placements) if placement.is_shard()]
        if mesh is not None and sharded:
            return math.prod(mesh.size(index) for index in sharded)
    return None


def recomputation_of(session):
    if any(getattr(module, "gradient_checkpointing", False) for module in modules_of(session)):
        return {"training.checkpoint": "full"}, []
    if session.observed.recomputes:
        return {"training.checkpoint": "full"}, ["it recomputes modules in backward: planned is recomputation of all layers"]
    return {}, []


def layers_of(session):
    """What the layers of a plan lack."""
    differs = []
    sources = {type(module).__module__.partition(".")[0] for module in modules_of(session)}
    eight_bits = sorted(sources & {"torchao", "transformer_engine"})
    if eight_bits:
        differs.append(f"it has layers of {words.names(eight_bits)}: planned are PyTorch's")
    if any(isinstance(module, torch.nn.Dropout) and module.p > 0 and module.training for module in modules_of(session)):
        differs.append("it has dropout, whose masks need memory: planned are layers without")
    if any(type(module).__name__ == "OptimizedModule" for module in modules_of(session)):
        differs.append("it is compiled: planned is an eager program")
    parameters = [parameter for _, model in session.models() for parameter in model.parameters()]
    frozen = sum(not parameter.requires_grad for parameter in parameters)
    if frozen:
        differs.append(f"{frozen} of {words.counted(len(parameters), 'parameter')} are frozen: planned are gradients and "
                       "moments of all")
    return {}, differs


def updates_of(session):
    names = sorted({type(one).__name__ for one in session.optimizers()})
    if names and all(name in ADAM for name in names):
        return {}, []
    return {}, [f"its optimizer is {words.names(names) or 'not known'}: planned is AdamW"]
