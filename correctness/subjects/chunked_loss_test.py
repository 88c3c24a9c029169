"""A loss in parts has the value and the gradients of one cross-entropy in double, on one rank and under FSDP2."""

import torch
import torch.nn.functional as F
from fp8lab_subjects import ranks
from fp8lab_subjects.layers import chunked_loss

TOKENS, HIDDEN, VOCABULARY, SHARE = 12, 6, 10, 0.25
# FP32 sums of at most 12 terms, and values below 10.
BOUND = 12 * 10 * 2.0**-23


def tensors(seed):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(TOKENS, HIDDEN, generator=generator, dtype=torch.float64)
    weight = torch.randn(VOCABULARY, HIDDEN, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return hidden, weight, torch.randint(VOCABULARY, (TOKENS,), generator=generator)


def in_double(seed):
    """The loss, and the gradients of what is before the head and of the head, times SHARE."""
    hidden, weight, targets = tensors(seed)
    hidden.requires_grad_(), weight.requires_grad_()
    loss = F.cross_entropy((2.0 * hidden) @ weight.T, targets)
    (SHARE * loss).backward()
    return loss.detach(), hidden.grad, weight.grad


def expect_close(got, expected, what):
    distance = (got.double() - expected).abs().max().item()
    assert distance <= BOUND, f"{what} is off by {distance}, and {BOUND} is allowed"


class Model(torch.nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.norm = torch.nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.head = torch.nn.Linear(HIDDEN, VOCABULARY, bias=False)
        with torch.no_grad():
            self.norm.weight.copy_(2.0 * torch.eye(HIDDEN))
            self.head.weight.copy_(weight)

    def forward(self, x):
        return self.norm(x)


def check(parts, seed=7):
    hidden, weight, targets = tensors(seed)
    model = Model(weight)
    x = hidden.float().requires_grad_()
    loss = chunked_loss.cross_entropy(model.head, model(x), targets, parts, SHARE)
    loss.backward()
    for got, expected, what in zip((loss.detach(), x.grad, model.head.weight.grad), in_double(seed),
                                   ("the loss", "the gradient before the head", "the gradient of the head"), strict=True):
        expect_close(got, expected, f"{what} in {parts} parts")


def check_sharded(rank, folder):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    hidden, weight, targets = tensors(rank)
    model = Model(weight)
    fully_shard([model.norm, model.head], mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh)
    for _ in range(2):  # the second step finds what the first left
        x = hidden.float().requires_grad_()
        chunked_loss.cross_entropy(model.head, model(x), targets, 4, SHARE).backward()
        mean = (in_double(0)[2] + in_double(1)[2]) / 2
        got = model.head.weight.grad.full_tensor()
        model.zero_grad()
        expect_close(x.grad, in_double(rank)[1], f"rank {rank}: the gradient before the head")
        expect_close(got, mean, f"rank {rank}: the mean gradient of the head")
    return {}


# Ranks first: a process whose autograd threads run must not be forked.
if tuple(int(one) for one in torch.__version__.split(".")[:2]) >= (2, 15):
    ranks.run(check_sharded, 2)
for count in (1, 3, 4, 12):
    check(count)
