"""As good as BF16? An arm's loss compared with BF16's, as a share "
        "of how far BF16's loss fell, against BF16's own spread; and which
cast to eight bits lost most. Arms that revert a fix, and runs too short to tell, are not judged."""

import dataclasses
import math
import statistics

import units
from load import Cell, ResultSet
from tables import Table, Text, cell_link, number

# Two-sided 95 % quantiles of Student's t distribution by degrees of freedom; above the last, the normal one's.
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
FEWEST_SEEDS = 3
# When BF16's fall is large enough to measure by. The end is the mean of the last tenth of the steps, so there must be ten.
# Every step trains on other data, so losses scatter: by s over sqrt(2), if s is the standard deviation of the changes from
# step to step. A first loss less a mean of last ones is then uncertain by at most s, and a fall of 5 s is known to a fifth,
# as are the shares of it.
FEWEST_STEPS = 10
LEAST_FALL = 5.0  # in s
DEEPSEEK = 0.0025  # the relative gap of the loss that DeepSeek-V3 states for its FP8 training, arXiv 2412.19437, 3.3


def _half_interval(values: list[float]) -> float:
    """Half the width of the 95 % interval of their mean."""
    freedom = len(values) - 1
    t = _T95[freedom - 1] if freedom <= len(_T95) else 1.96
    return t * statistics.stdev(values) / math.sqrt(len(values))


