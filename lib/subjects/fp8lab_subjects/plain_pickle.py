"""Reads pickles that hold plain containers, texts and numbers, and nothing else: a pickle from elsewhere may run any
code when it is read by pickle.load(). Imports no PyTorch."""

import os
import pickle

MOST_BYTES = 4 << 30


class PlainUnpickler(pickle.Unpickler):
    """Refuses every class and function. Without one, a pickle can neither call anything nor make an object."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"it names {module}.{name}; a snapshot of PyTorch has only plain values")

    def persistent_load(self, pid):
        raise pickle.UnpicklingError("it refers to objects outside of it; a snapshot has only plain values")


def load(path):
    """The value in a file. Raises ValueError, which names the file, for anything else."""
    try:
        size = os.path.getsize(path)
        if not os.path.isfile(path):
            raise ValueError(f"{path}: it is no regular file")
        if size > MOST_BYTES:
            raise ValueError(f"{path}: it has {size} bytes; at most {MOST_BYTES} are read")
        with open(path, "rb") as file:
            return PlainUnpickler(file).load()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except RecursionError as error:
        raise ValueError(f"{path}: it is nested too deep") from error
    # Bytes that are no pickle raise almost any error.
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, KeyError, TypeError,
            ValueError, OverflowError, MemoryError) as error:
        raise ValueError(f"{path}: not a snapshot: {error}") from error
