"""The gap to BF16 in words: against how far the loss fell, and against BF16's own spread over seeds; and the runs that are not
judged."""

import copy
import unittest

import sample

import load
import parity_words
import units


STEPS = 12


def seeds(behind: list[float], bf16_ends: list[float]) -> list[load.ResultSet]:
    """Cells that differ by their seed. BF16's losses begin at 2, fall over half of the steps and stay; `behind`: how far the
    recipe's losses lie above BF16's from then on."""
    made = load.ResultSet("set", "results.json")
    for seed, (gap, end) in enumerate(zip(behind, bf16_ends)):
        cell = copy.deepcopy(sample.cell("parity", fix=None))
        cell["axes"]["seed"] = str(seed)
        cell["id"] += f",seed={seed}"
        half = STEPS // 2
        falling = [2.0 + (end - 2.0) * step / half for step in range(half)]
        cell["arms"]["bf16"]["losses"] = [*falling, *[end] * half]
        cell["arms"]["after"]["losses"] = [*falling, *[end + gap] * half]
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
        self.assertFalse(gap.is_bad)

    def test_a_gap_inside_the_spread_is_no_finding(self) -> None:
        gap = self.only(seeds([0.010, 0.011, 0.012], [1.0, 1.1, 0.9]))
        self.assertEqual(gap.words, "within BF16's own spread: 1.1% of BF16's progress behind")
        self.assertFalse(gap.is_bad)

    def test_a_gap_outside_the_spread_is_one(self) -> None:
        gap = self.only(seeds([0.100, 0.101, 0.099], [1.0, 1.001, 0.999]))
        self.assertEqual(gap.words, "10.0% of BF16's progress behind, outside BF16's own spread")
        self.assertTrue(gap.is_bad)
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
        # Losses that results keep of a long training are a sample of all losses; the metric covers all.
        sets = seeds([0.01], [1.0])
        metrics = sets[0].cells[0].record["arms"]["after"]["metrics"]
        metrics["parity.mean_loss_gap"] = sample.metric(-0.002, None, "1")
        self.assertEqual(self.only(sets).relative_words, "-0.20%")
        metrics["parity.mean_loss_gap"] = sample.metric(None, None, "1", "needs 16 steps")
        self.assertEqual(self.only(sets).relative_words, units.ABSENT)

    def test_a_gap_whose_interval_contains_zero_is_as_good(self) -> None:
        gap = self.only(seeds([0.05, -0.05, 0.01], [1.0, 1.001, 0.999]))
        self.assertTrue(gap.words.startswith("as good as BF16: "), gap.words)

    def trained(self, bf16: list[float], arm: str = "after", fix: str | None = None, ahead: float = 0.1) -> load.ResultSet:
        """A cell whose `arm` ends `ahead` of BF16."""
        made = load.ResultSet("set", "results.json")
        cell = copy.deepcopy(sample.cell("parity", fix=fix))
        for name in cell["arms"]:
            cell["arms"][name]["losses"] = bf16
        cell["arms"][arm]["losses"] = [*bf16[:-1], bf16[-1] - ahead]
        made.cells.append(load.Cell(cell, made))
        return made

    def words(self, results: load.ResultSet, arm: str = "after") -> str:
        table = parity_words.words_table([results])
        (row,) = (row for row in table.rows if row[table.columns.index("arm")].text == arm)
        self.assertEqual("%" in row[1].text, "progress" in row[0].text, "a share without a judgement or the reverse")
        return row[0].text

    def test_a_fall_that_is_small_beside_the_changes_of_single_steps_cannot_tell(self) -> None:
        # What a run of ten steps gave: BF16 fell by 4 %, and its last loss rose from 1.845 to 1.910.
        short = [1.990, 1.997, 2.006, 1.977, 2.010, 1.960, 1.990, 1.928, 1.845, 1.910]
        self.assertEqual(self.words(self.trained(short)), "too short to tell: BF16 fell by 4 %")
        self.assertEqual(self.words(self.trained([2.0 + 0.01 * step for step in range(20)])), "too short to tell: BF16's loss rose")
        # Three steps that fall evenly have no scatter, and no tenth of steps at the end.
        self.assertEqual(self.words(self.trained([0.998, 0.996, 0.994])), "too short to tell: BF16 fell by 0.4 %")
        self.assertIn("10.0% of BF16's progress ahead", self.words(self.trained([2.0 - 0.1 * step for step in range(11)])))

    def test_a_fall_counts_from_five_times_the_scatter_on(self) -> None:
        zigzag = [0.1 * (step % 2) for step in range(20)]  # the changes are +-0.1 about the trend, which adds little
        for fall, tells in ((0.4, False), (0.7, True)):
            losses = [2.0 - fall * step / 19 + up for step, up in enumerate(zigzag)]
            losses[0] += 0.1
            self.assertEqual(parity_words.tells_by_its_fall(losses), tells, fall)

    def test_an_arm_that_reverts_the_fix_is_not_judged(self) -> None:
        falling = [2.0 - 0.05 * step for step in range(20)]
        results = self.trained(falling, "before", "share_amax_over_shards", ahead=1.666)
        table = parity_words.words_table([results])
        self.assertEqual([row[0].text for row in table.rows], [self.judged(results), "reverts the fix"])
        self.assertEqual(table.rows[1][0].look, "prose")

    def judged(self, results: load.ResultSet) -> str:
        (gap,) = (gap for gap in parity_words.gaps([results]) if gap.arm == "after")
        self.assertIn("of BF16's progress", gap.words)
        return gap.words

    def test_ranks_that_disagree_are_not_as_good(self) -> None:
        results = self.trained([2.0 - 0.05 * step for step in range(20)])
        results.cells[0].record["arms"]["after"]["metrics"]["parity.ranks_equal"] = sample.metric(0, None, "1")
        row = parity_words.words_table([results]).rows[0]
        self.assertEqual((row[0].text, row[0].look), ("ranks disagree on the weights", "bad"))

    def test_losses_that_are_not_finite_say_nothing(self) -> None:
        broken = seeds([0.0], [1.0])
        broken[0].cells[0].record["arms"]["after"]["losses"][1] = None
        self.assertEqual(parity_words.gaps(broken), [])


if __name__ == "__main__":
    unittest.main()
