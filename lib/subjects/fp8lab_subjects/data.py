"""Tokens that a language model reads, by the rules of lib/harness/data: the runtime's tokens, one for one; and a
teacher's targets, by lib/harness/train/teacher.h."""

import functools
import math
import subprocess

import torch

from . import philox

BIBLE = ["bible", "-f", "gen1:1-rev22:21"]


TEACHER_WIDTH = 8


@functools.cache
def _teacher(seed, hidden, device):
    """The two matrices of the teacher, in double."""

    def drawn(name, rows, cols, deviation):
        values = torch.empty(rows, cols, dtype=torch.float64, device=device)
        philox.fill_normal(values, seed=seed, name=name)
        return values * deviation

    w1 = drawn("teacher w1", TEACHER_WIDTH, hidden, 1.0 / math.sqrt(hidden))
    return w1, drawn("teacher w2", hidden, TEACHER_WIDTH, 0.5)


@torch.no_grad()
def teach(cell, x):
    """The targets of inputs x [rows, hidden]."""
    w1, w2 = _teacher(cell["training.seed"], cell["model.hidden"], x.device)
    rows = x.double()
    taught = (rows @ w1.T).relu() @ w2.T
    return (rows + taught if cell["model.layer"] == "transformer_layer" else taught).float().to(x.dtype)


@functools.cache
def text(corpus, kind):
    """The tokens of a corpus that a model trains on: its first 90 %."""
    if corpus:
        with open(corpus, "rb") as file:
            raw = file.read()
    else:
        raw = subprocess.run(BIBLE, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True).stdout
    token_of = list(range(256))
    if kind == "character":
        token_of = [0] * 256
        for token, byte in enumerate(sorted(set(raw))):
            token_of[byte] = token
    tokens = torch.tensor(token_of)[torch.frombuffer(bytearray(raw), dtype=torch.uint8).long()]
    return tokens[: 9 * len(raw) // 10]


def _windows(cell, sequences):
    """[sequence, seq + 1]: windows of the corpus at random places."""
    tokens, seq = text(cell.get("training.corpus", ""), cell["training.tokens"]), cell["model.seq"]
    bits = philox.bits(sequences, philox.stream_of("windows of text"), cell["training.seed"])
    begins = (bits * (len(tokens) - seq)) >> 32
    return tokens[begins[:, None] + torch.arange(seq + 1)]


def _random(cell, sequences, step):
    """[sequence, seq + 1]: uniform tokens."""
    index = sequences[:, None] * (cell["model.seq"] + 1) + torch.arange(cell["model.seq"] + 1)
    stream = (philox.stream_of("x") + step) & 0xFFFFFFFFFFFFFFFF
    return (philox.bits(index.view(-1), stream, cell["training.seed"]).view(index.shape) * cell.vocabulary) >> 32


def batch(cell, step, first_sequence):
    """Tokens and targets of a micro-batch that begins with sequence `first_sequence` of its step, each [tokens]."""
    sequences = torch.arange(first_sequence, first_sequence + cell["model.batch"])
    if cell["training.data"] == "text":
        tokens = _windows(cell, step * cell.sequences + sequences)
    else:
        tokens = _random(cell, sequences, step)
    by_position = tokens.T
    return by_position[:-1].reshape(-1), by_position[1:].reshape(-1)
