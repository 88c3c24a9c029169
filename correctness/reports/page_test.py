"""The page in a browser: every section is there, nothing is fetched, nothing is logged, tables sort by keyboard, links
to cells unfold them, in light and in dark."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import sample
from chromium import Chromium, find

SECTIONS = [
    "findings",
    "claims",
    "timelines",
    "holders",
    "retained",
    "wire",
    "host",
    "losses",
    "noise",
    "ratios",
    "compare",
    "sets",
    "environment",
    "cells",
    "gaps",
]


# Polls until a function of the page returns something.
SOON = (
    "(async (look) => { for (let i = 0; i < 500; ++i) { const found = look(); if (found) return found;"
    "await new Promise((later) => setTimeout(later, 20)); } return null; })"
)


def write_report(directory: pathlib.Path, hash_seed: str = "random") -> subprocess.CompletedProcess:
    sample.write_set(directory / "a", findings=[sample.finding(sample.cell())])
    other = sample.cells()
    other[0]["arms"]["after"]["metrics"]["memory.retained_bytes"]["value"] = 7
    for arm in ("before", "after"):
        other[0]["arms"][arm]["notes"] = ["<b>attention</b>: own kernel"]
    other[0]["arms"]["after"]["notes"] += [f"note {i}" for i in range(20)]
    sample.write_set(directory / "b", other)
    rows = [sample.benchmark("gemm/1024", 2.0, flops=1e12, bytes_per_second=1e9, of_gemm=0.8)]
    sample.write_benchmarks(directory / "a" / "bench" / "bench_gemm.json", rows)
    sample.write_benchmarks(directory / "a" / "bench" / "peer_cutlass.json", [sample.benchmark("gemm/1024", 1.5)])
    command = [
        sys.executable,
        "-B",
        str(sample.ROOT / "reports"),
        f"one={directory / 'a'}",
        f"two={directory / 'b'}",
        "--out",
        str(directory / "report"),
        "--snapshots",
        "--traces",
    ]
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        program = find()
        if program is None:
            raise RuntimeError("no Chromium; install the Debian package chromium (ci/setup test does)")
        temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        cls.addClassCleanup(temporary.cleanup)
        cls.directory = pathlib.Path(temporary.name)
        cls.ended = write_report(cls.directory)
        cls.report = cls.directory / "report"
        browser = Chromium(program, cls.directory / "profile")
        cls.browser = cls.enterClassContext(browser)
        cls.url = (cls.report / "report.html").as_uri()

    def setUp(self) -> None:
        self.browser.errors.clear()
        self.browser.requests.clear()
        self.browser.screen(dark=False)
        self.browser.open(self.url)
        self.browser.evaluate("document.fp8labDrawAll().then(() => true)")

    def tearDown(self) -> None:
        self.assertEqual(self.browser.errors, [])

    def test_every_section_has_something_to_show(self) -> None:
        self.assertEqual((self.ended.returncode, sample.without_progress(self.ended.stderr)), (0, ""))
        self.assertEqual(self.browser.evaluate("[...document.querySelectorAll('main > section')].map(s => s.id)"), SECTIONS)
        gaps = self.browser.evaluate("[...document.querySelectorAll('#gaps li')].map(gap => gap.textContent.split(':')[0])")
        self.assertEqual(gaps, ["Needs attention", "Did not run", "Step time", "What one key changes",
                                "Libraries and the built-in runtime",
                                "Controls of the measurement"])
        figures = self.browser.evaluate(
            "[...document.querySelectorAll('figure svg')].map(s => s.getBoundingClientRect().height)"
        )
        self.assertGreaterEqual(len(figures), 12)
        self.assertTrue(all(height > 100 for height in figures), figures)

    def test_every_run_writes_the_same_page(self) -> None:
        def written() -> dict[str, bytes]:  # the browser writes the time into a PDF
            files = [file for file in self.report.rglob("*") if file.is_file() and file.suffix != ".pdf"]
            return {str(file.relative_to(self.report)): file.read_bytes() for file in files}

        first = written()
        self.assertGreater(sum(name.endswith(".svg") for name in first), 11)
        self.assertEqual(write_report(self.directory, "1").returncode, 0)
        again = written()
        self.assertEqual([name for name in first | again if first.get(name) != again.get(name)], [])

    def test_nothing_is_fetched(self) -> None:
        self.assertEqual([url for url in self.browser.requests if not url.startswith(("file:", "data:"))], [])
        html = (self.report / "report.html").read_text()
        self.assertEqual(re.findall(r"""<(?:script|img|link|iframe)[^>]*(?:src|href)=["'](?!data:)""", html), [])

    def test_ids_are_unique(self) -> None:
        twice = self.browser.evaluate(
            "(() => { const all = [...document.querySelectorAll('[id]')].map(e => e.id);"
            "return all.filter((id, i) => all.indexOf(id) !== i); })()"
        )
        self.assertEqual(twice, [])

    def column(self, table: str, column: int) -> list[str]:
        return self.browser.evaluate(
            f"[...document.getElementById('table-{table}').tBodies[0].rows].map(r => r.cells[{column}].textContent)"
        )

    def test_tables_sort_by_keyboard(self) -> None:
        header = "document.getElementById('table-cells').tHead.rows[0].cells[9]"
        self.browser.evaluate(f"{header}.firstElementChild.focus()")
        before = self.column("cells", 9)
        self.assertIn("–", before)
        self.browser.press("Enter", 13, "\r")
        self.assertEqual(self.browser.evaluate(f"{header}.getAttribute('aria-sort')"), "ascending")
        ascending = self.column("cells", 9)
        self.browser.press(" ", 32, " ")
        self.assertEqual(self.browser.evaluate(f"{header}.getAttribute('aria-sort')"), "descending")
        descending = self.column("cells", 9)
        self.assertEqual(sorted(before), sorted(ascending))
        self.assertTrue(ascending[-1] == descending[-1] == "–", "absent figures come last either way")
        self.browser.press("Tab", 9)
        self.assertEqual(self.browser.evaluate("document.activeElement.textContent"), "peak after")

    def test_figures_sort_as_numbers(self) -> None:
        self.browser.evaluate("document.getElementById('table-wire').tHead.rows[0].cells[5].firstElementChild.click()")
        self.browser.evaluate("document.getElementById('table-compare').tHead.rows[0].cells[4].firstElementChild.click()")
        values = self.browser.evaluate(
            "[...document.getElementById('table-compare').tBodies[0].rows].map(r => r.cells[4].dataset.n ?? null)"
        )
        numbers = [float(value) for value in values if value is not None]
        self.assertEqual(numbers, sorted(numbers))

    def test_what_is_below_the_fold_is_drawn_when_it_is_seen(self) -> None:
        self.browser.open("about:blank")
        self.browser.open(self.url)
        waiting = "document.querySelectorAll('[data-plot]').length"
        self.assertGreater(self.browser.evaluate(waiting), 8)
        self.browser.evaluate("document.querySelector('#noise figure').scrollIntoView()")
        self.assertTrue(self.browser.evaluate(f"{SOON}(() => document.querySelector('#noise figure svg') && true)"))
        self.browser.evaluate("dispatchEvent(new Event('beforeprint'))")
        self.assertTrue(self.browser.evaluate(f"{SOON}(() => {waiting} === 0)"))

    def test_cells_are_chosen_by_facets_and_words(self) -> None:
        rows = "[...document.getElementById('table-cells').tBodies[0].rows]"
        select = "document.querySelector('.search[data-table=table-cells] select[data-column=\"4\"]')"
        recipes = set(self.column("cells", 4))
        self.assertGreater(len(recipes), 1)
        chosen = sorted(recipes)[0]
        change = "dispatchEvent(new Event('input'))"
        self.browser.evaluate(f"{select}.value = '{chosen}', {select}.{change}")
        shown = self.browser.evaluate(f"{rows}.filter(r => !r.hidden).map(r => r.cells[4].textContent)")
        self.assertEqual(set(shown), {chosen})
        self.assertEqual(len(shown), self.column("cells", 4).count(chosen))
        self.browser.evaluate(f"{select}.value = '', {select}.{change}")
        search = "document.querySelector('.search[data-table=table-cells] input')"
        self.browser.evaluate(f"{search}.value = 'no such cell', {search}.{change}")
        self.assertEqual(self.browser.evaluate(f"{rows}.filter(r => !r.hidden).length"), 0)

    def test_a_phone_scrolls_down_only(self) -> None:
        self.browser.screen(dark=False, width=390, height=844)
        wide, answer_width = self.browser.evaluate(
            "[document.documentElement.scrollWidth, document.querySelector('.answer').getBoundingClientRect().right]"
        )
        self.assertLessEqual(wide, 390)
        self.assertLessEqual(answer_width, 390)
        self.browser.evaluate("document.fp8labDrawAll().then(() => true)")
        far = self.browser.evaluate(
            "[...document.querySelectorAll('.panels svg, .scroll, .keys, h3, .leads')]"
            ".filter(e => e.getBoundingClientRect().right > 390).length"
        )
        self.assertEqual(far, 0)
        left, below = self.browser.evaluate(
            "(([a, b]) => [b.left - a.left, b.top >= a.bottom])([...document.querySelector('figure .panels').children]"
            ".map(e => e.getBoundingClientRect()))"
        )
        self.assertEqual((left, below), (0, True), "the panel of after is below the panel of before")

    def test_no_word_is_broken_in_a_table(self) -> None:
        # A text node whose letters stand on several lines was broken inside, unless it was broken at a space or a hyphen.
        broken = (
            "(() => { const out = []; const walk = document.createTreeWalker(document.querySelector('main'), 4);"
            "while (walk.nextNode()) { const node = walk.currentNode; if (!node.parentElement.closest('td')) continue;"
            "for (const found of node.data.matchAll(/[A-Za-z0-9]+/g)) { const range = document.createRange();"
            "range.setStart(node, found.index); range.setEnd(node, found.index + found[0].length);"
            "if (new Set([...range.getClientRects()].map(r => Math.round(r.top))).size > 1) out.push(found[0]); } }"
            "return out; })()"
        )
        for width, media in ((1280, ""), (390, ""), (718, "print")):
            with self.subTest(width=width, media=media):
                self.browser.screen(dark=False, width=width, height=900)
                self.browser.call("Emulation.setEmulatedMedia", media=media)
                self.assertEqual(self.browser.evaluate(broken), [])
                style = "document.head.appendChild(document.createElement('style'))"
                self.browser.evaluate(f"({style}).textContent = 'td {{ max-width: 2rem !important; min-width: 0 !important; word-break: break-all; }}'")
                self.assertNotEqual(self.browser.evaluate(broken), [], "the search finds broken words")
                self.browser.evaluate("document.head.lastElementChild.remove()")
        self.browser.call("Emulation.setEmulatedMedia", media="")

    def test_the_findings_open_the_page(self) -> None:
        text = self.browser.evaluate("document.querySelector('header .leads li').innerText")
        self.assertIn("release_attention_tensors: 3.00 MiB retained after backward → 0 (1 of 2 cells)", text)
        self.assertEqual(self.browser.evaluate("document.querySelectorAll('header .leads svg').length"), 2)

    def test_print_has_all_figures_and_no_controls(self) -> None:
        self.browser.call("Emulation.setEmulatedMedia", media="print")
        self.addCleanup(self.browser.call, "Emulation.setEmulatedMedia", media="")
        shown = self.browser.evaluate(
            "[...document.querySelectorAll('nav, #theme, .search')].filter(e => getComputedStyle(e).display !== 'none').length"
        )
        self.assertEqual(shown, 0)
        self.assertEqual(self.browser.evaluate("document.querySelectorAll('[data-plot]').length"), 0)

    def test_the_answer_comes_first(self) -> None:
        text = self.browser.evaluate("document.querySelector('.answer').textContent")
        self.assertRegex(text, "^All [0-9,]+ cells that ran came out as their scenarios expect")
        self.assertEqual(self.browser.evaluate("document.querySelectorAll('.figures dd').length"), 3)

    def test_a_link_to_a_cell_unfolds_it(self) -> None:
        self.browser.open(self.url + "#cell/0/leak/device=meta,recipe=delayed")
        text = self.browser.evaluate(f"{SOON}(() => document.querySelector('tr.detail')?.textContent)")
        self.assertIn("memory.retained_bytes", text)
        self.assertIn("3.00 MiB (3,145,728 B)", text)
        reason = self.browser.evaluate(
            "[...document.querySelectorAll('tr.detail td.absent')].map(c => c.title).find(Boolean)"
        )
        self.assertEqual(reason, "nothing is replicated")

    def test_a_cell_shows_the_notes_of_its_arms(self) -> None:
        self.browser.open(self.url + "#cell/1/leak/device=meta,recipe=delayed")
        notes = f"{SOON}(() => document.querySelector('tr.detail ul')?.innerText.split('\\n'))"
        shown = self.browser.evaluate(notes)
        self.assertEqual(shown[0], "<b>attention</b>: own kernel (before, after)")
        self.assertEqual(shown[1], "note 0 (after)")
        self.assertEqual(shown[-1], "and 9 more in the results")

    def test_light_and_dark_are_both_legible(self) -> None:
        for dark in (False, True):
            self.browser.screen(dark)
            ink, page, drawn = self.browser.evaluate(
                "(() => { const style = getComputedStyle(document.body); const text = document.querySelector('figure svg text');"
                "return [style.color, style.backgroundColor, getComputedStyle(text).fill]; })()"
            )
            self.assertGreater(contrast(ink, page), 7)
            self.assertGreater(contrast(drawn, page), 7)
            quiet = self.browser.evaluate("getComputedStyle(document.querySelector('figcaption')).color")
            self.assertGreater(contrast(quiet, page), 4.5)
            for look in ("good", "bad", "absent"):
                found = self.browser.evaluate(
                    f"(() => {{ const cell = document.querySelector('td.{look}');"
                    "return cell && getComputedStyle(cell).color; })()"
                )
                if found:
                    self.assertGreater(contrast(found, page), 4.5, look)
            self.assertEqual(self.browser.screenshot()[:8], b"\x89PNG\r\n\x1a\n")

    def test_other_formats_have_the_same_contents(self) -> None:
        markdown = (self.report / "report.md").read_text()
        titles = self.browser.evaluate("[...document.querySelectorAll('main h2')].map(h => h.textContent.trim())")
        self.assertEqual(re.findall(r"(?m)^## (.*)$", markdown), titles)
        rows = self.browser.evaluate("document.querySelectorAll('table.sortable tbody tr').length")
        written = [line for line in markdown.splitlines() if line.startswith("| ")]
        tables = self.browser.evaluate("document.querySelectorAll('table.sortable').length")
        self.assertEqual(len(written), rows + tables)
        for figure in re.findall(r"\]\((figures/[^)]*)\)", markdown):
            self.assertTrue((self.report / figure).stat().st_size > 1000, figure)
        pdf = (self.report / "report.pdf").read_bytes()
        self.assertEqual(pdf[:5], b"%PDF-")
        self.assertGreater(pages(pdf), 0)
        self.assertTrue(list((self.report / "snapshots").glob("*.before.pickle")))
        self.assertTrue(json.loads(next((self.report / "traces").glob("*.json")).read_text())["traceEvents"])


