"""What one key changes: cells of a scenario next to the cell that differs from them only by that key, one line each."""

import dataclasses

from load import Cell, ResultSet
from parity_words import finite_losses, second_half_ratio
from tables import Table, Text, cell_link
from units import figure

# What a line gives in addition to the loss: a metric, what it is in words, and how much of it counts as a difference.
_BESIDE = (
    ("parity.grad_sqnr_db", "gradients compared with the cell's own BF16 arm", 1.0),
    ("parity.clip_fraction", "clipped", 0.001),
    ("parity.underflow_fraction", "underflowed", 0.001),
    ("memory.end_of_step_bytes", "kept between steps", 1.0),
    ("memory.peak_bytes", "peak", 1.0),
)
_SEEDS = ("seed", "training.seed")
# Losses of cells that differ by one of these belong to other data, another number of tokens or another model.
_LOSSES_APART = frozenset(
    ("seed", "batch", "seq", "micro_batches", "ranks", "mesh", "corpus", "tokens", "data", "loss", "steps")
    + ("layer", "layers", "hidden", "heads", "kv_heads", "ffn", "experts", "split", "vocabulary")
)


@dataclasses.dataclass
class Ablation:
    """One key's value against the cell without it."""

    key: str
    value: str
    cell: Cell
    base: Cell

    @property
    def where(self) -> str:
        shared = [f"{axis}={value}" for axis, value in self.base.record["axes"].items() if axis not in ("device", *_SEEDS)]
        return ", ".join(shared)

    @property
    def gap(self) -> float | None:
        """How far the mean loss of the second half of the steps lies above the base's, relative to it; None if the key
        makes losses incomparable. BF16's losses have no part in this: BF16 trains with the key too."""
        own, other = finite_losses(self.cell, "after"), finite_losses(self.base, "after")
        if self.key.rpartition(".")[2] in _LOSSES_APART or own is None or other is None:
            return None
        return second_half_ratio(own, other)

    @property
    def words(self) -> str:
        gap = self.gap
        parts = ["the loss decides nothing" if gap is None else "the same loss" if gap == 0 else f"loss {gap:+.2%}"]
        for metric, what, least in _BESIDE:
            own, other = self.cell.figure("after", metric), self.base.figure("after", metric)
            if own.value is None or other.value is None or abs(own.value - other.value) < least:
                continue
            was, now = (figure(one.value, one.unit) for one in (other, own))
            parts.append(f"{what} {was} → {now}")
        return "; ".join(parts)


def ablations(sets: list[ResultSet]) -> list[Ablation]:
    """Every cell with one axis more than another cell of its scenario, and otherwise the same axes."""
    found = []
    for results in sets:
        cells = [cell for cell in results.cells if not cell.fix and cell.arm("after")]
        by_axes = {(cell.scenario, frozenset(cell.record["axes"].items())): cell for cell in cells}
        for cell in cells:
            axes = frozenset(cell.record["axes"].items())
            for axis, value in cell.record["axes"].items():
                base = by_axes.get((cell.scenario, axes - {(axis, value)}))
                if base:
                    found.append(Ablation(axis, value, cell, base))
    return found


def ablations_table(sets: list[ResultSet]) -> Table:
    rows = [
        [
            Text(f"{one.key}: {one.value}", look="code"),
            Text(one.where),
            Text(one.words, one.gap, look="prose"),
            cell_link(one.cell, one.cell.scenario),
            Text(one.cell.results.label),
        ]
        for one in ablations(sets)
    ]
    return Table(
        "ablations",
        ["key", "of", "what it changes", "scenario", "set"],
        rows,
        caption="Cells that set one key more than another cell of their scenario. The loss is the mean over the second half of "
        "the steps, and its change relative to the loss without the key; a key that changes data or model leaves nothing to compare. "
        "Figures are those without the key, then with it."
        if rows
        else "",
    )
