"""Libraries beside this program's own runtime: cells that differ in what trains them, and in little else."""

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


def libraries_table(sets: list[ResultSet]) -> Table:
    """A row for each metric and arm of a library's cell that the own runtime ran too, the widest difference first."""
    own: dict[tuple[str, ...], list[Cell]] = {}
    for results in sets:
        for cell in results.cells:
            if _subject(cell) == OWN and cell.record["arms"]:
                own.setdefault(_kin(cell), []).append(cell)
    rows = []
    for results in sets:
        for cell in results.cells:
            near = own.get(_kin(cell), []) if _subject(cell) != OWN else []
            twins = [one for one in near if _alike(cell, one)]
            if twins:
                rows += _rows(results, cell, twins)
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
