"""A mixture of experts has the output and the gradients of its definition, token by token in double: with grouped products
and with one product for each expert, of both routers, with experts that no token has, with biases and groups of the
choice, with an auxiliary loss, under FSDP2, and with the experts divided among ranks."""

import torch
import torch.nn.functional as F
from fp8lab_subjects import abilities, cells, model, ranks, sharding, training
from fp8lab_subjects.layers import experts
from fp8lab_subjects.libraries import torch_subject
from fp8lab_subjects.recording import published_model, torch_memory
from fp8lab_subjects.versions import CHECKOUT

TOKENS = 24
KEYS = {
    "model.layer": "layernorm_mlp", "model.form": "llama", "model.hidden": 16, "model.heads": 2, "model.kv_heads": 2,
    "model.ffn": 0, "model.seq": TOKENS, "model.batch": 1, "model.layers": 1, "model.vocabulary": 0, "model.experts": 6,
    "model.top_k": 2, "model.expert_ffn": 8, "training.param_dtype": "f32", "model.router_scale": 1.0, "training.seed": 3,
    "model.init_std": 0.4, "model.router": "softmax", "model.expert_groups": 0, "model.top_groups": 0,
    "model.router_bias_rate": 0.0, "model.router_aux_loss": 0.0, "training.loss": "mse", "training.micro_batches": 4,
}  # fmt: skip
# Sums in FP32 of at most 48 terms, and values below 10.
BOUND = 48 * 10 * 2.0**-23


def cell_of(**keys):
    changed = {name.replace("__", "."): value for name, value in keys.items()}
    return cells.Cell("after", {**torch_memory.DEFAULTS, **KEYS, **changed}, ["parity"], 0)


def filled(cell, dtype):
    built = model.ExpertMlp(cell, torch.device("cpu"), torch.float32)
    for name, parameter in built.named_parameters():
        model.fill_parameter(parameter.data, model.own_name(f"layers.0.{name}"), cell, 0)
    if built.balance is not None:
        built.balance.biases.copy_(torch.linspace(-0.3, 0.3, cell["model.experts"]))
    return built.to(dtype)


def input_of(cell, dtype):
    generator = torch.Generator().manual_seed(7)
    return torch.randn(cell.tokens, cell["model.hidden"], generator=generator).to(dtype).requires_grad_()


def gated(x, first, last):
    gate, up = (x @ first.T).chunk(2, dim=-1)
    return (F.silu(gate) * up) @ last.T


def chosen_of(cell, logits, balance):
    """The experts of one token, the first one first."""
    scores = torch.sigmoid(logits) if balance is None else torch.sigmoid(logits) + balance.biases
    scores = scores.tolist()
    count = cell.expert_groups or 1
    size = len(scores) // count
    groups = [range(size * group, size * (group + 1)) for group in range(count)]
    groups.sort(key=lambda group: -sum(sorted(scores[e] for e in group)[-2:]))
    allowed = [e for group in groups[: cell["model.top_groups"] or 1] for e in group]
    return torch.tensor(sorted(allowed, key=lambda e: -scores[e])[: cell["model.top_k"]])


def defined(cell, built, x):
    """The sum over each token's experts, as the runtime's page defines it."""
    n = F.rms_norm(x, x.shape[1:], built.norm.weight, model.EPSILON)
    rows = []
    for token in n:
        logits = built.router.weight @ token
        chosen = chosen_of(cell, logits, built.balance)
        scores = torch.sigmoid(logits) if cell["model.router"] == "sigmoid" else logits.exp()
        weights = cell["model.router_scale"] * scores[chosen] / scores[chosen].sum()
        row = sum(w * gated(token, built.fc1.weight[e], built.fc2.weight[e]) for w, e in zip(weights, chosen.tolist()))
        if built.shared_fc1 is not None:
            row = row + gated(token, built.shared_fc1.weight, built.shared_fc2.weight)
        rows.append(row)
    return torch.stack(rows)


