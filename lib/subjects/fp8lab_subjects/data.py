"""Tokens that a language model reads, by the rules of lib/harness/data: the runtime's tokens, one for one."""

import functools
import subprocess

import torch

from . import philox

BIBLE = ["bible", "-f", "gen1:1-rev22:21"]


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
