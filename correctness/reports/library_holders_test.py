"""What a library and the own runtime hold at the end of forward: how holders are paired, and what is written of them."""

import unittest
from typing import Any

import sample
import library_tables
import load

MIB = 1 << 20
SIZES = {"model.seq": 1024, "model.batch": 1, "model.hidden": 1024, "model.layers": 4}  # 4 MiB of elements


def cell_of(subject: str, holders: dict[str, int], total: int | None = None, **config: Any) -> dict[str, Any]:
    record = sample.cell(subject)
    defaults = {"model.layer": "layernorm_mlp", "model.form": "llama", "training.recipe": "delayed"}
    record["config"] = record["config"] | SIZES | defaults | {"subject": subject} | config
    record["claims"] = []
    metrics = {f"memory.forward_by_holder.{kind}": sample.metric(size) for kind, size in holders.items()}
    metrics["memory.end_of_forward_bytes"] = sample.metric(sum(holders.values()) if total is None else total)
    for arm in record["arms"].values():
        arm["metrics"] = metrics
    return record


class Holders(sample.Case):
    def rows(self, *records: dict[str, Any], arm: str = "after") -> dict[str, list[str]]:
        """The rows of one arm, by holder, without the columns that say which cell it is."""
        sample.write_set(self.directory, list(records))
        loader = load.Loader()
        loader.load(str(self.directory))
        table = library_tables.holders_table(loader.sets)
        return {row[3].text: [entry.text for entry in row[4:]] for row in table.rows if row[2].text == arm}

    def test_what_a_tape_saves_stands_beside_a_librarys_contexts(self) -> None:
        rows = self.rows(
            cell_of("transformer_engine", {"context": 104 * MIB, "parameter": 100 * MIB}),
            cell_of("own", {"saved_slot": 70 * MIB, "in_flight": 20 * MIB, "context": 10 * MIB, "parameter": 100 * MIB}),
        )
        self.assertEqual(list(rows), ["all", "parameters", "saved for backward"])
        self.assertEqual(rows["saved for backward"][:5], ["104.0 MiB", "100.0 MiB", "+4.00 MiB", "+1.96 %", "+1.00 B"])
        self.assertIn("ln_out", rows["saved for backward"][5])
        self.assertIn("beyond 1 %", rows["all"][5])
        self.assertEqual(rows["parameters"][5], "within 1 %")

    def test_agreement_is_one_percent_of_all_bytes_alive(self) -> None:
        for extra, note in ((1 * MIB, "within 1 %"), (2 * MIB, "beyond 1 %")):
            rows = self.rows(
                cell_of("torch", {"parameter": 100 * MIB + extra}), cell_of("own", {"parameter": 100 * MIB})
            )
            self.assertIn(note, rows["all"][5])

    def test_a_holder_that_one_of_them_lacks_is_0_there(self) -> None:
        rows = self.rows(
            cell_of("transformer_engine", {"parameter": 100 * MIB, "workspace": 32 * MIB}),
            cell_of("own", {"parameter": 100 * MIB, "gradient": 1 * MIB}),
        )
        self.assertEqual(rows["workspace"][1], "0 B")
        self.assertIn("cuBLAS", rows["workspace"][5])
        self.assertEqual(rows["gradients"][0], "0 B")

    def test_a_note_is_of_the_arms_own_recipe(self) -> None:
        records = [
            cell_of("transformer_engine", {"context": 110 * MIB}),
            cell_of("own", {"saved_slot": 100 * MIB}),
        ]
        for record in records:
            record["arms"]["bf16"] = record["arms"]["after"]
        self.assertIn("ln_out", self.rows(*records)["saved for backward"][5])
        self.assertEqual(self.rows(*records, arm="bf16")["saved for backward"][5], "–")

    def test_a_library_that_holds_less_gets_no_note(self) -> None:
        rows = self.rows(cell_of("transformer_engine", {"context": 90 * MIB}), cell_of("own", {"saved_slot": 100 * MIB}))
        self.assertEqual(rows["saved for backward"][5], "–")

    def test_records_without_holders_are_no_rows(self) -> None:
        self.assertEqual(self.rows(cell_of("torch", {}, 5), cell_of("own", {"parameter": 5})), {})


if __name__ == "__main__":
    unittest.main()
