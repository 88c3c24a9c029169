"""Values that a library's class wraps, as files have them. Needs PyTorch, not torchao."""

import pathlib
import tempfile
import types
import unittest

import torch
from fp8lab_subjects.scored import values


class Wrapped(torch.Tensor):
    """As torchao's float8 weights: the wrapper has storage that no one fills, and is kept by copies and casts."""

    KEPT = (torch.ops.aten.clone.default, torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function, kinds, args, kwargs=None):
        out = function(*(one.inner if isinstance(one, Wrapped) else one for one in args), **(kwargs or {}))
        return cls(out) if function in cls.KEPT else out


class PlainValues(unittest.TestCase):
    def test_are_those_inside_a_wrapper(self):
        inner = torch.arange(6.0).reshape(2, 3)
        for dtype in (torch.float32, torch.bfloat16):
            seen = values.plain(Wrapped(inner.to(dtype)))
            self.assertIs(type(seen), torch.Tensor)
            self.assertTrue(torch.equal(seen, inner))

    def test_are_a_copy(self):
        kept = torch.ones(3)
        seen = values.plain(kept)
        kept.zero_()
        self.assertTrue(torch.equal(seen, torch.ones(3)))

    def test_of_a_wrapper_are_not_written_by_its_address(self):
        with tempfile.TemporaryDirectory() as folder:
            instrument = values.ValuesInstrument(pathlib.Path(folder) / "values", has_twin=False)
            instrument.kept["weights"] = [Wrapped(torch.ones(2, 2))]
            with self.assertRaisesRegex(TypeError, "weights: values of a Wrapped"):
                instrument.results(types.SimpleNamespace(rank=0))


if __name__ == "__main__":
    unittest.main()
