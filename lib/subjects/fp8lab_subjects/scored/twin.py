"""The twin: the cell without resumption, cached weights and recomputation, whose weights are gathered for each pass."""

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


def measure(cell):
    """Metrics and notes."""
    os.environ.setdefault("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0")  # otherwise no two runs have equal bits
    losses, notes = _losses(cell)
    plain = cells.Cell(cell.arm, cell.config | PLAIN, cell.measure, cell.timeout_s)
    expected = _losses(plain)[0]
    reason = None
    if losses != expected:  # a loss that is not a number differs from itself
        reason = f"losses of rank 0: {losses[0]}; the twin's: {expected[0]}"
    return {"twin.losses_equal": (float(reason is None), "1", reason)}, notes
