"""Cells that differ from another one by a single key, in words."""

import copy
import unittest

import sample

import ablations
import load


def cells(*axes: dict[str, str]) -> load.ResultSet:
    """Cells of one scenario with these axes; every further cell's losses lie 1 % of the first's higher than the one's before,
    and BF16's losses 3 %, as if BF16 has the key too."""
    made = load.ResultSet("set", "results.json")
    for index, own in enumerate(axes):
        cell = copy.deepcopy(sample.cell("parity", fix=None))
        cell["axes"] = {"device": "cpu", **own}
        cell["id"] = "parity/" + ",".join(f"{axis}={value}" for axis, value in cell["axes"].items())
        cell["arms"]["bf16"]["losses"] = [2.0, 1.0, 1.0 + 0.03 * index, 1.0 + 0.03 * index]
        cell["arms"]["after"]["losses"] = [2.0, 1.0, 1.0 + 0.01 * index, 1.0 + 0.01 * index]
        cell["arms"]["after"]["metrics"]["memory.peak_bytes"]["value"] = (1 + index) * sample.MIB
        made.cells.append(load.Cell(cell, made))
    return made


class Ablations(unittest.TestCase):
    def test_a_cell_stands_beside_the_one_without_its_key(self) -> None:
        sets = [cells({"recipe": "current"}, {"recipe": "current", "fp8_format": "e4m3"}, {"recipe": "mxfp8"})]
        (found,) = ablations.ablations(sets)
        self.assertEqual((found.key, found.value, found.where), ("fp8_format", "e4m3", "recipe=current"))
        self.assertAlmostEqual(found.gap, 0.01)
        self.assertEqual(found.words, "loss +1.00%; peak 1.00 MiB → 2.00 MiB")
        self.assertEqual(len(ablations.ablations_table(sets).rows), 1)

    def test_the_loss_is_compared_with_the_cell_without_the_key_and_not_with_the_own_bf16_arm(self) -> None:
        # If the BF16 arm of a training has the key too, the distance from BF16 does not show what the key does.
        sets = [cells({"recipe": "current"}, {"recipe": "current", "master_weights": "none"})]
        for cell in sets[0].cells:
            cell.record["arms"]["after"]["losses"] = list(cell.record["arms"]["bf16"]["losses"])
            cell.record["arms"]["after"]["metrics"]["parity.mean_loss_gap"] = sample.metric(0.0, None, "1")
        self.assertAlmostEqual(ablations.ablations(sets)[0].gap, 0.03)

    def test_a_key_that_changes_data_or_model_leaves_no_loss_to_compare(self) -> None:
        for key in ("seed", "training.seed", "batch", "model.seq", "micro_batches", "corpus", "steps", "hidden", "model.layers"):
            sets = [cells({"recipe": "current"}, {"recipe": "current", key: "3"})]
            self.assertEqual(ablations.ablations(sets)[0].words, "the loss decides nothing; peak 1.00 MiB → 2.00 MiB", key)

    def test_decibels_name_what_they_are_beside(self) -> None:
        sets = [cells({"recipe": "current"}, {"recipe": "current", "moments": "e4m3"})]
        for cell, decibels in zip(sets[0].cells, (30.0, 20.0)):
            cell.record["arms"]["after"]["metrics"]["parity.grad_sqnr_db"] = sample.metric(decibels, None, "dB")
        self.assertIn("gradients compared with the cell's own BF16 arm 30 dB → 20 dB", ablations.ablations(sets)[0].words)

    def test_two_keys_more_are_no_ablation_but_each_step_between_is_one(self) -> None:
        first, second = {"recipe": "current", "moments": "bf16"}, {"recipe": "current", "moments": "bf16", "steps": "3"}
        self.assertEqual(ablations.ablations([cells({"recipe": "current"}, second)]), [])
        found = ablations.ablations([cells({"recipe": "current"}, first, second)])
        self.assertEqual([(one.key, one.base.record["axes"].get("moments")) for one in found], [("moments", None), ("steps", "bf16")])

    def test_losses_that_are_not_finite_say_nothing(self) -> None:
        sets = [cells({"recipe": "current"}, {"recipe": "current", "fp8_format": "e4m3"})]
        sets[0].cells[1].record["arms"]["after"]["losses"][2] = None
        self.assertTrue(ablations.ablations(sets)[0].words.startswith("the loss decides nothing; "))

    def test_a_matrix_has_none(self) -> None:
        self.assertEqual(ablations.ablations([cells({"recipe": "current"}, {"recipe": "mxfp8"})]), [])
        self.assertEqual(ablations.ablations_table([cells({"recipe": "current"})]).caption, "")


if __name__ == "__main__":
    unittest.main()
