"""Weights of ranks that each scale only their shards, over two ranks of gloo. Needs PyTorch, not Transformer Engine.

FSDP2 gathers the data of such weights, and each rank scales all of it by its own scale, as in Transformer Engine's
recipes of one scale a tensor. full_tensor() gathers scaled values, which are the same on every rank, so it cannot show
ranks that differ.
"""

import os
import types
import unittest

import torch
from fp8lab_subjects import ranks, sharding
from fp8lab_subjects.libraries.transformer_engine_subject import TransformerEngineSubject
from torch import nn

ROWS, COLUMNS = 8, 4
aten = torch.ops.aten
# What FSDP2 calls when it shards a parameter and when it hands a gathered one to its module.
KEPT = (aten.view.default, aten.slice.Tensor, aten.as_strided.default, aten.new_zeros.default, aten.detach.default)


class Scaled(torch.Tensor):
    """Values as integers and one scale."""

    @staticmethod
    def __new__(cls, data, scale):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=torch.float32, device=data.device)

    def __init__(self, data, scale):
        self._data, self._scale = data, scale

    def dequantize(self):
        return self._data.float() * self._scale

    def quantize_(self, values):
        self._scale.copy_(values.abs().max() / 127)
        self._data.copy_(torch.round(values / self._scale).to(torch.int8))

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function, kinds, args, kwargs=None):
        kwargs = kwargs or {}
        of = args[0]
        if function in KEPT:
            return cls(function(of._data, *args[1:], **kwargs), of._scale)
        if function is aten.split.Tensor:
            return [cls(data, of._scale) for data in function(of._data, *args[1:], **kwargs)]
        if function is aten.copy_.default and isinstance(of, Scaled):
            if isinstance(args[1], Scaled):
                of._data.copy_(args[1]._data)
                of._scale.copy_(args[1]._scale)
            else:
                of.quantize_(args[1])
            return of
        return function(*(one.dequantize() if isinstance(one, Scaled) else one for one in args), **kwargs)

    def fsdp_pre_all_gather(self, mesh):
        return (self._data,), (self._scale,)

    def fsdp_post_all_gather(self, outputs, metadata, dtype, *, out=None):
        if out is None:
            return Scaled(outputs[0], metadata[0]), outputs
        out._data = outputs[0]
        return None


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        zeros = torch.zeros(ROWS, COLUMNS, dtype=torch.int8)
        self.weight, self.gamma = nn.Parameter(Scaled(zeros, torch.ones(1))), nn.Parameter(torch.ones(COLUMNS))

    def forward(self, x):
        return (x * self.gamma) @ self.weight.t()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer()])

    def forward(self, x):
        return self.layers[0](x)


class Cell(dict):
    mesh, expert_parallel, sharded, quantized_weights = (1, 2), 1, True, True


# The largest value of the second rank's rows is half of the first's.
VALUES = torch.cat((torch.full((ROWS // 2, COLUMNS), 2.0), torch.full((ROWS // 2, COLUMNS), 1.0)))


def values_of(rank, folder, filled_before):
    """The weight by full_tensor(), and as the subject of Transformer Engine sees it."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    built = Model()
    weight = built.layers[0].weight
    with torch.no_grad():
        if filled_before:
            weight.detach().copy_(VALUES)
        sharding.shard(Cell(reshard_after_forward=True), built, "cpu")
        if not filled_before:
            weight = built.layers[0].weight
            sharding.local(weight.detach()).copy_(VALUES[rank * ROWS // 2 :][: ROWS // 2])
        built(torch.ones(1, COLUMNS))
    full = sharding.full(built.layers[0].weight.detach())
    subject = types.SimpleNamespace(cell=Cell())
    seen, gamma = (one.clone() for one in TransformerEngineSubject.trained_weights(subject, built))
    kept = built.layers[0].weight.shape == (ROWS, COLUMNS) and sharding.local(built.layers[0].weight.detach()).shape[0]
    torch.distributed.destroy_process_group()
    return {"full": full.tolist(), "seen": seen.tolist(), "gamma": gamma.tolist(), "rows": kept}


class GatheredWeights(unittest.TestCase):
    def by_rank(self, filled_before):
        answers = ranks.run(lambda rank, folder: values_of(rank, folder, filled_before), 2)
        for answer in answers:
            self.assertEqual(answer["gamma"], [1.0] * COLUMNS)
            self.assertEqual(answer["rows"], ROWS // 2)  # sharded again
            # full_tensor() gathers each rank's data times its own scale.
            torch.testing.assert_close(torch.tensor(answer["full"]), VALUES, atol=0.01, rtol=0)
        return [torch.tensor(answer["seen"]) for answer in answers]

    def test_shards_of_a_filled_weight_have_one_scale(self):
        first, second = self.by_rank(filled_before=True)
        self.assertTrue(torch.equal(first, second))
        torch.testing.assert_close(first, VALUES, atol=0.01, rtol=0)

    def test_ranks_with_scales_of_their_own_are_seen_to_differ(self):
        first, second = self.by_rank(filled_before=False)
        torch.testing.assert_close(first, torch.full_like(VALUES, 2.0))
        torch.testing.assert_close(second, torch.full_like(VALUES, 1.0))


if __name__ == "__main__":
    unittest.main()
