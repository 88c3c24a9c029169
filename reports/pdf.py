"""A report as PDF of at most some twenty pages, made with matplotlib only: the answer and the list of sections on the
first page, then findings, figures and tables. Of long tables it has the beginning; the page has all."""

import io
import textwrap
from collections.abc import Callable
from typing import Any

import matplotlib
from matplotlib.artist import Artist
from matplotlib.backends.backend_pdf import Op, PdfPages
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.transforms import Bbox

from figures import Plot
from page import Report, Section
from style import GRID, INK, PAGE
from tables import Table, Text

WIDTH, HEIGHT = 11.69, 8.27  # A4, landscape, inches
MARGIN = 0.45
SIZE = 6.2  # points
LINE = SIZE * 1.3 / 72
ASCENT = SIZE * 0.93 / 72
CHARACTER = SIZE * 0.53 / 72  # somewhat more than the mean width of a character of Helvetica
LONGEST, MOST_LINES = 90, 6
MOST_ROWS, MOST_FIGURES = 42, 6
# Every reader has these fonts, and their strings are written unprocessed, which matters for tens of thousands of them.
CORE_FONTS = {"pdf.use14corefonts": True}


class _Strings(Artist):
    """Many short lines at fixed places, as one text object of the PDF. A report has tens of thousands of them: text
    artists would measure each line, and `draw_text` would look up the font of each."""

    def __init__(self, bold: bool) -> None:
        super().__init__()
        self.strings: list[tuple[float, float, str]] = []  # inches from the upper left corner
        self.font = FontProperties(family="Helvetica", size=SIZE, weight="bold" if bold else "normal")
        self.set_zorder(5)

    def draw(self, renderer: Any) -> None:
        context = renderer.new_gc()
        context.set_foreground(INK)
        renderer.check_gc(context, context.get_rgb())
        output = renderer.file.output
        output(Op.begin_text, renderer.file.fontName(self.font), SIZE, Op.selectfont)
        last_x = last_y = 0.0
        for x, y, text in self.strings:
            x, y = round(72 * x, 2), round(72 * (HEIGHT - y - ASCENT), 2)
            output(x - last_x, y - last_y, Op.textpos, text.encode("cp1252", "replace"), Op.show)
            last_x, last_y = x, y
        output(Op.end_text)
        context.restore()


def document(report: Report, painted: Callable[[Plot], Figure]) -> bytes:
    """The bytes of the PDF. `painted` returns the figure of a plot; it is called once for each of drawn_in()."""
    out = io.BytesIO()
    # Not as a context manager: after an exception in the middle of a page it would try to complete the file, and fail.
    pages = PdfPages(out, metadata={"Title": report.title, "CreationDate": None})
    _title_page(report, pages)
    drawn = drawn_in(report)
    for section in report.sections:
        if section.is_empty:
            continue
        for plot in section.plots:
            if plot.name not in drawn:
                continue
            _figure_page(f"{section.title}: {plot.title}", painted(plot), plot.caption, pages)
        for table in section.tables:
            if table.rows:
                _table_pages(section, table, pages)
    pages.close()
    return out.getvalue()


def drawn_in(report: Report) -> set[str]:
    """The names of the figures that the PDF has: the first of each section, then the second of each, and so on."""
    ranked = [(number, plot.name) for section in report.sections for number, plot in enumerate(section.plots)]
    return {name for _, name in sorted(ranked, key=lambda pair: pair[0])[:MOST_FIGURES]}


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _figure_page(title: str, figure: Figure, caption: str, pages: PdfPages) -> None:
    """A page with title, figure and caption, as wide as the other pages and as high as they need."""
    width, height = figure.get_size_inches()
    above, below = (textwrap.wrap(text, most, break_on_hyphens=False) for text, most in ((title, 130), (caption, 190)))
    look: dict[str, Any] = {"parse_math": False, "linespacing": 1.2}
    figure.text(0, 1 + 0.1 / height, "\n".join(above), va="bottom", fontsize=9, fontweight="bold", **look)
    figure.text(0, -0.1 / height, "\n".join(below), va="top", fontsize=7, **look)
    top, bottom = 0.1 + len(above) * 9 * 1.2 / 72, 0.1 + len(below) * 7 * 1.2 / 72
    side = (WIDTH - width) / 2
    # An explicit box instead of "tight", which would draw the figure once more to measure it.
    pages.savefig(figure, bbox_inches=Bbox.from_extents(-side, -bottom - MARGIN, width + side, height + top + MARGIN))


