"""Bad input: one error that names file and record, and everything else is still shown."""

import errno
import gzip
import json
import os
import pathlib
import re
import unittest
import unittest.mock

import sample

import bench
import load
import records
import set_tables
import tables


class Loading(sample.Case):
    def loaded(self, *arguments: str) -> load.Loader:
        loader = load.Loader()
        for argument in arguments or (str(self.directory),):
            loader.load(argument)
        return loader

    def only_problem(self, loader: load.Loader) -> str:
        self.assertEqual(len(loader.problems), 1, [str(problem) for problem in loader.problems])
        return str(loader.problems[0])

    def test_a_complete_set_has_no_problem(self) -> None:
        sample.write_set(self.directory)
        loader = self.loaded()
        self.assertEqual(loader.problems, [])
        self.assertEqual(len(loader.sets[0].cells), 4)
        self.assertEqual(loader.sets[0].commit, "0123456789ab")

    def test_a_truncated_file_keeps_the_cells_before_the_break(self) -> None:
        sample.write_set(self.directory)
        path = self.directory / "results.json"
        text = path.read_text()
        path.write_text(text[: text.rindex('"scenario"')])
        loader = self.loaded()
        self.assertIn(
            "results.json: after cell 3 (parity/device=cpu,recipe=delayed): is cut off or broken", self.only_problem(loader)
        )
        self.assertEqual(len(loader.sets[0].cells), 3)
        self.assertEqual(loader.sets[0].complete, False)

    def test_a_truncated_file_is_replaced_by_its_lines(self) -> None:
        sample.write_set(self.directory)
        path = self.directory / "results.json"
        path.write_text(path.read_text()[:-100])
        lines = "".join(json.dumps(record) + "\n" for record in sample.cells())
        (self.directory / "results.jsonl").write_text(lines)
        loader = self.loaded()
        self.assertIn("results.jsonl next to it is shown instead", self.only_problem(loader))
        self.assertEqual(len(loader.sets[0].cells), 4)

    def test_a_killed_run_loses_only_its_truncated_line(self) -> None:
        lines = "".join(json.dumps(record) + "\n" for record in sample.cells())
        (self.directory / "results.jsonl").write_text(lines[:-200])
        loader = self.loaded()
        self.assertEqual([problem.record for problem in loader.problems], ["", "line 4"])
        self.assertEqual(len(loader.sets[0].cells), 3)

    def test_a_later_line_of_a_resumed_run_replaces_the_earlier(self) -> None:
        records = [sample.cell() | {"verdict": "fail"}, sample.cell("other"), sample.cell()]
        (self.directory / "results.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        loader = self.loaded(str(self.directory / "results.jsonl"))
        self.assertEqual(loader.problems, [])
        self.assertEqual(sorted(cell.verdict for cell in loader.sets[0].cells), ["confirmed", "confirmed"])

    def test_only_a_line_feed_ends_a_line(self) -> None:
        record = sample.cell() | {"title": "one\u2028two\u2029three\x85four"}
        text = "".join(json.dumps(one, ensure_ascii=False) + end for one, end in ((record, "\r\n"), (sample.cell("other"), "\n")))
        (self.directory / "results.jsonl").write_bytes(text.encode())
        loader = self.loaded(str(self.directory / "results.jsonl"))
        self.assertEqual(loader.problems, [])
        shown = "one\\u2028two\\u2029three\\u0085four"
        self.assertEqual([cell.record["title"] for cell in loader.sets[0].cells], [shown, sample.cell()["title"]])

    def test_a_newer_schema_is_refused_entirely(self) -> None:
        sample.write_set(self.directory / "new", schema="fp8lab.results/2")
        sample.write_set(self.directory / "old")
        loader = self.loaded(str(self.directory / "new"), str(self.directory / "old"))
        self.assertIn("`schema`: is fp8lab.results/2, newer than fp8lab.results/1", self.only_problem(loader))
        self.assertEqual([results.label for results in loader.sets], ["old"])

    def test_another_schema_is_named(self) -> None:
        sample.write_set(self.directory, schema="someone.else/1")
        self.assertIn("`schema`: is `someone.else/1`", self.only_problem(self.loaded()))

    def test_empty_files_and_absent_ones_are_named(self) -> None:
        (self.directory / "results.json").write_text(" \n")
        self.assertIn("results.json: is empty", self.only_problem(self.loaded()))
        self.assertIn("there is no such file", self.only_problem(self.loaded(str(self.directory / "none"))))
        (self.directory / "bare").mkdir()
        self.assertIn("holds neither results.json nor", self.only_problem(self.loaded(str(self.directory / "bare"))))

    def test_an_unreadable_folder_is_named_with_the_cause(self) -> None:
        refused = PermissionError(errno.EACCES, "Permission denied")
        with unittest.mock.patch("os.scandir", side_effect=refused):  # root may read every folder
            problem = self.only_problem(self.loaded(str(self.directory)))
        self.assertTrue(problem.startswith(f"{self.directory}: cannot be read: Permission denied; "), problem)

    def test_a_compressed_file_is_read_and_a_truncated_one_is_named(self) -> None:
        sample.write_set(self.directory)
        plain, packed = self.directory / "results.json", self.directory / "results.json.gz"
        packed.write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()
        (self.directory / "results.jsonl").unlink(missing_ok=True)
        self.assertEqual(len(self.loaded().sets[0].cells), len(sample.cells()))
        packed.write_bytes(packed.read_bytes()[:-20])
        self.assertIn("results.json.gz: cannot be read", self.only_problem(self.loaded()))

    def test_a_pipe_is_named_and_not_waited_for(self) -> None:
        for name in ("x.json", "x.json.gz"):
            os.mkfifo(self.directory / name)
            problem = self.only_problem(self.loaded(str(self.directory / name)))
            self.assertIn(f"{name}: cannot be read: not a file but a pipe or a device", problem)

    def test_a_file_that_expands_beyond_the_limit_is_named(self) -> None:
        packed = self.directory / "x.json.gz"
        packed.write_bytes(gzip.compress(b" " * 1000))
        with unittest.mock.patch("documents.MOST_BYTES", 999):
            self.assertIn("expands to more than 999 bytes", self.only_problem(self.loaded(str(packed))))
        with unittest.mock.patch("documents.MOST_BYTES", 1000):
            self.assertIn("x.json.gz: is empty", self.only_problem(self.loaded(str(packed))))

    def test_a_truncated_compressed_file_is_replaced_by_its_lines(self) -> None:
        sample.write_set(self.directory)
        plain, packed = self.directory / "results.json", self.directory / "results.json.gz"
        packed.write_bytes(gzip.compress(plain.read_bytes())[:-20])
        plain.unlink()
        (self.directory / "results.jsonl").write_text("".join(json.dumps(cell) + "\n" for cell in sample.cells()))
        for argument in (self.directory, packed):
            loader = self.loaded(str(argument))
            self.assertIn("results.json.gz: cannot be read", self.only_problem(loader))
            self.assertEqual([len(results.cells) for results in loader.sets], [len(sample.cells())])
            self.assertEqual(loader.sets[0].complete, False)

    def test_a_set_without_cells_says_so(self) -> None:
        sample.write_set(self.directory, [])
        self.assertIn("holds no cell that can be shown", self.only_problem(self.loaded()))

    def test_mixed_results_are_named_by_record(self) -> None:
        broken = sample.cell("broken")
        del broken["gates"]
        unknown = sample.cell("unknown") | {"verdict": "splendid"}
        sample.write_set(self.directory, [*sample.cells(), sample.cell(), broken, unknown])
        loader = self.loaded()
        records = [str(problem).partition("results.json: ")[2] for problem in loader.problems]
        self.assertEqual(len(records), 3)
        self.assertIn("cell 5 (leak/device=meta,recipe=delayed): is the same cell as cell 1", records[0])
        self.assertIn("cell 6 (broken/device=meta,recipe=delayed): `gates` is missing", records[1])
        self.assertIn("cell 7 (unknown/device=meta,recipe=delayed): `verdict` must be one of confirmed, ", records[2])
        self.assertEqual(len(loader.sets[0].cells), 4)

    def test_a_value_of_another_type_is_named_by_its_place(self) -> None:
        value = "arms.after.metrics.memory.retained_bytes.value"
        for path, wrong, fault in (
            ("upstream[0]", 7, "must be text, but is the number 7"),
            ("axes.recipe", {}, "must be text, but is an object of 0 members"),
            (value, "much", 'must be a finite number or null, but is the text "much"'),
            (value, True, "must be a finite number or null, but is true"),
            (value, 10**400, f"must be a finite number or null, but is the number 1{'0' * 56}..."),
            ("arms.after.losses[1]", "x", 'must be a finite number or null, but is the text "x"'),
            ("arms.after.noise[0].tensor", None, "must be text, but is null"),
            ("gates[0].metric", [], "must be text or null, but is a list of 0"),
            ("claims[0].value", "20 GB", 'must be a finite number, but is the text "20 GB"'),
        ):
            record = sample.cell()
            record["arms"]["after"] |= {"losses": [1.0, None], "noise": [{"tensor": "w", "of": "weight", "sqnr_db": 20.0}]}
            record["claims"] = [{"source": "a", "words": "b", "metric": "m", "arm": "after", "value": 1, "unit": "B"}]
            record["claims"][0] |= {"predicted": None, "measured": 1}
            record["upstream"] = ["TransformerEngine#1"]
            self.assertEqual(records.fault_of(record), "")
            entry, last = record, ""
            keys = re.findall(r"metrics\.memory\.retained_bytes|[^.\[\]]+", path)
            keys = [part for key in keys for part in ([key] if "." not in key else ["metrics", "memory.retained_bytes"])]
            for key, following in zip(keys, keys[1:]):
                entry = entry[int(key) if isinstance(entry, list) else key]
                last = following
            entry[int(last) if isinstance(entry, list) else last] = wrong
            where = path.replace("memory.retained_bytes", '"memory.retained_bytes"')
            self.assertEqual(records.fault_of(record), f"`{where}` {fault}")

    def test_an_id_that_leaves_the_folder_is_refused(self) -> None:
        for cell_id in ("/etc/passwd", ""):
            self.assertEqual(
                records.fault_of(sample.cell() | {"id": cell_id}),
                f'`id` must be a path below the set\'s folder, but is the text "{cell_id}"',
            )
        self.assertEqual(records.fault_of(sample.cell() | {"id": "a/corpus=../b"}), "")

    def test_nan_is_refused_as_a_figure(self) -> None:
        sample.write_set(self.directory)
        path = self.directory / "results.json"
        path.write_text(path.read_text().replace('"value": 1500', '"value": NaN', 1))
        loader = self.loaded()
        self.assertIn(
            'cell 1 (leak/device=meta,recipe=delayed): `arms.after.metrics."host.pre_forward_ns".value` must be a '
            'finite number or null, but is the text "NaN"; left out: run its scenario again to have it shown',
            self.only_problem(loader),
        )
        self.assertEqual(len(loader.sets[0].cells), 3)

    def test_labels_of_sets_are_unique(self) -> None:
        sample.write_set(self.directory / "a" / "out")
        sample.write_set(self.directory / "b" / "out")
        loader = self.loaded(
            str(self.directory / "a" / "out"), str(self.directory / "b" / "out"), f"mine={self.directory / 'b' / 'out'}"
        )
        self.assertEqual([results.label for results in loader.sets], ["out", "out (2)", "mine"])


class Timelines(sample.Case):
    def set_of(self, *ids: str) -> list[load.Cell]:
        (self.directory / "timelines" / "a").mkdir(parents=True)
        results = load.ResultSet("s", "s", root=self.directory)
        results.cells = [load.Cell(sample.cell() | {"id": cell_id}, results) for cell_id in ids]
        return results.cells

    def write(self, name: str) -> pathlib.Path:
        path = self.directory / "timelines" / name
        path.write_text("{}")
        return path

    def test_the_record_names_the_file_whatever_the_cell_is_called(self) -> None:
        cell, other, outside = self.set_of("a/" + "x" * 1000, "a/y", "a/z")
        path = self.write("a/short.before.json.gz")
        cell.record["timelines"] = {"before": "timelines/a/short.before.json.gz", "after": None}
        self.assertEqual([cell.timeline(arm) for arm in ("before", "after", "bf16")], [path, None, None])
        self.write("a/y.before.json")
        other.record["timelines"] = {}
        self.assertIsNone(other.timeline("before"), "the record has no timeline")
        (self.directory / "secret.json").write_text("{}")
        outside.record["timelines"] = {"before": "timelines/../secret.json", "after": "/etc/hostname"}
        self.assertEqual([outside.timeline(arm) for arm in ("before", "after")], [None, None])

    def test_a_link_out_of_the_folder_is_not_followed(self) -> None:
        (cell,) = self.set_of("a/b")
        secret = self.directory / "secret.json"
        secret.write_text("{}")
        cell.record["timelines"] = {arm: f"timelines/a/b.{arm}.json.gz" for arm in ("before", "after")}
        (self.directory / "timelines" / "a" / "b.before.json.gz").symlink_to(secret)
        self.assertIsNone(cell.timeline("before"))
        self.write("a/b.after.json.gz")
        self.assertIsNotNone(cell.timeline("after"))


class Figures(sample.Case):
    def cell(self, record: dict) -> load.Cell:
        results = load.ResultSet("s", "s")
        results.cells.append(load.Cell(record, results))
        return results.cells[0]

    def test_an_absent_value_is_a_dash_with_a_reason_and_not_zero(self) -> None:
        cell = self.cell(sample.cell())
        figure = cell.figure("after", "traffic.all_reduce_bytes")
        text = tables.number(figure.value, figure.unit, figure.reason)
        self.assertEqual((text.text, text.sort, text.note), ("–", None, "nothing is replicated"))
        self.assertIsNone(cell.figure("difference", "traffic.all_reduce_bytes").value)
        self.assertEqual(cell.figure("after", "memory.none").reason, "not measured")
        self.assertEqual(tables.number(0, "B").text, "0 B")

    def test_differences_are_before_minus_after(self) -> None:
        figure = self.cell(sample.cell()).figure("difference", "memory.retained_bytes")
        self.assertEqual((figure.value, figure.predicted), (3 * sample.MIB, 3 * sample.MIB))

    def test_sets_side_by_side_show_what_differs(self) -> None:
        slower = sample.cell()
        slower["arms"]["after"]["metrics"]["memory.retained_bytes"]["value"] = 5
        sets = []
        for number, record in enumerate((sample.cell(), slower)):
            results = load.ResultSet(f"commit {number}", "", number)
            results.cells.append(load.Cell(record, results))
            sets.append(results)
        table, note = set_tables.compare_table(sets)
        self.assertEqual(len(table.rows), 1)
        self.assertEqual([text.text for text in table.rows[0][1:5]], ["after", "memory.retained_bytes", "0 B", "5 B"])
        self.assertIn("1 differ", note)


class Benchmarks(sample.Case):
    def test_peers_are_matched_by_name_and_bounds_by_counter(self) -> None:
        ours = sample.write_benchmarks(
            self.directory / "bench_gemm.json",
            [sample.benchmark("gemm/1024/iterations:31", 2.0, flops=1e12, of_gemm=0.8), sample.benchmark("alone", 1.0)],
        )
        theirs = sample.write_benchmarks(
            self.directory / "peer_cutlass.json", [sample.benchmark("gemm/1024/iterations:7", 1.0)]
        )
        problems: list[load.Problem] = []
        found = bench.load([("a", ours), ("a", theirs)], problems)
        self.assertEqual(problems, [])
        self.assertEqual([(r.name, r.to, r.value) for r in bench.to_bounds(found)], [("gemm/1024", "gemm", 0.8)])
        self.assertEqual([(r.name, r.to, r.value) for r in bench.to_peers(found)], [("gemm/1024", "cutlass", 0.5)])

    def to_peers(self, *arguments: str) -> list[tuple[str, str, float | None]]:
        loader = load.Loader()
        for argument in arguments:
            loader.load(argument)
        found = bench.load(loader.bench_files, loader.problems)
        self.assertEqual(loader.problems, [])
        return [(ratio.source, ratio.to, ratio.value) for ratio in bench.to_peers(found)]

    def write_benches(self, name: str, ours: float | None, theirs: float | None) -> str:
        for file, time in (("bench_gemm", ours), ("peer_torch", theirs)):
            if time is not None:
                sample.write_benchmarks(self.directory / name / "bench" / f"{file}.json", [sample.benchmark("gemm", time)])
        return str(self.directory / name)

    def test_a_peer_is_of_the_same_set_or_names_its_set(self) -> None:
        a = self.write_benches("x/a", 1.0, 2.0)
        b = self.write_benches("b", 1.0, 3.0)
        bare = self.write_benches("bare", 1.0, None)
        expected = [("a/bench_gemm", "torch", 2.0), ("b/bench_gemm", "torch", 3.0)]
        self.assertEqual(self.to_peers(a, b), expected)
        self.assertEqual(self.to_peers(b, a), expected[::-1])
        self.assertEqual(self.to_peers(bare, b, a)[0], ("bare/bench_gemm", "torch (set b)", 3.0))

    def test_sets_of_one_name_keep_their_peers(self) -> None:
        one, two = self.write_benches("x/a", 1.0, 2.0), self.write_benches("y/a", 1.0, 3.0)
        expected = [("a/bench_gemm", "torch", 2.0), ("a (2)/bench_gemm", "torch", 3.0)]
        self.assertEqual(self.to_peers(one, two), expected)
        files = [str(path) for out in (one, two) for path in sorted(pathlib.Path(out, "bench").iterdir())]
        self.assertEqual([value for _, _, value in self.to_peers(*files)], [2.0, 3.0])
        files.remove(f"{one}/bench/peer_torch.json")
        self.assertEqual([to for _, to, _ in self.to_peers(*files)], ["torch (set bench)", "torch"])

    def test_medians_are_compared_where_both_have_one(self) -> None:
        paths = [self.directory / name for name in ("bench_a.json", "peer_torch.json")]
        for mine, its, ratio in ((100.0, 150.0, 1.5), (100.0, None, 4.0), (None, 150.0, 4.0)):
            for path, time, median in zip(paths, (1.0, 4.0), (mine, its)):
                counters = {} if median is None else {"p50_us": median}
                sample.write_benchmarks(path, [sample.benchmark("a", time, **counters)])
            found = bench.load([("a", path) for path in paths], [])
            self.assertEqual([row.value for row in bench.to_peers(found)], [ratio])

    def test_repetitions_give_their_median_and_errors_a_reason(self) -> None:
        rows = [sample.benchmark("a", t) for t in (1.0, 9.0, 2.0)] + [
            sample.benchmark("b", 0.0) | {"error_occurred": True, "error_message": "no GPU"}
        ]
        found = bench.load([("a", sample.write_benchmarks(self.directory / "x.json", rows))], [])
        self.assertEqual([(row.nanoseconds, row.reason) for row in found.ours], [(2e6, ""), (None, "no GPU")])

    def test_a_broken_file_is_named(self) -> None:
        path = self.directory / "x.json"
        path.write_text('{"benchmarks": [')
        problems: list[load.Problem] = []
        bench.load([("a", path)], problems)
        self.assertIn("x.json: line 1: is not JSON: ", str(problems[0]))
        self.assertIn("; run the benchmark again", str(problems[0]))


if __name__ == "__main__":
    unittest.main()
