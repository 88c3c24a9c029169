"""The twin: the cell without resumption, cached weights and recomputation, whose weights are gathered for each pass."""

import math
import os

from .. import cells, rank, ranks

PLAIN = {
    "training.resume_at": 0,
    "training.cache_weights": False,
    "training.checkpoint": "none",
    "reshard_after_forward": True,
}


def _losses(cell):
    """Losses of all steps on each rank."""
    answers = ranks.run(lambda one, folder: rank.train(cell, "twin", one, folder), cell["ranks"])
    return [answer["losses"] for answer in answers], answers[0]["notes"]


def difference(losses, expected):
    """The largest difference of a loss from the twin's, relative to it; infinite if one is no finite number."""
    largest = 0.0
    for own, other in zip(sum(losses, []), sum(expected, []), strict=True):
        if not math.isfinite(own) or not math.isfinite(other):
            return math.inf
        if own != other:
            largest = max(largest, abs(own - other) / abs(other) if other else math.inf)
    return largest


def measure(cell):
    """Metrics and notes."""
    os.environ.setdefault("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0")  # otherwise no two runs have equal bits
    losses, notes = _losses(cell)
    plain = cells.Cell(cell.arm, cell.config | PLAIN, cell.measure, cell.timeout_s)
    expected = _losses(plain)[0]
    reason = None
    if losses != expected:  # a loss that is not a number differs from itself
        reason = f"losses of rank 0: {losses[0]}; the twin's: {expected[0]}"
    metrics = {
        "twin.losses_equal": (float(reason is None), "1", reason),
        "twin.loss_difference": (difference(losses, expected), "1", None),
    }
    return metrics, notes
