"""Libraries next to this program's own runtime: cells that differ in what trains them, and in little else."""

import dataclasses

import units
from load import Cell, ResultSet
from records import ARMS
from tables import Table, Text, cell_link, claimed, number, shown

OWN = "own"
METRICS = (
    "memory.end_of_forward_bytes",
    "memory.peak_bytes",
    "memory.retained_bytes",
    "traffic.all_gather_bytes",
    "traffic.collectives",
    "host.pre_forward_ns",
    "parity.loss_gap",
    "time.step_ms",
)
# Keys by which cells of a library and of the own runtime may differ.
_SUBJECT = ("subject", "device", "fix", "capacity", "control")


def _kin(cell: Cell) -> tuple[str, ...]:
    """What cells that are alike have in common, so that few are compared."""
    keys = ("model.layer", "model.form", "model.layers", "model.hidden", "training.recipe", "training.checkpoint")
    return tuple(str(cell.record["config"].get(key)) for key in keys)


def _alike(a: Cell, b: Cell) -> bool:
    """True if the keys that both records have are equal; an older record lacks those that came later."""
    first, second = a.record["config"], b.record["config"]
    return all(
        first[key] == second[key]
        for key in first.keys() & second.keys()
        if key not in _SUBJECT and not key.startswith("versions.")
    )


def _subject(cell: Cell) -> str:
    return str(cell.record["config"].get("subject") or OWN)


def _version(cell: Cell, arm: str) -> str:
    key = "versions.before" if arm == "before" else "versions.after"
    return str(cell.record["config"].get(key) or "installed")


def beside_own(sets: list[ResultSet]) -> list[tuple[ResultSet, Cell, list[Cell]]]:
    """The cells of libraries that the own runtime ran too: with their set, and the own runtime's cells."""
    own: dict[tuple[str, ...], list[Cell]] = {}
    for results in sets:
        for cell in results.cells:
            if _subject(cell) == OWN and cell.record["arms"]:
                own.setdefault(_kin(cell), []).append(cell)
    found = []
    for results in sets:
        for cell in results.cells:
            near = own.get(_kin(cell), []) if _subject(cell) != OWN else []
            twins = [one for one in near if _alike(cell, one)]
            if twins:
                found.append((results, cell, twins))
    return found


def libraries_table(sets: list[ResultSet]) -> Table:
    """A row for each metric and arm of a library's cell that the own runtime ran too, the widest difference first."""
    rows = [row for results, cell, twins in beside_own(sets) for row in _rows(results, cell, twins)]
    rows.sort(key=lambda row: -abs(float(row[-1].sort or 0)))
    columns = [
        "library's cell", "set", "library", "arm", "metric", "predicted, own", "own", "predicted, library", "library",
        "upstream's claim", "library to own",
    ]  # fmt: skip
    return Table("libraries", columns, rows, search=True, facets=["library", "arm", "metric"])


def _rows(results: ResultSet, cell: Cell, twins: list[Cell]) -> list[list[Text]]:
    rows = []
    for arm in ARMS:
        twin = next((one for one in twins if one.arm(arm)), None)
        if twin is None or cell.arm(arm) is None:
            continue
        for metric in METRICS:
            library, own = cell.figure(arm, metric), twin.figure(arm, metric)
            if library.value is None or own.value is None:
                continue
            rows.append(
                [
                    cell_link(cell, cell.id),
                    Text(results.label),
                    Text(f"{_subject(cell)} {_version(cell, arm)}"),
                    Text(arm),
                    Text(metric, look="code"),
                    number(own.predicted, own.unit, "no closed form"),
                    shown(metric, own),
                    number(library.predicted, library.unit, "no profile of this release or these keys"),
                    shown(metric, library),
                    claimed([cell, *twins], metric, arm),
                    _difference(library.value, own.value),
                ]
            )
    return rows


def _difference(library: float, own: float) -> Text:
    if library == own:
        return Text("equal", 0.0, look="number")
    if own == 0:
        return Text(units.ABSENT, None, "the own runtime's is 0", look="absent")
    return Text(f"{100 * (library / own - 1):+.2f} %", library / own - 1, look="number")


FORWARD_HOLDERS = "memory.forward_by_holder."
END_OF_FORWARD = "memory.end_of_forward_bytes"
WITHIN = 0.01  # share of the bytes alive: smaller differences are agreement
NOTEWORTHY = 0.001  # a difference beyond this share gets its note, even if it is agreement


# A library's contexts hold what the own runtime's tape holds in saved slots, or on the way to the next operation.
_ROLES = {
    "parameter": "parameters",
    "optimizer_state": "optimizer state",
    "gradient": "gradients",
    "unsharded": "unsharded parameters",
    "recipe_state": "recipe state",
    "context": "saved for backward",
    "saved_slot": "saved for backward",
    "in_flight": "saved for backward",
    "input": "input and output",
    "output": "input and output",
    "workspace": "workspace",
    "module": "modules' attributes",
    "unexplained": "unexplained",
}
ALL = "all"


@dataclasses.dataclass(frozen=True)
class Known:
    """Why a library holds more under `role`, for the cells of which `of` names the keys' values."""

    role: str
    of: dict[str, tuple[str, ...]]
    text: str


