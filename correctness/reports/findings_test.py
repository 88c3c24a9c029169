"""The first screen: the largest findings of the results in their order, with pictures; all others, and what is not shown."""

import io
import pathlib
import re
import tempfile
import unittest
from typing import Any
from unittest import mock

import sample

import bench
import choice
import findings
import load
import page
import render
import workers

MIB = sample.MIB


def loaded(directory: pathlib.Path, cells: list[dict[str, Any]], found: Any) -> list[load.ResultSet]:
    sample.write_set(directory, cells, **({} if found is None else {"findings": found}))
    loader = load.Loader()
    loader.load(str(directory))
    return loader.sets


class Findings(sample.Case):
    def made(self, cells: list[dict[str, Any]], found: Any) -> page.Report:
        sets = loaded(self.directory, cells, found)
        return page.make("A report", sets, bench.Bench(), choice.choose(sets, bench.Bench(), 1, []), [])

    def test_the_first_five_shown_findings_open_the_page_in_the_order_of_the_results(self) -> None:
        cells = [sample.cell(f"s{number}") for number in range(7)]
        found = [sample.finding(cell, fix=f"fix_{number}") for number, cell in enumerate(cells)]
        found[1] |= {"shown": False, "reason": "no cell confirms it"}
        found[2] |= {"kind": "held"}
        made = self.made(cells, found)
        self.assertEqual([lead.name for lead in made.leads], ["fix_0", "fix_3", "fix_4", "fix_5", "fix_6"])
        self.assertEqual(made.leads[0].text, "3.00 MiB retained after backward → 0 (1 of 2 cells)")
        self.assertEqual(made.leads[0].link, "#cell/0/s0/device=meta,recipe=delayed")
        self.assertEqual(made.leads[0].source, "built-in runtime on meta, delayed; s0")
        html = page.html(made, {})
        self.assertLess(html.index("fix_<wbr>0"), html.index("<nav"))
        rows = findings.findings_table(made.sets).rows
        self.assertEqual([row[0].text for row in rows], ["fix_0", "fix_2", "fix_3", "fix_4", "fix_5", "fix_6"])
        (hidden,) = findings.hidden_table(made.sets).rows
        self.assertEqual([hidden[0].text, hidden[3].text], ["fix_1", "no cell confirms it"])

    def test_a_finding_about_memory_has_both_timelines_and_another_one_has_bars(self) -> None:
        cells = [sample.cell("memory"), sample.cell("wire")]
        found = [sample.finding(cells[0]), sample.finding(cells[1], metric="traffic.collectives", unit="1", before=8, after=4)]
        memory, wire = self.made(cells, found).leads
        self.assertEqual([re.search(r">(before|after)<", picture)[1] for picture in memory.pictures], ["before", "after"])
        self.assertIn("retained 3.00 MiB", memory.pictures[0])
        (bars,) = wire.pictures
        before, after = (float(width) for width in re.findall(r'width="([0-9.]+)" height="17"', bars))
        self.assertAlmostEqual(before, 2 * after)

    def test_an_arm_that_does_not_end_is_shown_against_one_that_works(self) -> None:
        record = sample.cell()
        record["arms"]["before"] |= {"status": "crashed", "signal": "SIGSEGV"}
        found = sample.finding(record, kind="ending", metric=None, unit=None, before=None, after=None, text="SIGSEGV -> works (1 of 2 cells, meta)")
        (lead,) = self.made([record], [found]).leads
        self.assertEqual(lead.text, "SIGSEGV → works (1 of 2 cells, meta)")
        self.assertEqual(re.findall(r">([^<>]+)</text>", lead.pictures[0]), ["before", "SIGSEGV", "after", "works"])

    def test_a_library_is_named_as_the_source_of_its_figures(self) -> None:
        record = sample.cell()
        record["config"] |= {"subject": "transformer_engine", "versions.after": "2.16.0"}
        made = self.made([record], [sample.finding(record)])
        self.assertTrue(made.leads[0].source.startswith("transformer_engine 2.16.0 on meta"))

    def test_results_without_findings_name_their_program_and_list_verdicts(self) -> None:
        made = self.made(sample.cells(), None)
        self.assertEqual(made.leads, [])
        (section,) = (section for section in made.sections if section.name == "findings")
        self.assertIn("written by fp8lab 0.1.0 at 0123456789ab", section.text)
        self.assertEqual([row[1].text for row in section.tables[2].rows], ["leak", "parity"])
        self.assertEqual(section.tables[2].rows[1][4].text.partition(";")[0], "peak bytes 9.00 MiB")

    def test_a_malformed_finding_is_named_and_the_others_are_kept(self) -> None:
        record = sample.cell()
        sample.write_set(self.directory, [record], findings=[sample.finding(record), {"text": 7}, sample.finding(record)])
        loader = load.Loader()
        loader.load(str(self.directory))
        self.assertEqual(len(loader.sets[0].findings), 2)
        self.assertRegex(str(loader.problems[0]), r"finding 2: `finding\.\w+`.*; left out")

    def test_hostile_texts_are_escaped_in_every_form(self) -> None:
        record = sample.cell()
        evil = '<script>alert(1)</script><img src=x onerror="1">'
        made = self.made([record], [sample.finding(record, text=evil, fix=evil, cell=evil, metric=evil, scenarios=[evil])])
        for html in (page.html(made, {}), page.printed(made)):
            shown = html.partition("<body>")[2].replace("<wbr>", "")
            self.assertNotIn("<script>alert", shown)
            self.assertNotIn("<img", shown)
            self.assertIn("&lt;script&gt;alert(1)", shown)
        self.assertNotIn("<script>", re.sub("`+[^`]*`+", "", page.markdown(made)), "code spans are literal")


