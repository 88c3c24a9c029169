"""Libraries and the built-in runtime: which cells are put side by side, and what the table reports about them."""

import unittest
from typing import Any

import sample
import library_tables
import load


def cell_of(subject: str, peak: int, **config: Any) -> dict[str, Any]:
    record = sample.cell(subject)
    record["config"] = record["config"] | {"subject": subject, "versions.after": "2.16.1" if subject != "own" else None} | config
    record["id"] = f"{subject}/{','.join(f'{key}={value}' for key, value in config.items())}"
    record["claims"] = []
    for arm in record["arms"].values():
        arm["metrics"] = {"memory.peak_bytes": sample.metric(peak, peak + 1)}
    return record


class Libraries(sample.Case):
    def rows(self, *records: dict[str, Any]) -> list[list[str]]:
        sample.write_set(self.directory, list(records))
        loader = load.Loader()
        loader.load(str(self.directory))
        table = library_tables.libraries_table(loader.sets)
        return [[entry.text for entry in row] for row in table.rows if row[3].text == "after"]

    def test_cells_with_equal_keys_stand_side_by_side_whatever_their_device(self) -> None:
        rows = self.rows(
            cell_of("own", 100, device="meta", **{"model.hidden": 64}),
            cell_of("transformer_engine", 150, device="cuda", **{"model.hidden": 64}),
        )
        self.assertEqual(len(rows), 1)
        self.assertEqual(rows[0][2], "transformer_engine 2.16.1")
        self.assertEqual(rows[0][5:9], ["101 B", "100 B", "151 B", "150 B"])
        self.assertEqual(rows[0][-1], "+50.00 %")

    def test_a_claim_stands_beside_the_arm_of_which_it_is(self) -> None:
        own, library = cell_of("own", 100, **{"model.hidden": 64}), cell_of("torch", 150, **{"model.hidden": 64})
        claim = {"source": "s", "words": "w", "metric": "memory.peak_bytes", "value": 99.0, "unit": "B"} | {
            "predicted": None, "measured": None}
        for arm, text in (("before", "\u2013"), ("after", "99 B (after)")):
            own["claims"] = [claim | {"arm": arm}]
            self.assertEqual(self.rows(own, library)[0][9], text)

    def test_cells_that_differ_in_a_key_do_not(self) -> None:
        own = cell_of("own", 100, **{"model.hidden": 64, "training.optimizer": "none", "ranks": 2})
        for key, value in (("model.hidden", 65), ("training.optimizer", "adam"), ("ranks", 7)):
            self.assertEqual(self.rows(own, cell_of("transformer_engine", 150, **{"model.hidden": 64} | {key: value})), [])

    def test_a_key_that_an_older_record_lacks_makes_no_difference(self) -> None:
        own = cell_of("own", 100, **{"model.hidden": 64, "model.head": "own"})
        self.assertEqual(len(self.rows(own, cell_of("torch", 100, **{"model.hidden": 64}))), 1)

    def test_two_libraries_without_the_own_runtime_are_no_row(self) -> None:
        self.assertEqual(self.rows(cell_of("torch", 1), cell_of("transformer_engine", 1)), [])


if __name__ == "__main__":
    unittest.main()
