"""Memory over the events of a run as SVG: a panel for each arm. The page places panels next to each other, or one below
the other if the screen is narrow; a file of its own has them next to each other."""

import math
from collections.abc import Callable, Iterable
from xml.sax.saxutils import escape

import units
from figures import TimelineData
from style import COOL, GRID, INK, PAGE, WARM, short
from timeline import Curve

WIDTH, HEIGHT = 560, 330  # size of a panel
SMALL_WIDTH, SMALL_HEIGHT = 260, 96  # size of a panel in the list of findings
LINE = 17
FONT = 'font-family="DejaVu Sans, sans-serif"'


def colours(data: TimelineData) -> list[str]:
    cool, warm = iter(COOL), iter(WARM)
    return [next(cool) if band.outlives_backward else next(warm) for band in data.bands]


def _svg(width: float, height: float, body: Iterable[str], place: str = "") -> str:
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" {place}>{"".join(body)}</svg>'


def _text(x: float, y: float, text: str, size: float = 11, anchor: str = "start", look: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {FONT} font-size="{size:g}" text-anchor="{anchor}" fill="{INK}" {look}>{escape(text)}</text>'


def _line(x0: float, y0: float, x1: float, y1: float, look: str) -> str:
    return f'<path d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}" fill="none" {look}/>'


def steps(xs: list[float], ys: list[float]) -> str:
    """A path that keeps each value until the next one."""
    out, last = [f"M{xs[0]:.1f} {ys[0]:.1f}"], f"{ys[0]:.1f}"
    for x, y in zip(xs[1:], ys[1:]):
        if (here := f"{y:.1f}") != last:
            out.append(f"H{x:.1f}V{here}")
            last = here
    return "".join([*out, f"H{xs[-1]:.1f}"])


def _ticks(greatest: float) -> list[float]:
    """About four round numbers of the unit of `greatest`, in bytes."""
    size = units.scale_of(greatest)[0]
    rough = greatest / size / 4 or 1
    power = 10.0 ** math.floor(math.log10(rough))
    step = size * power * next(factor for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)
    return [step * number for number in range(int(greatest / step) + 1)]


def _areas(data: TimelineData, curve: Curve, x: Callable[[float], float], y: Callable[[float], float]) -> list[str]:
    """The bands from the top down: each covers everything below its upper edge."""
    out = []
    xs = [x(at) for at in curve.x]
    for number, colour in reversed([*enumerate(colours(data))]):
        tops = [y(sum(values)) for values in zip(*curve.by_band[: number + 1])]
        out.append(f'<path d="{steps(xs, tops)}V{y(0):.1f}H{xs[0]:.1f}Z" fill="{colour}"/>')
    return out


def _phases(data: TimelineData, x: Callable[[float], float], top: float, bottom: float) -> list[str]:
    out, last = [], -math.inf
    for (phase, step, _), (start, end) in data.axis.spans.items():
        out.append(_line(x(start), top, x(start), bottom, f'stroke="{GRID}" stroke-width="0.7"'))
        middle = (start + end) / 2
        if end - start > 0.06 * data.axis.end and middle - last > 0.14 * data.axis.end:
            last = middle
            out.append(_text(x(middle), top - 4, phase if step == 0 else f"{phase} {step}", 9.5, "middle"))
    return out


def panel(data: TimelineData, number: int, small: bool = False, place: str = "") -> str:
    """One arm: bytes alive by holder, the peak, and what is retained when the last backward ends."""
    width, height = (SMALL_WIDTH, SMALL_HEIGHT) if small else (WIDTH, HEIGHT)
    left, right, top, bottom = (2, width - 2, 20, height - 2) if small else (56, width - 6, 42, height - 22)
    curve, greatest = data.curves[number], (data.unit_of or 1) * (1.1 if small else 1.12)
    end = data.axis.end or 1

    def x(at: float) -> float:
        return left + (right - left) * at / end

    def y(size: float) -> float:
        return bottom - (bottom - top) * size / greatest

    out = _areas(data, curve, x, y)
    mark = next((mark for name, _, mark in reversed(curve.marks) if name == "end_of_backward"), None)
    retained = f", retained {units.byte_text(mark.retained_bytes)}" if mark else ""
    out.append(_text(left, 13, data.arms[number], 11, look='font-weight="bold"'))
    out.append(_text(left + 46, 13, f"peak {units.byte_text(curve.peak[1])}{retained}", 10 if small else 11))
    if not small:
        size, unit = units.scale_of(data.unit_of)
        for tick in _ticks(data.unit_of):
            out.append(_line(left - 4, y(tick), left, y(tick), f'stroke="{INK}" stroke-width="0.7"'))
            out.append(_text(left - 7, y(tick) + 3.5, f"{tick / size:g}" + (f" {unit}" if tick == 0 else ""), 9.5, "end"))
        out += _phases(data, x, top, bottom)
        for other, line in enumerate(data.curves):
            if other != number:
                path = steps([x(at) for at in line.x], [y(live) for live in line.live])
                out.append(f'<path d="{path}" fill="none" stroke="{INK}" stroke-width="1" stroke-dasharray="5 3"/>')
        out.append(_text((left + right) / 2, height - 5, "events (allocations, frees, transfers), in order", 9.5, "middle"))
        at, live = curve.peak
        out.append(f'<path d="M{x(at):.1f} {y(live):.1f}l-5 -7h10z" fill="{INK}"/>')
    out.append(_line(left, bottom, right, bottom, f'stroke="{INK}" stroke-width="0.8"'))
    if mark and mark.retained_bytes:
        at = next(place for name, place, one in reversed(curve.marks) if one is mark)
        look = f'stroke="{INK}" stroke-width="3.5"'
        out.append(_line(x(at), y(mark.live_bytes), x(at), y(mark.live_bytes - mark.retained_bytes), look))
    return _svg(width, height, out, place)


def _legend(data: TimelineData, columns: int, place: str = "") -> str:
    entries = [(colour, short(band.label, 44)) for colour, band in zip(colours(data), data.bands)][::-1]
    rows = math.ceil(len(entries) / columns)
    body = []
    for number, (colour, label) in enumerate(entries):
        x, y = number % columns * WIDTH / 1.5, number // columns * LINE
        body.append(f'<rect x="{x:.1f}" y="{y + 3}" width="12" height="12" fill="{colour}"/>')
        body.append(_text(x + 17, y + 13, label, 10.5))
    return _svg(columns * WIDTH / 1.5, rows * LINE + 4, body, place)


def document(data: TimelineData) -> str:
    """A file of its own."""
    count = len(data.arms)
    rows = math.ceil(len(data.bands) / 3)
    width, height = WIDTH * max(2, count), HEIGHT + LINE * rows + 14
    body = [f'<rect width="{width}" height="{height}" fill="{PAGE}"/>']
    body += [panel(data, n, place=f'x="{n * WIDTH}" width="{WIDTH}" height="{HEIGHT}"') for n in range(count)]
    body.append(_legend(data, 3, f'x="56" y="{HEIGHT + 10}" width="{2 * WIDTH}" height="{LINE * rows + 4}"'))
    size = f'width="{width}" height="{height}"'
    return '<?xml version="1.0" encoding="utf-8"?>\n' + _svg(width, height, body, size)


def for_page(data: TimelineData) -> str:
    panels = "".join(panel(data, number) for number in range(len(data.arms)))
    keys = "".join(
        f'<span><i style="background:{colour}"></i>{escape(band.label)}</span>' for colour, band in zip(colours(data), data.bands)
    )
    return f'<div class="panels">{panels}</div><div class="keys">{keys}</div>'


def bars(sides: list[tuple[str, float, str]]) -> str:
    """A bar for each side: its name, its value, and the value's text."""
    greatest = max((abs(value) for _, value, _ in sides), default=0) or 1
    body = []
    for number, (name, value, text) in enumerate(sides):
        y, wide = 4 + number * 24, (2 * SMALL_WIDTH - 210) * abs(value) / greatest
        body.append(_text(0, y + 13, name, 11.5))
        body.append(f'<rect x="52" y="{y}" width="{max(wide, 1):.1f}" height="17" fill="{COOL[0] if name == "after" else WARM[0]}"/>')
        body.append(_text(57 + wide, y + 13, text, 11.5, look='font-weight="bold"'))
    return _svg(2 * SMALL_WIDTH, 4 + 24 * len(sides), body, 'class="bars"')
