"""Writes the files of a report. One process per core paints figures, and this process draws them into the PDF."""

import concurrent.futures
import gc
import os
import pathlib
import pickle

import interrupts
import page
import pdf
import plot as plots
from figures import Plot
from files import Files


def _draw(plot: Plot, in_pdf: bool) -> tuple[bytes, str, bytes]:
    """A figure as PNG, as SVG, and, if it is in the PDF, pickled."""
    figure = plots.paint(plot)
    return plots.png_of(figure), plots.svg_of(figure), pickle.dumps(figure) if in_pdf else b""


def write(report: page.Report, directory: pathlib.Path, files: Files) -> None:
    gc.freeze()  # exempt the many cells, which live to the end, from garbage collection in all processes
    gc.set_threshold(20_000)  # collect rarely, because a figure has thousands of objects
    in_pdf = pdf.drawn_in(report)
    pool = concurrent.futures.ProcessPoolExecutor(max(1, len(os.sched_getaffinity(0))))
    try:
        with interrupts.held():
            drawn = {plot.name: pool.submit(_draw, plot, plot.name in in_pdf) for plot in report.plots}
        files.write(directory / "report.md", page.markdown(report))
        files.write(directory / "report.pdf", pdf.document(report, lambda plot: pickle.loads(drawn[plot.name].result()[2])))
        svgs = {}
        for name, future in drawn.items():
            png, svg, _ = future.result()
            files.write(directory / "figures" / f"{name}.png", png)
            files.write(directory / "figures" / f"{name}.svg", svg)
            svgs[name] = plots.themed(svg, name)
    finally:
        with interrupts.held():  # an interrupted join marks the pool's thread as ended, and its processes wait for ever
            pool.shutdown(cancel_futures=True)  # after a failure the remaining figures are not needed
    files.write(directory / "report.html", page.html(report, svgs))
