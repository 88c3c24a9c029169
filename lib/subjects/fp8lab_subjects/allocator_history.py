"""The history of PyTorch's allocator on a GPU: what was allocated, freed and alive, with the stack that requested it.

The only file that calls the allocator's functions whose names begin with an underscore. If they are missing, there is
no history, and nothing else changes.
"""

import os
import pathlib
import pickle
import re

import torch

GRAIN = 512  # the allocator rounds sizes up to it
PICKLE_PROTOCOL = 4  # the newest that PyTorch's viewer of snapshots reads
FOLDER = "FP8LAB_ALLOCATOR_SNAPSHOTS"  # environment: the folder of snapshots as PyTorch wrote them
# Functions that ask on behalf of others, as FILE:NAME; the last one is the command that starts the worker.
PASSED_OVER = ("/torch/", "/fp8lab_subjects/", "<frozen", "/contextlib.py", "<string>:<module>")
COMPILED = "torch.compile"
INDUCTORS_FILE = re.compile(r"/c[a-z2-7]{51}\.py$")  # named by a hash of the code that torch.compile wrote there


def available():
    return all(hasattr(torch.cuda.memory, name) for name in ("_record_memory_history", "_snapshot"))


def resume():
    """Records from now on. Blocks that are allocated meanwhile keep their stacks for as long as they live."""
    torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python")


def pause():
    """Stops, and drops the events so far."""
    torch.cuda.memory._record_memory_history(None)


def asked_by(frames):
    """The innermost function of a library in a stack, "layernorm_mlp.forward", and its line; ("", 0) without one.
    Code that torch.compile wrote is COMPILED."""
    for frame in frames or ():
        path = frame["filename"]
        if INDUCTORS_FILE.search(path):
            return COMPILED, frame["line"]
        if not any(part in f"{path}:{frame['name']}" for part in PASSED_OVER):
            return f"{pathlib.PurePath(path).stem}.{frame['name']}", frame["line"]
    return "", 0


def _rounded(size):
    return -(-size // GRAIN) * GRAIN


class Recording:
    """What happened between begin() and the last mark(): blocks alive at the beginning, then events.

    An event is (address, bytes, stack); bytes are below 0 if the block is freed. A mark is (name, number of the
    next event, claims by address, the kind of blocks that are alive, were allocated by an event and have no claim, or
    None).
    """

    def __init__(self):
        self.device = torch.cuda.current_device()
        self.marks = []
        self.initial = {
            address: (size, stack) for address, size, stack in self._alive(torch.cuda.memory._snapshot())
        }
        self._skipped = len(self._trace())

    @staticmethod
    def _alive(snapshot):
        for segment in snapshot["segments"]:
            if segment.get("device", torch.cuda.current_device()) != torch.cuda.current_device():
                continue
            address = segment["address"]
            for block in segment["blocks"]:
                if block["state"] == "active_allocated":
                    yield address, block["size"], block.get("frames")
                address += block["size"]

    def _trace(self):
        return torch.cuda.memory._snapshot()["device_traces"][self.device]

    def _number(self):
        """The next event's number. A snapshot is itself an entry of the trace, so entries are counted by kind."""
        return sum(entry["action"] in ("alloc", "free_requested") for entry in self._trace()[self._skipped :])

    def mark(self, name, claims=None, rest=None):
        self.marks.append((name, self._number(), claims or {}, rest))

    def events(self):
        for entry in self._trace()[self._skipped :]:
            if entry["action"] == "alloc":
                yield entry["addr"], _rounded(entry["size"]), entry.get("frames")
            elif entry["action"] == "free_requested":
                yield entry["addr"], -_rounded(entry["size"]), None

    def keep(self, name):
        """Leaves PyTorch's snapshot in the folder that the environment names, for PyTorch's viewer."""
        folder = os.environ.get(FOLDER)
        if folder:
            path = pathlib.Path(folder) / f"{name}.pickle"
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb") as file:
                pickle.dump(torch.cuda.memory._snapshot(), file, protocol=PICKLE_PROTOCOL)
