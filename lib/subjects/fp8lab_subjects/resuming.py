"""Resumption: a training state is saved, everything is built again with other values, and the state is loaded."""

import dataclasses
import io

import torch

from . import subjects


def _loaded_by(built, optimizer, state):
    built.load_state_dict(state["model"])
    if optimizer is not None:
        optimizer.load_state_dict(state["optimizer"])


def resume(run):
    """Replaces model and optimizer of `run`. Every rank saves and loads its own part, as a file of its own would."""
    file = io.BytesIO()
    optimizer = None if run.optimizer is None else run.optimizer.state_dict()
    torch.save({"model": run.model.state_dict(), "optimizer": optimizer}, file)
    run.model = run.called = run.optimizer = optimizer = None
    # Initial values of another seed, so that a tensor which is not loaded changes the training.
    other = dataclasses.replace(run.cell, config=run.cell.config | {"training.seed": run.cell["training.seed"] + 1})
    run.subject = subjects.load(run.cell.subject).make(other, run.device)
    run.make()
    run.subject.cell = run.cell
    file.seek(0)
    _loaded_by(run.model, run.optimizer, torch.load(file, map_location=run.device, weights_only=False))