def auxiliary_loss(cell, built, x):
    """The loss that the router's choices give, as the runtime defines it, times the share of these tokens in the step."""
    n = F.rms_norm(x, x.shape[1:], built.norm.weight, model.EPSILON)
    choices, probabilities = [0] * cell["model.experts"], 0
    for token in n:
        logits = built.router.weight @ token
        for expert in chosen_of(cell, logits, built.balance).tolist():
            choices[expert] += 1 / (len(n) * cell["model.top_k"])
        scores = torch.sigmoid(logits) if cell["model.router"] == "sigmoid" else logits.exp()
        probabilities = probabilities + scores / scores.sum() / len(n)
    loss = cell["model.router_aux_loss"] * len(choices) * sum(c * p for c, p in zip(choices, probabilities))
    return loss / cell["training.micro_batches"]


def expect_close(got, expected, what):
    distance = (got.double() - expected).abs().max().item()
    assert distance <= BOUND, f"{what} is off by {distance}, and {BOUND} is allowed"


def check(cell, takes_groups):
    built, exact = filled(cell, torch.float32), filled(cell, torch.float64)
    assert experts.takes_groups(built.fc1.weight) == takes_groups
    assert not experts.takes_groups(exact.fc1.weight)
    x, x_exact = input_of(cell, torch.float32), input_of(cell, torch.float64)
    output, expected = built(x), defined(cell, exact, x_exact)
    expect_close(output.detach(), expected.detach(), "the output")
    factor = torch.linspace(-1, 1, output.numel()).view_as(output)
    (output * factor).sum().backward()
    ((expected * factor).sum() + auxiliary_loss(cell, exact, x_exact)).backward()
    expect_close(x.grad, x_exact.grad, "the gradient of the input")
    for (name, one), other in zip(built.named_parameters(), exact.parameters(), strict=True):
        expect_close(one.grad, other.grad, f"the gradient of {name}")
    again = filled(cell, torch.float64)  # the same operations in double
    x_again = input_of(cell, torch.float64)
    expect_close(again(x_again).detach(), expected.detach(), "the output in double")


def check_biases():
    """The bias of an expert rises if it has fewer tokens than the mean of its layer, and counts begin again."""
    cell = cell_of(model__router="sigmoid", model__router_bias_rate=0.25, model__experts=3)
    built = torch.nn.ModuleList(experts.make_balance(cell, torch.device("cpu")) for _ in range(2))
    built[0].counts.copy_(torch.tensor([5.0, 0.0, 1.0]))
    built[1].counts.copy_(torch.tensor([7.0, 8.0, 9.0]))
    experts.update_biases(cell, built)
    assert [one.biases.tolist() for one in built] == [[-0.25, 0.25, 0.25], [0.25, 0.0, -0.25]]
    assert all(one.counts.tolist() == [0.0] * 3 for one in built)


def published(cell):
    """The mixture with products of their own for gate and up, and the weights of filled()."""
    of, built = filled(cell, torch.float32), published_model.Mixture(cell, torch.device("cpu"), torch.float32)
    with torch.no_grad():
        built.router.weight.copy_(of.router.weight)
        for mine, both in ((built, of.fc1.weight), (built.shared, None if of.shared_fc1 is None else of.shared_fc1.weight)):
            if mine is not None:
                gate, up = both.chunk(2, dim=-2)
                mine.gate.weight.copy_(gate)
                mine.up.weight.copy_(up)
        built.down.weight.copy_(of.fc2.weight)
        if built.shared is not None:
            built.shared.down.weight.copy_(of.shared_fc2.weight)
    return of, built


def check_published(cell):
    of, built = published(cell)
    x = input_of(cell, torch.float32)
    shared = None if of.shared_fc1 is None else of.run_shared
    expected = experts.mix(cell, x, of.router, of.run_experts, shared, of.balance)
    expect_close(built(x.view(1, *x.shape))[0].detach(), expected.detach().double(), "the output of torchtitan's layout")


class Flat(torch.nn.Module):
    """A mixture that reads tokens in sequences."""

    def __init__(self, mixture):
        super().__init__()
        self.mixture = mixture

    def forward(self, x):
        return self.mixture(x[0])[None]