class Identifiers(unittest.TestCase):
    def test_what_is_equal_in_all_rows_is_stated_once(self) -> None:
        results = load.ResultSet("s", "")
        for recipe in ("block", "mxfp8"):
            record = sample.cell(recipe=recipe)
            record["verdict"], record["reason"] = "fail", "why"
            results.cells.append(load.Cell(record, results))
        made = page.make("", [results], bench.Bench(), [], [])
        table = next(section for section in made.sections if section.name == "attention").tables[0]
        self.assertEqual([row[1].text for row in table.rows], ["leak/recipe=block", "leak/recipe=mxfp8"])
        self.assertEqual([row[1].link for row in table.rows][0], "#cell/0/leak/device=meta,recipe=block")
        self.assertEqual(table.caption, "In all rows: device=meta.")

    def test_lines_break_in_names_only_after_separators(self) -> None:
        broken = page._breakable("release_attention_tensors, layers[0].fc1 a/b=c 3.5 1,279 <b>")
        self.assertEqual(
            broken, "release_<wbr>attention_<wbr>tensors, layers[0].<wbr>fc1 a/<wbr>b=<wbr>c 3.5 1,279 &lt;b&gt;"
        )


class Paper(unittest.TestCase):
    def test_without_a_browser_there_is_a_reason_with_a_remedy(self) -> None:
        with mock.patch.object(render, "NAMES", ()):
            self.assertEqual(render.pdf_of("<p>")[0], b"")
            self.assertIn("needs Chromium or Chrome: install the Debian package chromium", render.pdf_of("<p>")[1])

    def test_a_browser_that_fails_leaves_a_reason(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            program = pathlib.Path(name, "chromium")
            program.write_text("#!/bin/sh\nexit 1\n")
            program.chmod(0o755)
            with mock.patch.object(render, "find_browser", lambda: str(program)):
                self.assertIn("did not print the page", render.pdf_of("<p>")[1])


class Progress(unittest.TestCase):
    def lines(self, is_terminal: bool, seconds: list[float]) -> str:
        stream = io.StringIO()
        stream.isatty = lambda: is_terminal  # type: ignore[method-assign]
        now = iter([0.0, *seconds])
        with workers.Progress(stream, lambda: next(now)) as shown:
            for number in range(1, len(seconds) + 1):
                shown.show("figures drawn", number, 10, 0.0)
        return stream.getvalue()

    def test_the_first_five_seconds_are_silent(self) -> None:
        self.assertEqual(self.lines(False, [0.1, 4.9]), "")

    def test_a_log_has_a_line_every_ten_seconds_with_the_time_left(self) -> None:
        self.assertEqual(
            self.lines(False, [1.0, 6.0, 8.0, 15.9, 20.0]),
            "report: figures drawn, 2 of 10, 6 s, about 24 s left\nreport: figures drawn, 5 of 10, 20 s, about 20 s left\n",
        )

    def test_a_terminal_has_one_line_that_is_cleared_at_the_end(self) -> None:
        text = self.lines(True, [6.0, 7.0])
        self.assertEqual(text.count("\n"), 0)
        self.assertEqual(text.count("figures drawn"), 2)
        self.assertRegex(text, r"\r +\r\Z")


if __name__ == "__main__":
    unittest.main()
