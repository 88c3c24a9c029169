"""Every reader of a report on documents that no program wrote: mistakes are named, and no exception is raised.

`readers_test.py ROUNDS` tries ROUNDS mutations, and prints how they came out.
"""

import base64
import collections
import copy
import gzip
import json
import random
import re
import sys
import unittest
import warnings
from typing import Any

import sample

import bench
import choice
import documents
import export
import files
import figures
import load
import page
import plot

ROUNDS, PAINTED = 150, 1
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]")
# Values that once ended in a traceback, and text that could move a terminal's cursor or become a page's script.
ODD = [
    None,
    True,
    False,
    0,
    -1,
    0.5,
    1e308,
    -1e308,
    10**400,
    10**30,
    float("nan"),
    float("inf"),
    2**63,
    "",
    " ",
    "x\n::error::y",
    "\x1b[31m\x07",
    "\ud800",
    "\u202e",
    "<!--<script>",
    "</script><script>alert(1)</script>",
    "$\\frac{$",
    "$x$",
    "_",
    "../../secret",
    "/etc/passwd",
    "`|`",
    "%s{}",
    "memory.peak_bytes",
    "after",
    "bf16",
    "x" * 5000,
    [],
    {},
    [None],
    [[]],
    ["x"],
    {"a": {"b": []}},
    {"model": []},
    {"id": "other"},
]


TOKENS = ["null", "1e999", "[" * 3000, '"', "\\", "}", "\x00", "1" + "0" * 400, "9" * 5000, "NaN", '"\\udc00"']


def deep() -> Any:
    out: Any = []
    for _ in range(70):
        out = [out]
    return out


def places(document: Any) -> list[tuple[Any, Any]]:
    """(container, key) of every value."""
    out: list[tuple[Any, Any]] = []
    left = [document]
    while left:
        at = left.pop()
        for key in list(at) if isinstance(at, dict) else range(len(at)):
            out.append((at, key))
            if isinstance(at[key], (dict, list)):
                left.append(at[key])
    return out


def changed(document: Any, chance: random.Random) -> str:
    """The document as JSON with one to three values replaced, or with its text changed."""
    document = copy.deepcopy(document)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        found = places(document)
        if not found:
            break
        at, key = chance.choice(found)
        kind = chance.randrange(10)
        if kind == 0:
            del at[key]
        elif kind == 1 and isinstance(at, dict):
            at[chance.choice([odd for odd in ODD if isinstance(odd, str)])] = at.pop(key)
        elif kind == 2:
            at[key] = copy.deepcopy(chance.choice(found)[0])
        elif kind == 3:
            at[key] = deep()
        else:
            at[key] = copy.deepcopy(chance.choice(ODD))
    text = json.dumps(document)
    if chance.randrange(4) == 0:
        start = chance.randrange(len(text))
        token = chance.choice(TOKENS)
        text = text[:start] + chance.choice([token, "", text[:40]]) + text[start + chance.randrange(6) :]
    return text