class Layers(torch.nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)
        self.embedding, self.norm, self.head = (torch.nn.Identity() for _ in range(3))

    def forward(self, x):
        return self.layers[0](x)


def check_sharded(rank, folder):
    """More shards than experts: FSDP2 divides the rows of each expert, or pads the number of experts."""
    torch.set_num_threads(1)
    method = f"file://{folder}/rendezvous"
    torch.distributed.init_process_group("gloo", init_method=method, rank=rank, world_size=4)
    cell = cell_of(model__experts=3, ranks=4)
    mesh = sharding.make_mesh(cell, "cpu")
    x = input_of(cell, torch.float32).detach()[None]
    for make, shard in (
        (lambda: published(cell)[1], lambda built: published_model.shard(cell, built, mesh)),
        (lambda: Flat(filled(cell, torch.float32)), lambda built: sharding.shard(cell, built, "cpu", mesh)),
    ):
        alone, built = make(), Layers(make())
        alone(x).square().sum().backward()
        shard(built)
        built(x).square().sum().backward()
        for (name, one), other in zip(alone.named_parameters(), built.layers[0].parameters(), strict=True):
            expect_close(other.grad.full_tensor(), one.grad.double(), f"the gradient of {name} over four shards")
    return {}


class WithMlp(torch.nn.Module):
    """A layer in the form that published_model.shard() requires."""

    def __init__(self, mlp):
        super().__init__()
        self.mlp = mlp

    def forward(self, x):
        return self.mlp(x)


def check_dispatched(rank, folder, cell):
    """Ranks in pairs have the experts between them, and pairs shard them. Each rank has other tokens. The
    reference is one rank with all experts, which trains with the tokens of all."""
    torch.set_num_threads(1)
    count = cell["ranks"]
    method = f"file://{folder}/rendezvous"
    torch.distributed.init_process_group("gloo", init_method=method, rank=rank, world_size=count)
    meshes = published_model.make_meshes(cell, "cpu")
    alone = published(cell.changed(expert_parallel=1))[1]
    mixture = published_model.Mixture(cell, torch.device("cpu"), torch.float32)
    own = meshes[1].get_local_rank("experts")
    with torch.no_grad():
        for one, other in zip(mixture.parameters(), alone.parameters(), strict=True):
            one.copy_(other if other.dim() < 3 else other.chunk(cell.expert_parallel)[own])
    tokens = [torch.randn(1, cell.tokens, cell["model.hidden"], generator=torch.Generator().manual_seed(i)) for i in range(count)]
    outputs = [alone(x) for x in tokens]
    sum(y.square().sum() / count for y in outputs).backward()
    built = Layers(WithMlp(mixture))
    published_model.shard(cell, built, *meshes)
    x = tokens[rank].requires_grad_()
    y = built(x)
    (y.square().sum() / count).backward()
    expect_close(y.detach(), outputs[rank].detach().double(), "the output with experts on other ranks")
    for (name, one), other in zip(alone.named_parameters(), mixture.parameters(), strict=True):
        of_experts = one.dim() == 3
        expected = (one.grad.chunk(cell.expert_parallel)[own] if of_experts else one.grad).double()
        # FSDP2 takes the mean over the ranks that shard a parameter.
        expected /= count // cell.expert_parallel if of_experts else count
        expect_close(other.grad.full_tensor(), expected, f"the gradient of {name} with experts on other ranks")
    return {}


def trained_once(cell, rank):
    """Initial values and gradients of the worker's model by name. Each has the rows for all experts."""
    run = training.Run(cell, torch_subject.make(cell, torch.device("cpu")), rank, torch.device("cpu"), [])
    run.make()
    values = {name: sharding.full(one.detach()).clone() for name, one in run.named_parameters()}
    for index in range(cell["training.micro_batches"]):
        run.pass_micro_batch(index)
    gradients = {name: sharding.full(one.grad) for name, one in run.named_parameters()}
    return values, gradients


