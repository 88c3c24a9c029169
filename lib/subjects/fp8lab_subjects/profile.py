"""Makes a library's memory profile out of a run: what each layer saves, and which temporaries live at its peaks.

    python -m fp8lab_subjects.profile RUN RELEASES GPU [RUN2 FIRST2 LAST2] > lib/subjects/profiles/SUBJECT.json

RUN is the folder of `fp8lab run scenarios/subjects/transformer_engine/transformer-engine-profile{,-losses}.yaml`, with its timelines;
RELEASES is the file that lists the releases for which the profile is used (profiles/SUBJECT.releases); GPU is its name.
Rows of a second run that differ from RUN's belong only to its releases. Every block's size is a product of the model's
sizes, which the scenario's own sizes tell apart. Needs no PyTorch. What the profile means:
lib/harness/subjects/profile/memory_profile.h.
"""

import functools
import gzip
import json
import pathlib
import sys

SCHEMA = "fp8lab.memory-profile/3"
PRODUCTS = (
    "tokens*hidden", "tokens*ffn", "tokens*qkv", "tokens*kv", "tokens*heads", "hidden*hidden", "hidden*ffn",
    "hidden*qkv", "tokens", "seq*head_dim",
)
# Scratch of PyTorch's sums over tokens: of so many columns.
SUMS = {"sums(hidden)": ("hidden", 1), "sums(qkv)": ("qkv", 1), "sums(ffn)": ("ffn", 1), "sums(2*ffn)": ("ffn", 2)}
GRAIN = 512
SMALL = 16384  # bytes: such blocks are counted in bytes
COMPILED = "torch.compile"  # the owner of blocks that compiled code requests
NORM_ROWS = 528  # bytes a column of partial sums, one FP32 number for each of 132 multiprocessors
# What FusedAdam's step needs next to its state, in bytes an element of all weights, of a layer's largest and its
# last. Masters of weights in 16 bits are made one after the other in the first step, each from a copy (2 bytes) and
# its conversion (4 bytes), and only the last is made with all other state there: measured by
# transformer-engine-memory-fsdp2.yaml. By recipe for FP8 weights: measured by transformer-engine-memory-8b.yaml and
# -gpt.yaml. In form llama the largest weight is twice the last one; form gpt shows that the last one counts. The run
# for profiles has no optimizer.
ADAM_OF_16_BITS = {"all": 0, "largest": 0, "last": 6}
ADAM_OF_8_BITS = {
    "delayed": {"all": 0, "largest": 0, "last": 8},
    "current": {"all": 4, "largest": 0, "last": 4},
    "block": {"all": 4, "largest": 0, "last": 4},
}
HELD = {"output": "context", "context": "context", "gradient": "gradient"}


def sizes_of(config):
    hidden, heads = config["model.hidden"], config["model.heads"]
    head_dim = hidden // heads
    kv = (config["model.kv_heads"] or heads) * head_dim
    return {
        "hidden": hidden, "heads": heads, "kv": kv, "qkv": hidden + 2 * kv, "ffn": config["model.ffn"] or 4 * hidden,
        "seq": config["model.seq"], "head_dim": head_dim, "tokens": config["model.seq"] * config["model.batch"],
        "gated": config["model.form"] != "gpt",
    }


