"""The gap to BF16 in words: against how far the loss fell, and against BF16's own spread over seeds."""

import copy
import unittest

import sample

import load
import parity_words
import units


def seeds(behind: list[float], bf16_ends: list[float]) -> list[load.ResultSet]:
    """Cells that differ by their seed. BF16's losses begin at 2; `behind`: how far the recipe's end lies above BF16's."""
    made = load.ResultSet("set", "results.json")
    for seed, (gap, end) in enumerate(zip(behind, bf16_ends)):
        cell = copy.deepcopy(sample.cell("parity", fix=None))
        cell["axes"]["seed"] = str(seed)
        cell["id"] += f",seed={seed}"
        cell["arms"]["bf16"]["losses"] = [2.0, 1.5, end]
        cell["arms"]["after"]["losses"] = [2.0, 1.5, end + gap]
        made.cells.append(load.Cell(cell, made))
    return [made]


class Words(unittest.TestCase):
    def only(self, sets: list[load.ResultSet]) -> parity_words.Gap:
        (gap,) = parity_words.gaps(sets)
        return gap

    def test_one_seed_gives_the_share_and_asks_for_more(self) -> None:
        gap = self.only(seeds([0.01], [1.0]))
        self.assertAlmostEqual(gap.share, 0.01)
        self.assertEqual(gap.words, "1.0% of BF16's progress behind; 3 seeds would tell whether that is within BF16's own spread")
        self.assertFalse(gap.is_outside)

    def test_a_gap_inside_the_spread_is_no_finding(self) -> None:
        gap = self.only(seeds([0.010, 0.011, 0.012], [1.0, 1.1, 0.9]))
        self.assertEqual(gap.words, "within BF16's own spread: 1.1% of BF16's progress behind")
        self.assertFalse(gap.is_outside)

    def test_a_gap_outside_the_spread_is_one(self) -> None:
        gap = self.only(seeds([0.100, 0.101, 0.099], [1.0, 1.001, 0.999]))
        self.assertEqual(gap.words, "10.0% of BF16's progress behind, outside BF16's own spread")
        self.assertTrue(gap.is_outside)
        row = parity_words.words_table(seeds([0.100, 0.101, 0.099], [1.0, 1.001, 0.999])).rows[0]
        self.assertEqual(row[0].look, "bad")

    def test_a_recipe_that_loses_names_the_tensor_of_its_noisiest_cast(self) -> None:
        sets = seeds([0.100, 0.101, 0.099], [1.0, 1.001, 0.999])
        for cell in sets[0].cells:
            cell.record["arms"]["after"]["casts"] = [
                {"tensor": "layers[0].fc1 input", "steps": [0, 2], "sqnr_db": [1.0, 31.5], "clip_fraction": [0, 0],
                 "underflow_fraction": [0.9, 0]},
                {"tensor": "layers[1].fc2 gradient", "steps": [0, 2], "sqnr_db": [None, 12.25], "clip_fraction": [0, 0],
                 "underflow_fraction": [1, 0.125]},
            ]
        gap = self.only(sets)
        self.assertTrue(
            gap.words.endswith("; noisiest cast: layers[1].fc2 gradient, step 3: 12.2 dB, 12.5% became 0"), gap.words
        )
        self.assertIn("layers[1].fc2 gradient", parity_words.words_table(sets).rows[0][5].text)

    def test_the_relative_gap_is_held_against_a_published_bound(self) -> None:
        for behind, verdict in (([0.001, 0.0011, 0.0009], "within"), ([0.1, 0.101, 0.099], "beyond"), ([0.02, -0.02, 0.01], "around")):
            gap = self.only(seeds(behind, [1.0, 1.001, 0.999]))
            self.assertIn(f": {verdict} 0.25%", gap.relative_words)
        self.assertEqual(self.only(seeds([0.01], [1.0])).relative_words, "+1.00%")

    def test_the_relative_gap_is_the_metric_where_the_record_has_it(self) -> None:
        # Losses that results keep of a long training are a sample of all; the metric is of all.
        sets = seeds([0.01], [1.0])
        metrics = sets[0].cells[0].record["arms"]["after"]["metrics"]
        metrics["parity.mean_loss_gap"] = sample.metric(-0.002, None, "1")
        self.assertEqual(self.only(sets).relative_words, "-0.20%")
        metrics["parity.mean_loss_gap"] = sample.metric(None, None, "1", "needs 16 steps")
        self.assertEqual(self.only(sets).relative_words, units.ABSENT)

    def test_a_gap_whose_interval_contains_zero_is_as_good(self) -> None:
        gap = self.only(seeds([0.05, -0.05, 0.01], [1.0, 1.001, 0.999]))
        self.assertTrue(gap.words.startswith("as good as BF16: "), gap.words)

    def test_a_loss_that_does_not_fall_or_is_not_finite_says_nothing(self) -> None:
        self.assertEqual(parity_words.gaps(seeds([0.0], [2.5])), [])
        broken = seeds([0.0], [1.0])
        broken[0].cells[0].record["arms"]["after"]["losses"][1] = None
        self.assertEqual(parity_words.gaps(broken), [])


if __name__ == "__main__":
    unittest.main()
