"""Frozen layers keep their bits, and the layers behind them get the gradients that they get without frozen ones: on one
rank, under FSDP2 and under DistributedDataParallel. Needs PyTorch."""

import torch
from fp8lab_subjects import cells, ranks, sharding
from fp8lab_subjects.libraries import torch_subject
from fp8lab_subjects.recording.configurations import DEFAULTS
from fp8lab_subjects.training import Instrument, Run

LAYERS = {
    "model.layer": "transformer_layer", "model.form": "llama", "model.layers": 3, "model.hidden": 24, "model.heads": 3,
    "model.kv_heads": 1, "model.ffn": 40, "model.seq": 14, "model.batch": 2, "model.vocabulary": 0, "training.loss": "mse",
    "training.data": "normal", "training.optimizer": "adam", "training.steps": 2, "training.resume_at": 0,
    "training.param_dtype": "f32", "training.moments": "f32", "training.micro_batches": 2, "training.weight_decay": 0.1,
}  # fmt: skip
LANGUAGE = {
    **LAYERS, "training.loss": "cross_entropy", "training.data": "text", "training.tokens": "byte",
    "model.vocabulary": 256, "training.corpus": None,
}  # fmt: skip


class Keep(Instrument):
    """Keeps the initial weights, the first step's gradients, and the last weights."""

    def __init__(self):
        self.weights, self.gradients, self.trained_weights = {}, {}, {}

    def built(self, run):
        self.weights = {name: sharding.full(one.detach()).clone() for name, one in run.named_parameters()}

    def phase(self, run, name):
        if name != "optimizer" or run.step > 0:
            return
        for name, one in run.named_parameters():
            self.gradients[name] = None if one.grad is None else sharding.full(one.grad).clone()

    def trained(self, run):
        self.trained_weights = {name: sharding.full(one.detach()).clone() for name, one in run.named_parameters()}


def trained(keys, rank):
    cell = cells.Cell("after", {**DEFAULTS, **keys}, ["memory"], 0)
    kept, device = Keep(), torch.device("cpu")
    run = Run(cell, torch_subject.make(cell, device), rank, device, [kept])
    run.run()
    return run, kept


def is_frozen(name, count):
    index = name.removeprefix("layers[").split("]")[0]
    return name.startswith(("embedding", "positions")) or (index.isdigit() and int(index) < count)


def check(keys, count, rank=0):
    _, twin = trained(keys, rank)
    run, frozen = trained({**keys, "training.frozen_layers": count}, rank)
    trains = 0
    for name, gradient in frozen.gradients.items():
        what = f"{name} with {count} frozen layers, {keys}"
        moved = not torch.equal(frozen.weights[name], frozen.trained_weights[name])
        assert torch.equal(frozen.weights[name], twin.weights[name]), f"{what}: another initial value"
        if is_frozen(name, count):
            assert gradient is None, f"{what}: has a gradient"
            assert not moved, f"{what}: moved"
            continue
        trains += 1
        assert torch.equal(gradient, twin.gradients[name]), f"{what}: another gradient than without frozen layers"
        assert moved, f"{what}: did not move"
    assert trains > 0
    states = [one for one in run.optimizer.state.values() if one]
    assert len(states) == trains, f"the optimizer has states of {len(states)} parameters, and {trains} train"


def check_ranks(rank, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    for keys in [
        {**LAYERS, "ranks": 2}, {**LAYERS, "ranks": 2, "reshard_after_forward": False, "training.checkpoint": "full"},
        {**LAYERS, "ranks": 2, "sharding": "ddp"},
    ]:  # fmt: skip
        check(keys, 2, rank)
    return {}


# Ranks first: a process whose autograd threads run must not be forked.
ranks.run(check_ranks, 2)
check(LAYERS, 1)
check({**LAYERS, "model.form": "gpt", "model.kv_heads": 3, "training.checkpoint": "full"}, 2)
check(LANGUAGE, 1)
check({**LANGUAGE, "model.form": "gpt", "model.kv_heads": 3}, 3)  # trains the last norm and the head
