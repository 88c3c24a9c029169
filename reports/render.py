"""Writes a report's files. As many processes as there are cores paint the figures, and this one draws them into the PDF."""

import concurrent.futures
import gc
import os
import pathlib
import pickle

import page
import pdf
import plot as plots
from figures import Plot


def _draw(plot: Plot, directory: pathlib.Path) -> tuple[str, bytes]:
    """Writes a figure's files; returns its SVG for the page, and the figure itself, which the PDF takes as it is."""
    figure = plots.paint(plot)
    (directory / f"{plot.name}.png").write_bytes(plots.png_of(figure))
    svg = plots.svg_of(figure)
    (directory / f"{plot.name}.svg").write_text(svg, encoding="utf-8")
    return plots.themed(svg, plot.name), pickle.dumps(figure)


def write(report: page.Report, directory: pathlib.Path) -> None:
    gc.freeze()  # cells are many and stay; no process needs to look through them for garbage,
    gc.set_threshold(20_000)  # nor often through figures, which are thousands of objects
    with concurrent.futures.ProcessPoolExecutor(max(1, len(os.sched_getaffinity(0)))) as pool:
        drawn = {plot.name: pool.submit(_draw, plot, directory / "figures") for plot in report.plots}
        (directory / "report.md").write_text(page.markdown(report), encoding="utf-8")
        pdf.write(report, lambda plot: pickle.loads(drawn[plot.name].result()[1]), directory / "report.pdf")
        svgs = {name: future.result()[0] for name, future in drawn.items()}
    (directory / "report.html").write_text(page.html(report, svgs), encoding="utf-8")