class Size(unittest.TestCase):
    def test_a_thousand_cells_stay_below_three_megabytes_and_twenty_pages(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            directory = pathlib.Path(name)
            cells = []
            for number in range(1000):
                cell = sample.cell(f"scenario-{number % 60}", ("delayed", "current", "mxfp8")[number % 3])
                cell["id"] += f",n={number}"
                cell["axes"]["n"] = str(number)
                for arm in cell["arms"].values():  # figures that do not repeat
                    for place, metric in enumerate(arm["metrics"].values()):
                        metric["value"] = None if metric["value"] is None else metric["value"] + number * (place + 1)
                cells.append(cell)
            sample.write_set(directory / "a", cells)
            command = [sys.executable, "-B", str(sample.ROOT / "reports"), str(directory / "a"), "-o", str(directory / "r")]
            self.assertEqual(subprocess.run(command, capture_output=True, timeout=300, check=False).returncode, 0)
            self.assertLess((directory / "r" / "report.html").stat().st_size, 3_000_000)
            self.assertLessEqual(pages((directory / "r" / "report.pdf").read_bytes()), 20)

    def test_two_cells_are_printed_on_one_page(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            directory = pathlib.Path(name)
            cells = sample.cells()[:2]
            sample.write_set(directory / "a", cells, findings=[sample.finding(cells[0])])
            command = [sys.executable, "-B", str(sample.ROOT / "reports"), str(directory / "a"), "-o", str(directory / "r")]
            self.assertEqual(subprocess.run(command, capture_output=True, timeout=300, check=False).returncode, 0)
            self.assertEqual(pages((directory / "r" / "report.pdf").read_bytes()), 1)


def pages(pdf: bytes) -> int:
    return len(re.findall(rb"/Type\s*/Page\b", pdf))


def contrast(a: str, b: str) -> float:
    """WCAG's ratio of two colours such as `rgb(1, 2, 3)`."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bright, dim = sorted((luminance(a), luminance(b)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


if __name__ == "__main__":
    unittest.main()