_TE = ("transformer_engine",)
_KNOWN = (
    Known(
        "workspace",
        {"subject": _TE, "model.layer": ("transformer_layer",), "model.form": ("gpt",)},
        "cuBLAS's scratch of 32 MiB, which PyTorch takes from the allocator that is measured, and two bytes a token and "
        "hidden element of a layer: masks of the two compiled bias_dropout_add, which are saved at probability 0 too and "
        "by no context that can be inspected. Without dropout the own runtime has no mask.",
    ),
    Known(
        "workspace",
        {"subject": _TE},
        "cuBLAS's scratch of 32 MiB, which PyTorch takes from the allocator that is measured; the own runtime's is not "
        "part of a training's memory",
    ),
    Known(
        "saved for backward",
        {"subject": _TE, "model.layer": ("transformer_layer", "layernorm_mlp"), "training.recipe": ("delayed", "current")},
        "one byte a token and hidden element of a layer: the row-wise bytes of ln_out, which LayerNormMLP saves in addition to "
        "the transpose. Backward reads only the transpose, and the built-in runtime keeps only the transpose.",
    ),
    Known(
        "saved for backward",
        {"subject": _TE, "model.layer": ("transformer_layer", "layernorm_mlp"), "training.recipe": ("block",)},
        "row-wise bytes and scales of LayerNormMLP's two inputs, in addition to the column-wise ones. "
        "Backward reads only the column-wise ones, and the built-in runtime keeps only those.",
    ),
)


def forward_holders(cell: Cell, arm: str) -> dict[str, float]:
    """Bytes alive at the end of forward by role; empty if the arm did not measure them."""
    out: dict[str, float] = {}
    for metric in (cell.arm(arm) or {"metrics": {}})["metrics"]:
        if not metric.startswith(FORWARD_HOLDERS):
            continue
        value = cell.figure(arm, metric).value
        kind = metric.removeprefix(FORWARD_HOLDERS)
        if value:
            role = _ROLES.get(kind, kind.replace("_", " "))
            out[role] = out.get(role, 0.0) + value
    return out


def known(cell: Cell, arm: str, role: str) -> str:
    """Why the library of `cell` holds more in `arm` under `role`; empty if that is not known."""
    config = dict(cell.record["config"])
    if arm == "bf16":
        config["training.recipe"] = "bf16"
    for one in _KNOWN:
        if one.role == role and all(str(config.get(key)) in values for key, values in one.of.items()):
            return one.text
    return ""


def holders_table(sets: list[ResultSet]) -> Table:
    """For each arm of a library's cell that the own runtime ran too: a row for all bytes, and one for each holder."""
    rows = []
    for results, cell, twins in beside_own(sets):
        for arm in ARMS:
            own = next((one for one in twins if forward_holders(one, arm)), None)
            library_holds = forward_holders(cell, arm)
            if own is None or not library_holds:
                continue
            own_holds = forward_holders(own, arm)
            total, own_total = cell.figure(arm, END_OF_FORWARD).value, own.figure(arm, END_OF_FORWARD).value
            if not total or own_total is None:
                continue
            entries = [(ALL, total, own_total)]
            entries += [
                (role, library_holds.get(role, 0.0), own_holds.get(role, 0.0))
                for role in dict.fromkeys(_ROLES.values())
                if role in library_holds or role in own_holds
            ]
            rows += [_holder_row(results, cell, arm, total, *entry) for entry in entries]
    columns = [
        "library's cell", "set", "arm", "holder", "library", "own", "library less own", "of all bytes alive",
        "a token, hidden element and layer", "note",
    ]  # fmt: skip
    return Table("holders", columns, rows, search=True, facets=["set", "arm", "holder"])


def _holder_row(
    results: ResultSet, cell: Cell, arm: str, total: float, role: str, library: float, own: float
) -> list[Text]:
    difference = library - own
    share = difference / total
    agrees = abs(share) <= WITHIN
    note = known(cell, arm, role) if share > NOTEWORTHY else ""
    if not note and agrees:
        note = "within 1 %"
    elif not note and role == ALL:
        note = "beyond 1 %: the rows of its holders say why"
    return [
        cell_link(cell, cell.id),
        Text(results.label),
        Text(arm),
        Text(role),
        number(library, "B"),
        number(own, "B"),
        Text(f"{difference / units.MIB:+.2f} MiB", difference, units.exact(difference, "B"), look="number"),
        Text(f"{100 * share:+.2f} %", share, look="good" if agrees else "bad" if role == ALL else "number"),
        _each(cell, difference),
        Text(note or units.ABSENT, look="prose" if note else "absent"),
    ]


def _each(cell: Cell, difference: float) -> Text:
    """The difference over tokens x hidden x layers: a small integer is an array that one of the two saves."""
    config = cell.record["config"]
    try:
        elements = 1
        for key in ("model.seq", "model.batch", "model.hidden", "model.layers"):
            elements *= int(config[key])
    except (KeyError, TypeError, ValueError):
        return Text(units.ABSENT, None, "the record lacks a size of the model", look="absent")
    if elements <= 0:
        return Text(units.ABSENT, None, "a size of the model is 0", look="absent")
    return Text(f"{difference / elements:+.2f} B", difference / elements, look="number")