def _end(losses: list[float]) -> float:
    """The mean loss over the last tenth of the steps."""
    return statistics.fmean(losses[-max(1, len(losses) // 10) :])


def tells_by_its_fall(losses: list[float]) -> bool:
    """True if BF16's loss fell enough relative to its changes per step. A trend that bends counts as scatter too."""
    if len(losses) < FEWEST_STEPS:
        return False
    changes = [after - before for before, after in zip(losses, losses[1:])]
    fell = losses[0] - _end(losses)
    return fell > 0 and fell >= LEAST_FALL * statistics.stdev(changes)


def finite_losses(cell: Cell, arm: str) -> list[float] | None:
    """The losses that the results keep of the arm; None unless there are two or more, all finite."""
    losses = (cell.arm(arm) or {}).get("losses") or []
    finite = [loss for loss in losses if loss is not None and math.isfinite(loss)]
    return finite if len(losses) > 1 and len(finite) == len(losses) else None


def second_half_ratio(own: list[float], reference: list[float]) -> float | None:
    """How far the second-half mean of `own` lies above the second-half mean of `reference`, relative to the latter."""
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
    """The loss of one tensor's cast at one step."""

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
    """The cast that left the most noise, in any of the cells and steps. The first step is left out if there are others:
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
    """The gap of one arm over its seeds. Shares relate to how far BF16's loss fell; positive is behind BF16."""

    cell: Cell
    arm: str
    shares: list[float]  # empty for a run that is too short to tell
    ends: list[float]  # BF16's last losses, by seed
    fell: float
    began: float = 1.0  # BF16's first loss
    ranks_disagree: bool = False  # on the weights, with any seed
    worst: Loss | None = None
    relative: list[float] = dataclasses.field(default_factory=list)  # (loss - BF16's) / BF16's over the second half, by seed

    @property
    def share(self) -> float | None:
        return statistics.fmean(self.shares) if self.shares else None

    @property
    def unjudged(self) -> str:
        """Why the arm is not held against BF16; empty if it is."""
        why = []
        if self.arm == "before" and self.cell.fix:
            why.append("reverts the fix")
        if self.ranks_disagree:
            why.append("ranks disagree on the weights")
        if not self.shares:
            share = f" by {100 * self.fell / abs(self.began):.2g} %" if self.began else ""
            why.append("too short to tell: " + (f"BF16 fell{share}" if self.fell >= 0 else "BF16's loss rose"))
        return "; ".join(why)

    @property
    def margin(self) -> float | None:
        """Half the width of the 95 % interval of `share`."""
        return _half_interval(self.shares) if len(self.shares) >= FEWEST_SEEDS else None

    @property
    def spread(self) -> float | None:
        """How far BF16's own last losses lie apart over seeds: two standard deviations."""
        return 2 * statistics.stdev(self.ends) / self.fell if self.shares and len(self.ends) >= FEWEST_SEEDS else None

    @property
    def relative_words(self) -> str:
        """The relative gap of the loss with its interval, and the bound that DeepSeek-V3 gives for its own training."""
        if not self.relative or len(self.relative) < len(self.ends):
            return units.ABSENT
        mean = statistics.fmean(self.relative)
        if len(self.relative) < FEWEST_SEEDS:
            return f"{mean:+.2%}"
        margin = _half_interval(self.relative)
        if self.unjudged:
            return f"{mean:+.2%} ± {margin:.2%}"
        verdict = "within" if abs(mean) + margin <= DEEPSEEK else "beyond" if abs(mean) - margin > DEEPSEEK else "around"
        return f"{mean:+.2%} ± {margin:.2%}: {verdict} {DEEPSEEK:.2%}"

    @property
    def words(self) -> str:
        share = self.share
        if self.unjudged or share is None:
            return self.unjudged
        away = f"{abs(share):.1%} of BF16's progress {'behind' if share > 0 else 'ahead'}"
        spread, margin = self.spread, self.margin
        if spread is None or margin is None:
            return f"{away}; {FEWEST_SEEDS} seeds would tell whether that is within BF16's own spread"
        if abs(share) <= margin:
            return f"as good as BF16: {away}, and its interval contains 0"
        if abs(share) <= spread:
            return f"within BF16's own spread: {away}"
        cause = f"; noisiest cast: {self.worst.words}" if self.worst and share > 0 else ""
        return f"{away}, outside BF16's own spread{cause}"

    @property
    def is_bad(self) -> bool:
        """True if the arm is worse than BF16's own spread, or its ranks disagree; a reverted fix is meant to be bad."""
        if self.arm == "before" and self.cell.fix:
            return False
        share, spread, margin = self.share, self.spread, self.margin
        is_outside = share is not None and spread is not None and margin is not None and share > max(spread, margin)
        return is_outside or self.ranks_disagree


def _gap(cells: list[Cell], arm: str) -> Gap | None:
    own, references = [finite_losses(cell, arm) for cell in cells], [finite_losses(cell, "bf16") for cell in cells]
    pairs = [(one, other) for one, other in zip(own, references) if one and other and len(one) == len(other)]
    if len(pairs) < len(cells):
        return None
    ends = [_end(reference) for _, reference in pairs]
    falls = [reference[0] - end for (_, reference), end in zip(pairs, ends)]
    shares = [(_end(losses) - end) / fell for (losses, _), end, fell in zip(pairs, ends, falls) if fell > 0]
    relative = [gap for gap in (relative_gap(cell, arm) for cell in cells) if gap is not None]
    return Gap(
        cells[0],
        arm,
        shares if all(tells_by_its_fall(reference) for _, reference in pairs) else [],
        ends,
        statistics.fmean(falls),
        statistics.fmean(reference[0] for _, reference in pairs),
        any(cell.figure(arm, "parity.ranks_equal").value == 0 for cell in cells),
        worst_cast(cells, arm),
        relative,
    )


def _place(gap: Gap) -> tuple[bool, bool, float]:
    """The place of a gap in the table; among gaps that are not judged, ranks that disagree come first."""
    return bool(gap.unjudged), bool(gap.unjudged) and not gap.is_bad, -(gap.share or 0.0)


def gaps(sets: list[ResultSet]) -> list[Gap]:
    """The gap of each arm that trained in eight bits, the furthest behind first; gaps that are not judged come last."""
    groups: dict[tuple[int, str, str], list[Cell]] = {}
    for results in sets:
        for cell in results.cells:
            if cell.recipe == "bf16":
                continue
            axes = [f"{axis}={value}" for axis, value in cell.record["axes"].items() if axis not in ("seed", "training.seed")]
            groups.setdefault((results.index, cell.scenario, ",".join(axes)), []).append(cell)
    found = (_gap(cells, arm) for cells in groups.values() for arm in ("before", "after"))
    return sorted((gap for gap in found if gap), key=_place)


def _no_spread(gap: Gap) -> str:
    return f"needs {FEWEST_SEEDS} seeds (matrix: seed)" if gap.shares else gap.unjudged


def words_table(sets: list[ResultSet]) -> Table:
    rows = [
        [
            Text(gap.words, look="bad" if gap.is_bad else "prose"),
            number(None if gap.share is None else gap.share * 100, "%", gap.unjudged),
            number(None if gap.spread is None else gap.spread * 100, "%", _no_spread(gap)),
            Text(gap.relative_words),
            number(len(gap.ends), "1"),
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
        caption="The loss at the end (mean over the last tenth of the steps) compared with BF16's on the same data, as a share "
        "of how far BF16's loss fell. The spread is two standard deviations of BF16's last losses over seeds. A run is too short to tell "
        f"with fewer than {FEWEST_STEPS} steps, or if BF16's loss fell by less than {LEAST_FALL:g} standard deviations of its "
        "changes from step to step. The loss gap is relative to BF16's loss, over the second half of "
        f"the steps, with its 95 % interval over seeds; {DEEPSEEK:.2%} is what DeepSeek-V3 states of its training. The noisiest "
        "cast to eight bits is that with the least signal to noise, over seeds and steps but the first."
        if rows
        else "",
    )