def value(term, sizes):
    if term == "bytes":
        return 1
    if term in SUMS:
        name, times = SUMS[term]
        columns = sizes[name] * times
        return columns * min(8 * sizes["tokens"], GRAIN * -(-(132 << 20) // (GRAIN * columns)))
    return functools.reduce(lambda product, name: product * sizes[name], term.split("*"), 1)


def multiple(size, unit):
    """How many times `unit` the size is, a number with a small denominator; None if it is no such multiple."""
    for denominator in (1, 2, 4, 8, 16, 32):
        times = round(size * denominator / unit)
        if 1 <= times <= 16 * denominator and abs(times * unit / denominator - size) <= GRAIN:
            return times / denominator
    return None


def terms_of(size, owner, sizes, unknown):
    """The size of a block as {term: coefficient}."""
    if size < SMALL:
        return {"bytes": size}
    # Sums of ffn columns and of 2 ffn columns can have one size; gated layers have the latter.
    for term in reversed(SUMS) if sizes["gated"] else SUMS:
        if size == value(term, sizes):
            return {term: 1}
    if "fused_attn_bwd" in owner:  # two sums of the gradient of queries, and a number for each head and token
        times = multiple(size - 4 * value("tokens*heads", sizes), value("tokens*hidden", sizes))
        if times:
            return {"tokens*hidden": times, "tokens*heads": 4}
    columns = size / (sizes["hidden"] * NORM_ROWS)
    if columns == round(columns) and columns <= 64 and ("orm" in owner or "backward op" in owner):
        return {"hidden": NORM_ROWS * round(columns)}
    if COMPILED in owner:  # sums over tokens have FP32 rows, whose number Inductor chooses
        for term in ("ffn", "qkv", "hidden"):
            rows = size / (4 * sizes[term])
            if rows == round(rows) and rows <= 128:
                return {term: 4 * round(rows)}
    if "FusedAttn" in owner and size <= 4 * value("tokens*heads", sizes) + GRAIN:
        return {"tokens*heads": size / value("tokens*heads", sizes)}
    for term in ("hidden", "ffn", "qkv"):  # the allocator rounds a vector up
        times = size // sizes[term]
        if times <= 64 and size - times * sizes[term] < GRAIN:
            return {term: times}
    for term in PRODUCTS:
        times = multiple(size, value(term, sizes)) if term != "tokens*heads" else None
        if times and (term != "tokens" or times == 4):
            return {term: times}
    unknown.add((size, owner))
    return {"bytes": size}


def plus(a, b, sign=1):
    out = dict(a)
    for term, times in b.items():
        out[term] = out.get(term, 0) + sign * times
    return {term: times for term, times in out.items() if abs(times) > 1e-9}


def total(by_kind):
    return functools.reduce(plus, by_kind.values(), {})


class Steps:
    """Events of a timeline between two marks."""

    def __init__(self, timeline, sizes, unknown):
        self.events, self.holders = timeline["events"], timeline["holders"]
        self.sizes, self.unknown = sizes, unknown
        self.marks = {}
        for mark in timeline["marks"]:
            self.marks.setdefault(mark["name"], mark["event"])

    def changes(self, begin, end):
        """Bytes by kind that the events add, and the moments between them: (who allocated, bytes by kind so far)."""
        now, moments = {}, []
        for delta, size, _, number, *_ in self.events[self.marks[begin] : self.marks[end]]:
            holder = self.holders[number]
            kind = HELD.get(holder["kind"], "workspace")
            sign = 1 if delta > 0 else -1
            now[kind] = plus(now.get(kind, {}), terms_of(size, holder["owner"], self.sizes, self.unknown), sign)
            if delta > 0:
                of = holder["owner"].split("].")[-1].split("[")[0]
                name = of if kind == "workspace" else f"{kind} of {of}"
                moments.append((name, {key: terms for key, terms in now.items() if terms}))
        return {kind: terms for kind, terms in now.items() if terms}, moments


def highest(moments):
    """The moments of which no other one has as much of every term."""
    totals = [total(by_kind) for _, by_kind in moments]

    def covers(a, b):
        return all(a.get(term, 0) >= b.get(term, 0) - 1e-9 for term in {*a, *b})

    def beaten(i):
        return any(j != i and covers(totals[j], totals[i]) and (j < i or not covers(totals[i], totals[j]))
                   for j in range(len(totals)))

    return [{"at": name} | by_kind for i, (name, by_kind) in enumerate(moments) if not beaten(i)]


def shapes_of(config):
    """The weights of a layer and its vectors, as terms of elements."""
    gpt = config["model.form"] == "gpt"
    norm = {"hidden": 2 if gpt else 1}
    mlp = [{"hidden*ffn": 1 if gpt else 2}, {"hidden*ffn": 1}]
    of_mlp = plus(norm, {"ffn": 1, "hidden": 1} if gpt else {})
    attention = [{"hidden*qkv": 1}, {"hidden*hidden": 1}]
    of_attention = plus(norm, {"qkv": 1, "hidden": 1} if gpt else {})
    return {
        "linear": ([{"hidden*hidden": 1}], {"hidden": 1} if gpt else {}),
        "layernorm_mlp": (mlp, of_mlp),
        "transformer_layer": (attention + mlp, plus(of_mlp, of_attention)),
    }[config["model.layer"]]


def held_at_start(steps, kind):
    return sum(delta for delta, _, _, number, *_ in steps.events[: steps.marks["start_of_step"]]
               if steps.holders[number]["kind"] == kind)


def row_of(config, timeline, unknown):
    """The profile's row of one kind of layer. The run has three layers: the one in the middle is like every other,
    and the last one, which the sum gives one number as the gradient of all elements, has moments of its own."""
    sizes = sizes_of(config)
    steps = Steps(timeline, sizes, unknown)
    weights, vectors = shapes_of(config)
    elements = sum(value(term, sizes) * times for one in weights for term, times in one.items())
    kept = held_at_start(steps, "parameter") / config["model.layers"]
    before, _ = steps.changes("start_of_step", "forward of layers[0]")
    first, _ = steps.changes("forward of layers[0]", "forward of layers[1]")
    forward, moments = steps.changes("forward of layers[1]", "forward of layers[2]")
    backward, backward_moments = steps.changes("backward of layers[1]", "backward of layers[0]")
    _, spread = steps.changes("backward of layers[2]", "backward of layers[1]")
    return {
        "layer": config["model.layer"], "form": config["model.form"], "recipe": config["training.recipe"],
        "quantized_weights": config["training.quantized_weights"],
        "weights": weights, "vectors": vectors, "bytes_of_weight": round(kept / elements),
        "adam": ADAM_OF_8_BITS[config["training.recipe"]] if config["training.quantized_weights"] else ADAM_OF_16_BITS,
        "state": round(held_at_start(steps, "recipe state") / config["model.layers"]),
        "before": total(before), "first_layer": plus(total(first), total(forward), -1),
        "forward": {"context": total(forward)}, "forward_moments": highest(moments),
        "backward": backward, "backward_moments": highest(backward_moments), "spread_moments": highest(spread),
    }, held_at_start(steps, "workspace")


def loss_of(config, timeline, unknown):
    """What a loss adds to the layers: held through the step, left by its forward, whose input it may free, and by its
    backward; then what the last layer's backward leaves more than another one's, if it was given one number for all
    elements. Moments are counted from where the last layer, or the loss's forward, has ended."""
    sizes = sizes_of(config)
    steps = Steps(timeline, sizes, unknown)
    forward = total(steps.changes("forward of layers[1]", "forward of layers[2]")[0])
    last, moments = steps.changes("forward of layers[2]", "end_of_forward")
    inside = len(steps.changes("forward of layers[2]", "end of forward of layers[2]")[1])
    gradient, loss_moments = steps.changes("end_of_forward", "backward of layers[2]")
    surplus = plus(total(steps.changes("backward of layers[2]", "backward of layers[1]")[0]),
                   total(steps.changes("backward of layers[1]", "backward of layers[0]")[0]), -1)
    step, _ = steps.changes("start_of_step", "end_of_backward")
    target = held_at_start(steps, "input") - 2 * value("tokens*hidden", sizes)

    def workspace(moment, less):
        return moment[0], {"workspace": plus(total(moment[1]), less, -1)}

    return {
        "held": terms_of(target, "target", sizes, unknown) if target > 0 else {},
        "forward": plus(total(last), forward, -1),
        "forward_moments": highest([workspace(moment, forward) for moment in moments[inside:]]),
        "kept": plus(total(step), step.get("gradient", {}), -1),
        "backward": total(gradient), "surplus": surplus, "backward_moments": highest([workspace(moment, {}) for moment in loss_moments]),
    }


def timeline_of(run, cell):
    return json.loads(gzip.decompress((run / cell["timelines"]["after"]).read_bytes()))


def rows_of(run, unknown):
    """The rows of a run, its losses, scratch and the cells."""
    cells = json.loads((run / "results.json").read_text())["cells"]
    rows, losses, scratch = [], {}, 0
    for cell in cells:
        timeline = timeline_of(run, cell)
        if cell["scenario"].endswith("-losses"):
            losses[cell["config"]["training.loss"]] = loss_of(cell["config"], timeline, unknown)
        else:
            row, scratch = row_of(cell["config"], timeline, unknown)
            rows.append(row)
    return rows, losses, scratch, cells


def kind_of(row):
    return tuple(row[key] for key in ("layer", "form", "recipe", "quantized_weights"))


def differing(rows, others, first, last):
    """Rows of `others` that are not like the row of their kind, for the releases from `first` to `last`."""
    known = {kind_of(row): row for row in rows}
    return [{"first": first, "last": last} | row for row in others if row != known[kind_of(row)]]


def main(run, releases, gpu, run2="", first2="", last2=""):
    unknown = set()
    rows, losses, scratch, cells = rows_of(pathlib.Path(run), unknown)
    if run2:
        rows = differing(rows, rows_of(pathlib.Path(run2), unknown)[0], first2, last2) + rows
    for size, owner in sorted(unknown):
        print(f"a block of {size} B of {owner} is no product of the model's sizes; it is taken as it is", file=sys.stderr)
    notes = [note for note in cells[0]["arms"]["after"]["notes"] if " is " not in note and not note.startswith("on ")]
    measured = [*notes, gpu]
    head = {"schema": SCHEMA, **json.loads(pathlib.Path(releases).read_text()), "arch": cells[0]["config"]["arch"],
            "measured": ", ".join(measured), "scratch": scratch, "losses": losses}
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    print(json.dumps(head)[:-1] + f', "rows": [\n{lines}\n]}}')


if __name__ == "__main__":
    main(*sys.argv[1:])
