"""What libraries can honour of a cell, where a cell must be asked for without its device or library."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "lib/subjects"))

from fp8lab_subjects import abilities, cells  # noqa: E402

# Keys that a question reads, with their defaults.
CONFIG = {
    "device": "cuda", "ranks": 1, "model.layer": "layernorm_mlp", "training.data": "normal", "training.clip_norm": 0,
    "training.param_dtype": "bf16", "training.recipe": "delayed", "training.quantized_weights": False,
    "training.optimizer": "adam", "training.master_weights": "f32", "training.moments": "f32",
}


def refusal(subject, arm="after", **keys):
    """The key that is refused, or ""; `keys` are of training, but for those with another section's name in front."""
    named = {key.replace("__", ".") if "__" in key or key in CONFIG else f"training.{key}": keys[key] for key in keys}
    return abilities.ABILITIES[subject](cells.Cell(arm, CONFIG | named, [], 0)).partition(":")[0]


class Engine(unittest.TestCase):
    def refusal(self, **keys):
        return refusal("transformer_engine", **keys)

    def test_remainders_are_of_weights_in_16_bits(self):
        self.assertEqual(self.refusal(master_weights="remainder"), "")
        both = {"master_weights": "remainder", "quantized_weights": True}
        self.assertEqual(self.refusal(**both), "training.master_weights")
        self.assertEqual(self.refusal(**both, arm="bf16"), "")
        self.assertEqual(self.refusal(quantized_weights=True), "")

    def test_optimizers_of_pytorch_have_every_key_of_pytorch(self):
        for key, value in {"beta2": 0.95, "warmup_steps": 3, "decay_only_matrices": True, "clip_norm": 1}.items():
            self.assertEqual(self.refusal(**{key: value}), f"training.{key}")
            self.assertEqual(self.refusal(**{key: value}, optimizer="foreach_adam", master_weights="none"), "")
        sharded = {"optimizer": "foreach_adam", "master_weights": "none", "ranks": 2, "clip_norm": 1}
        self.assertEqual(self.refusal(**sharded), "training.clip_norm")

    def test_models_are_built_in_full(self):
        self.assertEqual(self.refusal(ranks=2, deferred_init=True), "training.deferred_init")
        for left in (None, False):
            self.assertEqual(self.refusal(ranks=2, deferred_init=left), "")

    def test_layers_have_the_biases_of_their_form(self):
        self.assertEqual(self.refusal(model__bias=False), "model.bias")

    def test_recipes_have_no_options(self):
        self.assertEqual(self.refusal(training__recipe_options__margin=0), "training.recipe_options.margin")


class Torchao(unittest.TestCase):
    def refusal(self, **keys):
        return refusal("torchao", recipe="current", **keys)

    def test_layers_have_the_biases_of_the_cell(self):
        for bias in (None, True, False):
            self.assertEqual(self.refusal(model__bias=bias), "")

    def test_recipes_have_no_options(self):
        self.assertEqual(self.refusal(training__recipe_options__epsilon=1e-3), "training.recipe_options.epsilon")
        self.assertEqual(self.refusal(training__recipe_options__epsilon=None), "")

    def test_shards_are_filled_alone(self):
        self.assertEqual(self.refusal(ranks=2, deferred_init=False), "training.deferred_init")
        for left in (None, True):
            self.assertEqual(self.refusal(ranks=2, deferred_init=left), "")


if __name__ == "__main__":
    unittest.main()