def check_parallel(rank, folder, cell):
    """The worker's model with experts on other ranks has the initial values and the gradients of the model in which every
    rank has all experts. Gradients are means over all ranks."""
    torch.set_num_threads(1)
    method = f"file://{folder}/rendezvous"
    torch.distributed.init_process_group("gloo", init_method=method, rank=rank, world_size=cell["ranks"])
    (values, gradients), (own_values, own_gradients) = (
        trained_once(cell.changed(expert_parallel=parts), rank) for parts in (1, cell.expert_parallel)
    )
    for name, expected in values.items():
        assert torch.equal(own_values[name], expected), f"{name} begins with other values on rank {rank}"
    for name, expected in gradients.items():
        distance, largest = (own_gradients[name] - expected).abs().max().item(), expected.abs().max().item()
        assert distance <= 1e-5 * largest, f"the gradient of {name} is off by {distance}; it is at most {largest}"
    return {}


def check_releases():
    """Experts on other ranks need a newer PyTorch than experts on every rank."""
    known = abilities.version_of
    for version, key in (("2.14.1", "expert_parallel"), ("2.15.0", ""), (CHECKOUT, "")):
        abilities.version_of = lambda _, version=version: version
        assert abilities.needs_newer(cell_of(ranks=2, expert_parallel=2)).partition(":")[0] == key
        assert not abilities.needs_newer(cell_of(ranks=2))
    abilities.version_of = known


def main():
    # Ranks first: a process whose autograd threads run must not be forked.
    if tuple(int(one) for one in torch.__version__.split(".")[:2]) >= (2, 8):
        ranks.run(check_sharded, 4)
    if tuple(int(one) for one in torch.__version__.split(".")[:2]) >= (2, 15):  # FSDP2 has groups over two meshes
        for keys in [
            {"ranks": 4, "expert_parallel": 2}, {"ranks": 2, "expert_parallel": 2, "model__experts": 40},
            {"ranks": 4, "expert_parallel": 2, "model__experts": 2, "model__top_k": 1},
        ]:  # fmt: skip
            of = cell_of(**keys)
            ranks.run(lambda rank, folder, of=of: check_dispatched(rank, folder, of), of["ranks"])
        for keys in [
            {"ranks": 2, "expert_parallel": 2}, {"ranks": 4, "expert_parallel": 2, "model__experts": 2},
            {"ranks": 4, "expert_parallel": 2, "mesh": "2x2", "model__router_aux_loss": 2.0},
        ]:  # fmt: skip
            of = cell_of(**keys, training__optimizer="none", training__loss="sum", training__steps=1)
            ranks.run(lambda rank, folder, of=of: check_parallel(rank, folder, of), of["ranks"])
    has_groups = experts._has_grouped_product(torch.device("cpu"), torch.float32)
    check(cell_of(), has_groups)
    check(cell_of(model__top_k=1), has_groups)
    check(cell_of(model__top_k=4, model__router="sigmoid", model__router_scale=2.5, model__shared_experts=2), has_groups)
    check(cell_of(model__experts=40, model__shared_experts=1), has_groups)  # most have no token
    check(cell_of(model__expert_ffn=7, model__experts=40), False)
    limits = {"model__router": "sigmoid", "model__experts": 12, "model__top_k": 3}
    for keys in [
        {"model__router_bias_rate": 0.1}, {"model__expert_groups": 4, "model__top_groups": 2},
        {"model__router_bias_rate": 0.1, "model__expert_groups": 3, "model__top_groups": 1},
    ]:  # fmt: skip
        check(cell_of(**limits, **keys), has_groups)
    for keys in [{}, {"model__top_k": 1}, {**limits, "model__router_bias_rate": 0.1}, {"model__experts": 40}]:
        check(cell_of(**keys, model__router_aux_loss=20.0), has_groups)
    check_releases()
    check_biases()
    check_published(cell_of())
    check_published(cell_of(model__router="sigmoid", model__shared_experts=2))
    dense = cell_of(model__dense_layers=2)
    assert [dense.of_layer(index).routes for index in range(3)] == [False, False, True]


if __name__ == "__main__":
    main()