def _sheet() -> Figure:
    return Figure(figsize=(WIDTH, HEIGHT), facecolor=PAGE)


def _text(figure: Figure, x: float, y: float, text: str, **look: Any) -> None:
    """Adds text; `x` and `y` are in inches from the upper left corner."""
    figure.text(x / WIDTH, 1 - y / HEIGHT, text, va="top", parse_math=False, fontfamily="Helvetica", **look)


def _title_page(report: Report, pages: PdfPages) -> None:
    figure = _sheet()
    _text(figure, MARGIN, 0.5, report.title, fontsize=20, fontweight="bold")
    _text(figure, MARGIN, 1.0, _shortened(report.answer.line, 150), fontsize=11, fontweight="bold")
    _text(figure, MARGIN, 1.25, "   ".join(f"{what}: {value}" for what, value in report.answer.figures), fontsize=9)
    lines = [f"{section.title}" + (f": {section.absent}" if section.is_empty else "") for section in report.sections]
    _text(figure, MARGIN, 1.5, "\n".join(_shortened(line, 150) for line in lines), fontsize=9, linespacing=1.6)
    with matplotlib.rc_context(CORE_FONTS):
        pages.savefig(figure)


def _wrapped(entry: Text, width: int) -> list[str]:
    lines = textwrap.wrap(entry.text, width, break_on_hyphens=False) or [""]
    return lines if len(lines) <= MOST_LINES else lines[: MOST_LINES - 1] + [_shortened(lines[MOST_LINES - 1] + "…", width)]


def _widths(table: Table) -> list[int]:
    """The width of each column in characters, so that all fit the page: the widest columns shrink the most."""
    room = (WIDTH - 2 * MARGIN) / CHARACTER - 2 * len(table.columns)
    widths = [min(LONGEST, max(len(name), *(len(row[i].text) for row in table.rows))) for i, name in enumerate(table.columns)]
    while sum(widths) > room and max(widths) > 8:
        widths[widths.index(max(widths))] -= 1
    return [max(width, 4) for width in widths]


def _table_pages(section: Section, table: Table, pages: PdfPages) -> None:
    widths = _widths(table)
    head = [textwrap.wrap(name, width) or [""] for name, width in zip(table.columns, widths)]
    rows = [[_wrapped(entry, width) for entry, width in zip(row, widths)] for row in table.rows[:MOST_ROWS]]
    if len(table.rows) > MOST_ROWS:
        rows.append([[f"… and {len(table.rows) - MOST_ROWS:,} more rows in report.html"], *([""] for _ in widths[1:])])
    start = 0
    while start < len(rows):
        figure = _sheet()
        _text(
            figure,
            MARGIN,
            0.3,
            section.title + (f" ({table.name})" if len(section.tables) > 1 else ""),
            fontsize=10,
            fontweight="bold",
        )
        y = 0.6
        y = _place(figure, y, [head], widths, bold=True) + 0.03
        start, placed = _page_rows(figure, y, rows, start)
        _place(figure, y, placed, widths)
        with matplotlib.rc_context(CORE_FONTS):
            pages.savefig(figure)


def _page_rows(figure: Figure, y: float, rows: list[list[list[str]]], start: int) -> tuple[int, list[list[list[str]]]]:
    """Places the rows that fit below `y`, with lines between them; returns the next row."""
    placed: list[list[list[str]]] = []
    while start < len(rows):
        height = max(map(len, rows[start])) * LINE
        if placed and y + height > HEIGHT - MARGIN:
            break
        if len(placed) % 2:
            figure.patches.append(
                Rectangle(
                    (MARGIN / WIDTH, 1 - (y + height) / HEIGHT),
                    1 - 2 * MARGIN / WIDTH,
                    height / HEIGHT,
                    facecolor=GRID,
                    alpha=0.35,
                    edgecolor="none",
                    transform=figure.transFigure,
                )
            )
        placed.append(rows[start])
        y += height
        start += 1
    return start, placed


def _place(figure: Figure, y: float, rows: list[list[list[str]]], widths: list[int], bold: bool = False) -> float:
    """Places rows of wrapped entries from `y` on; returns the y of their end."""
    strings = _Strings(bold)
    for row in rows:
        x = MARGIN
        for lines, width in zip(row, widths):
            strings.strings += [(x, y + number * LINE, line) for number, line in enumerate(lines) if line]
            x += (width + 2) * CHARACTER
        y += max(map(len, row)) * LINE
    figure.add_artist(strings)
    return y