class Readers(sample.Case):
    def write(self, name: str, text: str) -> None:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="surrogatepass")

    def shown(self, painted: bool) -> collections.Counter:
        """Does what the program does with the set, without its processes; any exception fails the test."""
        loader = load.Loader()
        loader.load(f"main={self.directory}")
        loader.load(f"lines={self.directory / 'results.jsonl'}")
        benches = bench.load(loader.bench_files, loader.problems)
        plots = choice.choose(loader.sets, benches, 1, loader.problems)
        drawn = figures.timeline_cells(loader.sets, 1)
        with files.Files() as out:
            export.write(drawn, self.directory / "report", out, True, True, loader.problems)
        report = page.make("A title", loader.sets, benches, plots, loader.problems)
        html = page.html(report, {one.name: "" for one in plots})
        texts = [page.markdown(report), html, *map(str, loader.problems)]
        for text in texts:
            text.encode("utf-8")
            self.assertIsNone(CONTROL.search(text), text[:2000])
        packed = html.partition('id="bulk">')[2].partition("</script>")[0]
        bulk = gzip.decompress(base64.b64decode(packed, validate=True)).decode("utf-8")
        self.assertIsNone(CONTROL.search(bulk), bulk[:2000])
        self.assertEqual(set(json.loads(bulk)), {"figures", "tables", "details"})
        for problem in loader.problems:
            self.assertNotRegex(str(problem), r"Error\b|object has no attribute|unhashable")
        if painted:
            for one in plots:
                plot.draw(one)
            self.assertIsNone(CONTROL.search(page.printed(report)))
        cells = sum(len(results.cells) for results in loader.sets)
        return collections.Counter(problems=len(loader.problems), full=not loader.problems, cells=cells)

    def test_mutated_documents_are_named_or_shown(self) -> None:
        chance = random.Random(16)
        cells = sample.cells()
        # A set whose ids are short, so that timelines are found.
        results = sample.document(cells, findings=[sample.finding(cells[0]), sample.finding(cells[1], shown=False)])
        lines = [*cells, sample.cell("other")]
        rows = [
            sample.benchmark("gemm/1024", 2.0, of_gemm=0.8, p50_us=3.0, bytes_per_second=1e12, flops=1e12),
            sample.benchmark("gemm/1024", 2.5, of_gemm=0.7),
            sample.benchmark("copy", 1.0, of_memcpy=0.9) | {"error_occurred": True, "error_message": "no GPU"},
        ]
        benches = {"context": {"num_cpus": 2, "gpu": "a GPU", "caches": [{"size": 1}]}, "benchmarks": rows}
        timeline = f"timelines/{cells[0]['id']}.before.json.gz"
        good = {
            "results.json": results,
            "environment.json": sample.ENVIRONMENT,
            "bench/bench_gemm.json": benches,
            "bench/peer_torch.json": benches,
            timeline: sample.timeline(True),
        }
        totals: collections.Counter = collections.Counter()
        by_file: collections.Counter = collections.Counter()
        for number in range(ROUNDS):
            sample.write_set(self.directory, cells)
            self.write("results.jsonl", "".join(json.dumps(record) + "\n" for record in lines))
            for name, document in good.items():
                self.write(name, json.dumps(document))
            name = chance.choice([*good, "results.json", "results.json", "results.jsonl"])
            if name == "results.jsonl":
                which = chance.randrange(len(lines))
                texts = [changed(record, chance) if at == which else json.dumps(record) for at, record in enumerate(lines)]
                text = "\n".join(texts) + "\n"
            else:
                text = changed(good[name], chance)
            if name == "environment.json":  # which is read if a run did not end
                (self.directory / "results.json").unlink()
            self.write(name, text)
            with self.subTest(number=number, name=name):
                totals += self.shown(painted=number < PAINTED)
            by_file[name.partition("/")[0]] += 1
        print(f"{ROUNDS} mutations, of {dict(by_file)}: {dict(totals)}", file=sys.stderr)
        self.assertGreater(totals["problems"], 0)
        self.assertGreater(totals["full"], 0)

    def test_documents_that_once_ended_in_a_traceback_are_named(self) -> None:
        def document(**environment: Any) -> str:
            return json.dumps(sample.document(sample.cells(), environment=sample.ENVIRONMENT | environment))

        def of_row(**changes: Any) -> str:
            return json.dumps({"benchmarks": [sample.benchmark("a", 1.0), sample.benchmark("b", 1.0) | changes]})

        def of_cell(**changes: Any) -> str:
            return json.dumps(sample.document([sample.cell() | changes, sample.cell("other")]))

        bench_file, results = "bench/b.json", "results.json"
        cases = [
            (bench_file, of_row(time_unit=[]), "benchmark 2 (b): `time_unit` must be one of ns, us, ms, s, but is a list of 0"),
            (bench_file, of_row(real_time=10**400), "benchmark 2 (b): `real_time` must be a number from 0 on, but is"),
            (bench_file, '{"benchmarks": [], "context": []}', "`context` must be an object, but is a list of 0"),
            (bench_file, "[" * 100000, "is nested deeper than 64 levels"),
            (results, document(cpu=[]), "`environment.cpu` must be an object, but is a list of 0; this part is left out"),
            (results, document(cpu={"model": {}}), "`environment.cpu.model` must be text or null, but is an object"),
            (results, document(program=3), "`environment.program` must be an object, but is the number 3"),
            (results, document(program={"git_commit": 5}), "`environment.program.git_commit` must be text or null"),
            (results, document(host=deep()), "`environment.host` must be text, finite numbers, and lists and objects"),
            (results, of_cell(seconds=10**400), "`seconds` must be a number from 0 on, but is the number inf"),
            (results, of_cell(config={"device": []}), "`config.device` must be text, a number, a switch or null, but is"),
        ]
        for name, text, problem in cases:
            with self.subTest(problem):
                for old in ("bench/b.json", "results.json"):
                    (self.directory / old).unlink(missing_ok=True)
                sample.write_set(self.directory)
                self.write(name, text)
                loader = load.Loader()
                loader.load(str(self.directory))
                benches = bench.load(loader.bench_files, loader.problems)
                self.assertEqual(len(loader.problems), 1, [str(one) for one in loader.problems])
                self.assertIn(f"{self.directory / name}: ", str(loader.problems[0]))
                self.assertIn(problem, str(loader.problems[0]))
                self.assertGreater(len(loader.sets[0].cells), 0)
                self.assertEqual(len(benches.ours), int("time" in problem))
                page.make("", loader.sets, benches, [], loader.problems)

    def test_a_lone_surrogate_and_control_characters_are_shown(self) -> None:
        record = sample.cell() | {"title": "\ud800 \x1b[31m \u202e <!--<script>"}
        self.write("results.json", json.dumps(sample.document([record])))
        self.write("results.jsonl", json.dumps(record) + "\n")
        self.shown(painted=False)
        loader = load.Loader()
        loader.load(str(self.directory))
        self.assertEqual(loader.problems, [])
        self.assertEqual(loader.sets[0].cells[0].record["title"], "\\ud800 \\x1b[31m \\u202e <!--<script>")

    def test_markdown_is_escaped_as_the_program_does(self) -> None:
        # Escape.Markdown_* of correctness/harness/results/escape_test.cpp expect the same.
        for text, shown in (
            ("a|b", "a\\|b"),
            ("a\nb", "a b"),
            ("<script>&amp;", "&lt;script>&amp;amp;"),
            ("![x](http://a) *b* `c`", "!\\[x\\](http://a) \\*b\\* \\`c\\`"),
            ("_a_ memory.retained_bytes", "\\_a\\_ memory.retained_bytes"),
            ("# a # b", "\\# a # b"),
            ("   - a", "\\- a"),
            ("12. a", "12\\. a"),
            ("12.5 MiB, -3 B", "12.5 MiB, -3 B"),
            ("back\\slash \x1b[m", "back\\\\slash \\\\x1b\\[m"),
            ("TransformerEngine#1935", "TransformerEngine#1935"),
            ("~~a~~ b~c", "\\~\\~a\\~\\~ b\\~c"),
        ):
            self.assertEqual(documents.markdown(text), shown)
        for text, shown in (("a=1", "`a=1`"), ("a`b", "``a`b``"), ("`a", "`` `a ``"), ("a\n|b", "`a \\|b`")):
            self.assertEqual(documents.markdown_code(text), shown)
        self.assertEqual(documents.one_line("a\nb\x1b"), "a\\nb\\x1b")


if __name__ == "__main__":
    warnings.simplefilter("ignore", UserWarning)  # warnings of fonts that lack a character, and of axes without extent
    if len(sys.argv) > 1 and sys.argv[1].isdigit():
        ROUNDS = int(sys.argv.pop(1))
    unittest.main()
