"""As good as BF16? An arm's loss beside BF16's, as a share of how far BF16's loss fell, against BF16's own spread; and which
cast to eight bits lost most."""

import dataclasses
import math
import statistics

import units
from load import Cell, ResultSet
from tables import Table, Text, cell_link, number

# Two-sided 95 % quantiles of Student's t distribution by degrees of freedom; above the last, the normal one's.
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
FEWEST_SEEDS = 3
DEEPSEEK = 0.0025  # the relative gap of the loss that DeepSeek-V3 states for its FP8 training, arXiv 2412.19437, 3.3


def _half_interval(values: list[float]) -> float:
    """Half the width of the 95 % interval of their mean."""
    freedom = len(values) - 1
    t = _T95[freedom - 1] if freedom <= len(_T95) else 1.96
    return t * statistics.stdev(values) / math.sqrt(len(values))


def _end(losses: list[float]) -> float:
    """The mean loss over the last tenth of the steps."""
    return statistics.fmean(losses[-max(1, len(losses) // 10) :])


def finite_losses(cell: Cell, arm: str) -> list[float] | None:
    """The losses that the results keep of the arm; None unless there are two or more, all finite."""
    losses = (cell.arm(arm) or {}).get("losses") or []
    finite = [loss for loss in losses if loss is not None and math.isfinite(loss)]
    return finite if len(losses) > 1 and len(finite) == len(losses) else None


def second_half_ratio(own: list[float], reference: list[float]) -> float | None:
    """How far the mean of the second half of `own` lies above that of `reference`, relative to it."""
    if len(own) != len(reference):
        return None
    half = len(own) - len(own) // 2
    total = sum(reference[half:])
    return (sum(own[half:]) - total) / abs(total) if total != 0 else None


def relative_gap(cell: Cell, arm: str) -> float | None:
    """How far the mean loss of the second half of the steps lies above BF16's, relative to it: `parity.mean_loss_gap`,
    which is over all steps. Records of older versions lack it; theirs is computed from the losses that they keep."""
    entry = ((cell.arm(arm) or {}).get("metrics") or {}).get("parity.mean_loss_gap")
    if entry is not None:
        return entry["value"]
    own, reference = finite_losses(cell, arm), finite_losses(cell, "bf16")
    return None if own is None or reference is None else second_half_ratio(own, reference)


@dataclasses.dataclass
class Loss:
    """Of one tensor's cast at one step."""

    tensor: str
    step: int
    sqnr_db: float
    clipped: float
    lost: float

    @property
    def words(self) -> str:
        parts = [f"{self.sqnr_db:.1f} dB"]
        parts += [f"{share:.1%} {what}" for share, what in ((self.clipped, "clipped"), (self.lost, "became 0")) if share >= 0.001]
        return f"{self.tensor}, step {self.step + 1}: {', '.join(parts)}"


def worst_cast(cells: list[Cell], arm: str) -> Loss | None:
    """The cast that left the most noise, in any of the cells and steps. The first step is left out where there are others:
    a history of amaxes is still empty there."""
    found = [
        Loss(series["tensor"], step, sqnr, clipped or 0.0, lost or 0.0)
        for cell in cells
        for series in (cell.arm(arm) or {}).get("casts") or []
        for step, sqnr, clipped, lost in zip(
            series["steps"], series["sqnr_db"], series["clip_fraction"], series["underflow_fraction"]
        )
        if sqnr is not None and (step > 0 or len(series["steps"]) == 1)
    ]
    return min(found, key=lambda loss: loss.sqnr_db, default=None)


@dataclasses.dataclass
class Gap:
    """Of one arm over its seeds. Shares are of how far BF16's loss fell; positive is behind BF16."""

    cell: Cell
    arm: str
    shares: list[float]
    ends: list[float]  # BF16's last losses, by seed
    fell: float
    worst: Loss | None = None
    relative: list[float] = dataclasses.field(default_factory=list)  # (loss - BF16's) / BF16's over the second half, by seed

    @property
    def share(self) -> float:
        return statistics.fmean(self.shares)

    @property
    def margin(self) -> float | None:
        """Half the width of the 95 % interval of `share`."""
        return _half_interval(self.shares) if len(self.shares) >= FEWEST_SEEDS else None

    @property
    def spread(self) -> float | None:
        """How far BF16's own last losses lie apart over seeds: two standard deviations."""
        return 2 * statistics.stdev(self.ends) / self.fell if len(self.ends) >= FEWEST_SEEDS else None

    @property
    def relative_words(self) -> str:
        """The relative gap of the loss with its interval, beside the bound that DeepSeek-V3 gives for its own training."""
        if len(self.relative) < len(self.shares):
            return units.ABSENT
        mean = statistics.fmean(self.relative)
        if len(self.relative) < FEWEST_SEEDS:
            return f"{mean:+.2%}"
        margin = _half_interval(self.relative)
        verdict = "within" if abs(mean) + margin <= DEEPSEEK else "beyond" if abs(mean) - margin > DEEPSEEK else "around"
        return f"{mean:+.2%} ± {margin:.2%}: {verdict} {DEEPSEEK:.2%}"

    @property
    def words(self) -> str:
        away = f"{abs(self.share):.1%} of BF16's progress {'behind' if self.share > 0 else 'ahead'}"
        spread, margin = self.spread, self.margin
        if spread is None or margin is None:
            return f"{away}; {FEWEST_SEEDS} seeds would tell whether that is within BF16's own spread"
        if abs(self.share) <= margin:
            return f"as good as BF16: {away}, and its interval contains 0"
        if abs(self.share) <= spread:
            return f"within BF16's own spread: {away}"
        cause = f"; noisiest cast: {self.worst.words}" if self.worst and self.share > 0 else ""
        return f"{away}, outside BF16's own spread{cause}"

    @property
    def is_outside(self) -> bool:
        return self.spread is not None and self.margin is not None and self.share > max(self.spread, self.margin)


def _gap(cells: list[Cell], arm: str) -> Gap | None:
    shares, ends, falls, relative = [], [], [], []
    for cell in cells:
        own, reference = finite_losses(cell, arm), finite_losses(cell, "bf16")
        if own is None or reference is None or len(own) != len(reference):
            return None
        fell = reference[0] - _end(reference)
        if fell <= 0:
            return None
        shares.append((_end(own) - _end(reference)) / fell)
        ends.append(_end(reference))
        falls.append(fell)
        gap = relative_gap(cell, arm)
        if gap is not None:
            relative.append(gap)
    return Gap(cells[0], arm, shares, ends, statistics.fmean(falls), worst_cast(cells, arm), relative)


def gaps(sets: list[ResultSet]) -> list[Gap]:
    """Of each arm that trained in eight bits while BF16's loss fell, the furthest behind first."""
    groups: dict[tuple[int, str, str], list[Cell]] = {}
    for results in sets:
        for cell in results.cells:
            if cell.recipe == "bf16":
                continue
            axes = [f"{axis}={value}" for axis, value in cell.record["axes"].items() if axis not in ("seed", "training.seed")]
            groups.setdefault((results.index, cell.scenario, ",".join(axes)), []).append(cell)
    found = (_gap(cells, arm) for cells in groups.values() for arm in ("before", "after"))
    return sorted((gap for gap in found if gap), key=lambda gap: -gap.share)


def words_table(sets: list[ResultSet]) -> Table:
    rows = [
        [
            Text(gap.words, look="bad" if gap.is_outside else "prose"),
            number(gap.share * 100, "%"),
            number(None if gap.spread is None else gap.spread * 100, "%", f"needs {FEWEST_SEEDS} seeds (matrix: seed)"),
            Text(gap.relative_words),
            number(len(gap.shares), "1"),
            Text(gap.worst.words if gap.worst else units.ABSENT, look="prose"),
            Text(gap.cell.recipe),
            Text(gap.arm),
            cell_link(gap.cell, gap.cell.scenario),
            Text(gap.cell.point, look="code"),
            Text(gap.cell.results.label),
        ]
        for gap in gaps(sets)
    ]
    return Table(
        "words",
        ["as good as BF16?", "behind BF16", "BF16's spread", "loss gap", "seeds", "noisiest cast", "recipe", "arm", "scenario", "cell", "set"],
        rows,
        caption="The loss at the end (mean over the last tenth of the steps) beside BF16's on the same data, as a share of how "
        "far BF16's loss fell. The spread is two standard deviations of BF16's last losses over seeds. Runs in which BF16's "
        "loss did not fall say nothing of this and are left out. The loss gap is relative to BF16's loss, over the second half of "
        f"the steps, with its 95 % interval over seeds; {DEEPSEEK:.2%} is what DeepSeek-V3 states of its training. The noisiest "
        "cast to eight bits is that with the least signal to noise, over seeds and steps but the first."
        if rows
        else "",
    )
