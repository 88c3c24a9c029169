"""The data of figures that compare training with BF16: losses, and noise by tensor."""

import dataclasses

from figures import Plot, by_scenario, once, slug
from load import Cell, ResultSet

# --- losses -----------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class LossData:
    reference: list[float | None]
    curves: list[tuple[str, list[float | None]]]
    steps: int = 0  # number of training steps; 0: the number of losses

    def numbers(self, losses: list[float | None]) -> list[int]:
        """The step of each loss, from 1. Results of a long training keep evenly spaced losses only."""
        gaps = max(1, len(losses) - 1)
        steps = max(self.steps, len(losses))
        return [1 + i * (steps - 1) // gaps for i in range(len(losses))]

    def distances(self, losses: list[float | None]) -> list[float | None]:
        """The relative distance of each loss from BF16's; None if one is absent or both are equal."""
        return [
            abs(loss - bf16) / abs(bf16) if loss is not None and bf16 and loss != bf16 else None
            for loss, bf16 in zip(losses, self.reference)
        ]


def loss_plots(sets: list[ResultSet], most: int = 8) -> list[Plot]:
    """For each scenario the losses of every recipe and of BF16: before and after for a fix, else after only."""
    ranked: list[tuple[float, Plot]] = []
    for results in sets:
        for scenario, cells in by_scenario(results.cells).items():
            same = _comparable(cells)
            if not same:
                continue
            reference = _losses(same[0], "bf16")
            arms = ("before", "after") if same[0].fix else ("after",)
            curves = [
                (f"{cell.recipe}, {arm}" if len(arms) > 1 else cell.recipe, _losses(cell, arm))
                for cell in same
                for arm in arms
                if _losses(cell, arm)
            ]
            plot = Plot(
                f"loss-{results.index}-{slug(scenario)}",
                "losses",
                "loss",
                f"{scenario}: {cells[0].record['title']}",
                "Above the loss of each step, the mean over ranks; below its relative distance from BF16's. Shown: "
                + "; ".join(f"{cell.recipe}: {cell.point}" for cell in same)
                + ".",
                LossData(reference, curves, _steps(same[0])),
                [results.label],
            )
            # Comparisons of recipes come first, then fixes, ordered by the distance of their sides at the end.
            rank = float("inf") if not same[0].fix and len(same) > 2 else _spread(same[0])
            ranked.append((rank, plot))
    ranked.sort(key=lambda pair: -pair[0])
    return once(plot for _, plot in ranked)[:most]


def _comparable(cells: list[Cell]) -> list[Cell]:
    """The largest group of cells with equal BF16 losses, by recipe the cell that is furthest from BF16."""
    groups: dict[tuple[float | None, ...], dict[str, Cell]] = {}
    for cell in cells:
        reference = tuple(_losses(cell, "bf16"))
        if len(reference) > 1:
            best = groups.setdefault(reference, {})
            if cell.recipe not in best or _spread(cell) > _spread(best[cell.recipe]):
                best[cell.recipe] = cell
    return list(max(groups.values(), key=lambda best: (len(best), max(map(_spread, best.values()))), default={}).values())


def _losses(cell: Cell, arm: str) -> list[float | None]:
    return (cell.arm(arm) or {}).get("losses") or []


def _steps(cell: Cell) -> int:
    steps = cell.record["config"].get("training.steps")
    return steps if isinstance(steps, int) else 0


def _spread(cell: Cell) -> float:
    if not cell.fix:
        return cell.figure("after", "parity.loss_gap").value or 0.0
    return abs(
        (cell.figure("before", "parity.loss_gap").value or 0.0) - (cell.figure("after", "parity.loss_gap").value or 0.0)
    )


# --- noise by tensor --------------------------------------------------------------------------------------------------------

OF = ("output", "gradient", "weight")


@dataclasses.dataclass
class NoiseData:
    recipes: list[str]
    panels: list[tuple[str, list[str], list[list[float | None]]]]  # what is drawn, tensors, values by recipe


def noise_plots(sets: list[ResultSet], most: int = 2) -> list[Plot]:
    ranked = []
    for results in sets:
        for scenario, cells in by_scenario(results.cells).items():
            if cells[0].fix:
                continue
            chosen: dict[str, Cell] = {}
            tensors: list[str] = []
            for cell in cells:
                noise = (cell.arm("after") or {}).get("noise") or []
                names = [entry["tensor"] for entry in noise]
                if noise and (not tensors or names == tensors) and any(e["sqnr_db"] is not None for e in noise):
                    tensors = tensors or names
                    chosen.setdefault(cell.recipe, cell)
            if len(chosen) > 1:
                ranked.append((len(chosen), len(tensors), _noise_plot(results, scenario, chosen)))
    ranked.sort(key=lambda entry: (-entry[0], entry[1]))
    return once(plot for _, _, plot in ranked)[:most]


def _noise_plot(results: ResultSet, scenario: str, chosen: dict[str, Cell]) -> Plot:
    panels = []
    for of in OF:
        rows = [
            {e["tensor"]: e["sqnr_db"] for e in cell.record["arms"]["after"]["noise"] if e["of"] == of}
            for cell in chosen.values()
        ]
        names = list(rows[0])
        panels.append((of, names, [[row.get(name) for name in names] for row in rows]))
    shown = "; ".join(f"{recipe}: {cell.point}" for recipe, cell in chosen.items())
    return Plot(
        f"noise-{results.index}-{slug(scenario)}",
        "noise",
        "noise",
        f"{scenario}: {next(iter(chosen.values())).record['title']}",
        "Signal to quantization noise of each tensor against BF16's after the last step: more is nearer. A tensor that is "
        f"equal to BF16's has no noise and no mark. Shown: {shown}.",
        NoiseData(list(chosen), panels),
        [results.label],
    )
