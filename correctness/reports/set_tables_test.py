"""Result sets side by side: which cells are equal, and which have only the same name."""

import copy
import unittest
from typing import Any

import sample

import answer
import load
import set_tables

RATE = "training.learning_rate"


def result_sets(*of_sets: list[dict[str, Any]]) -> list[load.ResultSet]:
    made = []
    for index, records in enumerate(of_sets):
        results = load.ResultSet(f"set {index}", "", index)
        results.cells = [load.Cell(record, results) for record in records]
        made.append(results)
    return made


def cell(retained: int = 0, device: str = "meta", checksum: str = "", **keys: Any) -> dict[str, Any]:
    """A cell of one name. `keys` belong to its training."""
    record = copy.deepcopy(sample.cell(device=device))
    record["arms"]["after"]["metrics"]["memory.retained_bytes"]["value"] = retained
    record["config"] |= {f"training.{key}": value for key, value in keys.items()}
    return record | ({"text_checksum": checksum} if checksum else {})


class Redefined(unittest.TestCase):
    def differing(self, sets: list[load.ResultSet]) -> list[str]:
        return [row[2].text for row in set_tables.compare_table(sets)[0].rows]

    def redefined(self, sets: list[load.ResultSet]) -> list[tuple[str, str]]:
        return [(row[1].text, row[2].text) for row in set_tables.redefined_table(sets).rows]

    def test_cells_with_other_keys_are_listed_and_not_compared(self) -> None:
        sets = result_sets([cell(learning_rate=0.01)], [cell(5, learning_rate=0.003)])
        self.assertEqual(set_tables.differences(sets), ([], 0))
        self.assertEqual(
            self.redefined(sets), [(f"same name, different keys: {RATE} 0.01 / 0.003", "set 0: meta / set 1: meta")]
        )
        self.assertNotIn("set 1 against set 0", answer.answer(sets, []).line)

    def test_cells_with_equal_keys_are_compared(self) -> None:
        sets = result_sets([cell(learning_rate=0.01)], [cell(5, learning_rate=0.01)])
        self.assertEqual((self.differing(sets), self.redefined(sets)), (["memory.retained_bytes"], []))

    def test_of_three_sets_those_with_equal_keys_are_compared(self) -> None:
        sets = result_sets([cell(learning_rate=0.01)], [cell(9, learning_rate=0.003)], [cell(5, learning_rate=0.01)])
        (row,) = set_tables.compare_table(sets)[0].rows
        self.assertEqual([text.text for text in row[3:6]], ["0 B", "–", "5 B"])
        self.assertEqual(self.redefined(sets)[0][1], "set 0: meta, set 2: meta / set 1: meta")

    def test_devices_are_no_difference_of_keys(self) -> None:
        sets = result_sets([cell(learning_rate=0.01), cell(5, "cpu", learning_rate=0.01)])
        self.assertEqual((self.differing(sets), self.redefined(sets)), (["memory.retained_bytes"], []))

    def test_a_key_that_an_older_record_lacks_is_no_difference(self) -> None:
        sets = result_sets([cell()], [cell(5, warmup_steps=0)])
        self.assertEqual((self.differing(sets), self.redefined(sets)), (["memory.retained_bytes"], []))

    def test_a_text_is_what_it_holds(self) -> None:
        moved = result_sets([cell(checksum="aa", corpus="/a")], [cell(5, checksum="aa", corpus="/b")])
        self.assertEqual((self.differing(moved), self.redefined(moved)), (["memory.retained_bytes"], []))
        edited = result_sets([cell(checksum="aa", corpus="/a")], [cell(5, checksum="bb", corpus="/a")])
        self.assertEqual(self.redefined(edited)[0][0], "same name, different keys: training.corpus aa / bb")

    def test_few_keys_are_named(self) -> None:
        sets = result_sets([cell(a=1, b=True, c="", d=4, e=5)], [cell(a=2, b=False, c="x", d=5, e=6)])
        words = "training.a 1 / 2, training.b true / false, training.c – / x, 2 more"
        self.assertEqual(self.redefined(sets)[0][0], f"same name, different keys: {words}")

    def test_a_note_says_why_nothing_is_compared(self) -> None:
        self.assertEqual(set_tables.compare_table(result_sets([cell()]))[1], "there is one result set, on one device")
        apart = result_sets([cell()], [sample.cell("another")])
        self.assertEqual(set_tables.compare_table(apart)[1], "no two sets or devices have a figure of the same cell")
        self.assertIn("the same wherever they were measured; 0 differ", set_tables.compare_table(result_sets([cell()], [cell()]))[1])


if __name__ == "__main__":
    unittest.main()
