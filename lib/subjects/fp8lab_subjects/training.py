"""Trains a cell on one rank, and reports its progress to instruments."""

import torch
import torch.nn.functional as F

from . import data, model, philox, resuming, sharding
from .layers import chunked_loss, experts


class BehindAnEmbedding(torch.autograd.Function):
    """Requires the gradient of its input and drops it, as what stands before the layers of a model does: the first
    layer then saves and computes what every other one does."""

    @staticmethod
    def forward(ctx, x, asking):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return None, None


def given_to_model(cell, x, asking):
    """`x` as the model reads it: before frozen layers nothing takes a gradient."""
    return x if cell.frozen_layers else BehindAnEmbedding.apply(x, asking)


class Instrument:
    """Watches a run. `close` is called whether training ended well or not."""

    # True: the loss is summed in more bits than the output has, and the output is kept for the instrument to read.
    reads_values = False

    def phase(self, run, name):
        """A phase begins: setup, idle, forward, backward or optimizer."""

    def mark(self, run, name, last):
        """end_of_forward, end_of_backward or end_of_step was reached; `last`: of the last step."""

    def built(self, run):
        """Model, sharding and optimizer are there; training has not begun."""

    def trained(self, run):
        """Training has ended."""

    def close(self):
        pass

    def results(self, run):
        """Metrics by name: (value or None, unit, reason)."""
        return {}


class Run:
    """One rank's training. Attributes are what instruments read."""

    def __init__(self, cell, subject, rank, device, instruments):
        self.cell, self.subject, self.rank, self.device = cell, subject, rank, device
        self.instruments = instruments
        self.model = self.optimizer = self.x = self.target = self.output = self.loss = None
        self.called = None  # the model, or DistributedDataParallel around it
        self.losses, self.step, self.retained_by_holder, self.notes = [], 0, [], []
        self.peak_by_holder, self.timeline = [], ""
        self.asking = torch.zeros(0, requires_grad=True)

    def _tell(self, what, *arguments):
        for instrument in self.instruments:
            getattr(instrument, what)(self, *arguments)

    def named_parameters(self):
        """Parameters with the names of the runtime."""
        return [(self.subject.own_name(name), parameter) for name, parameter in self.model.named_parameters()]

    def make(self):
        # What the library draws by itself: dropout, and initial values, whose amax a scale under delayed scaling keeps
        # after fill() has replaced them. PyTorch gives each process another seed.
        torch.manual_seed(self.cell["training.seed"])
        self.model = self.subject.make_model()
        model.freeze(self.cell, self.model)
        if self.cell.sharded:
            sharding.shard(self.cell, self.model, self.device.type)
            self.subject.sharded(self.model)
        self.subject.fill(self.model)
        self.called = sharding.replicated(self.cell, self.model)
        self.optimizer = self.subject.make_optimizer(self.model)

    def build(self):
        self._tell("phase", "setup")
        self.make()
        self._tell("built")

    def make_inputs(self, micro_batch):
        cell = self.cell
        number = (self.rank if cell.has_ranks else 0) * cell["training.micro_batches"] + micro_batch
        if cell.vocabulary:
            tokens, targets = data.batch(cell, self.step, number * cell["model.batch"])
            self.x, self.target = tokens.to(self.device), targets.to(self.device)
            return
        self.x = self.make_input("x", number * cell.tokens)
        if cell["training.loss"] == "mse":
            is_taught = cell["training.data"] == "teacher"
            self.target = data.teach(cell, self.x) if is_taught else self.make_input("target", number * cell.tokens)

    def make_input(self, name, first_row):
        cell = self.cell
        rows = cell.tokens
        values = torch.empty(rows, cell["model.hidden"], dtype=self.subject.dtype, device=self.device)
        philox.fill_normal(
            values,
            seed=cell["training.seed"],
            name=name,
            add_to_stream=self.step,
            first_index=first_row * cell["model.hidden"],
        )
        return values

    @property
    def reads_values(self):
        return any(instrument.reads_values for instrument in self.instruments)

    def loss_of(self, output):
        """The loss as a training loop writes it: in the output's type, except for logits. Values that are scored have
        more bits, whose copies no figure of memory or time holds."""
        if self.cell.vocabulary:
            return F.cross_entropy(output.float(), self.target)
        if self.reads_values:
            output = output.float()
        if self.target is not None:
            return F.mse_loss(output, self.target.to(output.dtype))
        return output.sum(dtype=torch.float64).float() if self.reads_values else output.sum()

    def forward(self):
        """Makes the loss. Nothing but its graph holds the output, unless an instrument reads that."""
        output = self.subject.forward(self.called, given_to_model(self.cell, self.x, self.asking))
        if self.cell.loss_chunks > 1:
            head, parts = self.model.logits_of, self.cell.loss_chunks
            self.loss = chunked_loss.cross_entropy(head, output, self.target, parts, self.cell.loss_share)
            return
        self.loss = self.loss_of(output)
        self.output = output if self.reads_values else None

    def backward(self, loss):
        share = self.cell.loss_share
        loss.backward(None if share == 1.0 else torch.full_like(loss, share))

    def synchronize(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def is_last(self, micro_batch):
        return micro_batch + 1 == self.cell["training.micro_batches"]

    def pass_micro_batch(self, index):
        with sharding.passing(self.called, self.is_last(index)):
            self._pass_micro_batch(index)

    def _pass_micro_batch(self, index):
        last = self.step + 1 == self.cell["training.steps"] and self.is_last(index)
        self._tell("phase", "idle")
        self.x = self.target = self.output = self.loss = None
        self.make_inputs(index)
        self.subject.micro_batch = index
        self._tell("phase", "forward")
        self.forward()
        self._tell("mark", "end_of_forward", last)
        if index == 0:
            self.losses.append(0.0)
        self.losses[-1] += self.cell.loss_share * self.loss.item()
        self._tell("phase", "backward")
        self.backward(self.loss)
        if not self.cell["training.keep_loss"]:
            self.output = self.loss = None
        self._tell("mark", "end_of_backward", last)

    def train(self):
        for self.step in range(self.cell["training.steps"]):
            if 0 < self.step == self.cell["training.resume_at"]:
                resuming.resume(self)
            for index in range(self.cell["training.micro_batches"]):
                self.pass_micro_batch(index)
            self._tell("phase", "optimizer")
            if self.optimizer is not None:
                self.optimizer.step()
                self.subject.stepped(self.model)
            experts.update_biases(self.cell, self.model)
            for parameter in self.model.parameters():
                parameter.grad = None
            self._tell("phase", "idle")
            self._tell("mark", "end_of_step", self.step + 1 == self.cell["training.steps"])
        self._tell("trained")

    def run(self):
        try:
            self.build()
            self.train()
            metrics = {}
            for instrument in self.instruments:
                metrics.update(instrument.results(self))
            return metrics
        finally:
            for instrument in self.instruments:
                instrument.close()
