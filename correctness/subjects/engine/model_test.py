"""A language model around Transformer Engine's layers, with a stand-in for the library. Needs PyTorch, not the library."""

import types
import unittest

import torch
from fp8lab_subjects import cells
from fp8lab_subjects.libraries.transformer_engine_subject import EngineModel, own_name
from fp8lab_subjects.recording.te_memory import LAYERS, LM

HIDDEN, VOCABULARY, SEQ, BATCH = 16, 24, 6, 2


class Doubled(torch.nn.Module):
    """A layer with one weight, that only scales what it gets. It gets [seq, batch, hidden]."""

    def __init__(self, *_, **__):
        super().__init__()
        self.layernorm_mlp = torch.nn.Module()
        self.layernorm_mlp.fc1_weight = torch.nn.Parameter(torch.full((1,), 2.0))

    def forward(self, x, rotary_pos_emb=None):
        assert x.shape == (SEQ, BATCH, HIDDEN)
        return x * self.layernorm_mlp.fc1_weight


LIBRARY = types.SimpleNamespace(
    TransformerLayer=Doubled,
    RotaryPositionEmbedding=lambda columns: lambda tokens: torch.zeros(tokens, 1, 1, columns),
    checkpoint=lambda layer, *args, use_reentrant: layer(*args),
)


def built(**keys):
    config = {
        **LAYERS, **LM, "device": "cuda", "subject": "transformer_engine", "ranks": 1, "sharding": "none",
        "model.vocabulary": VOCABULARY, "model.layers": 3, "model.hidden": HIDDEN, "model.heads": 2, "model.kv_heads": 2,
        "model.ffn": 32, "model.seq": SEQ, "model.batch": BATCH, "training.param_dtype": "f32", **keys,
    }  # fmt: skip
    torch.manual_seed(3)
    model = EngineModel(cells.Cell("after", config, ["memory"], 0), LIBRARY, torch.device("cpu"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "fc1" not in name:
                parameter.normal_()
    return model


class EngineModels(unittest.TestCase):
    def test_logits_are_the_products_of_the_normed_layers_with_the_head(self):
        tokens = torch.randint(VOCABULARY, (SEQ * BATCH,))
        for head in ("own", "tied"):
            for checkpoint in ("none", "full"):
                model = built(**{"model.head": head, "training.checkpoint": checkpoint})
                x = 8.0 * model.embedding.weight.double()[tokens]
                normed = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * model.norm.weight.double()
                weight = (model.embedding if head == "tied" else model.head).weight.double()
                torch.testing.assert_close(model(tokens).double(), normed @ weight.T, rtol=1e-4, atol=1e-4)

    def test_a_loss_in_parts_reads_what_the_head_reads(self):
        tokens = torch.randint(VOCABULARY, (SEQ * BATCH,))
        entire, parts = built(), built(**{"training.loss_chunks": 3})
        torch.testing.assert_close(parts.logits_of(parts(tokens)), entire(tokens))

    def test_parameters_have_the_names_of_the_runtime(self):
        names = {own_name(name) for name, _ in built().named_parameters()}
        layers = {f"layers[{index}].mlp.fc1.weight" for index in range(3)}
        self.assertEqual(names, {"embedding.weight", "norm.gamma", "head.weight", *layers})


if __name__ == "__main__":
    unittest.main()
