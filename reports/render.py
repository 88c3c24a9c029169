"""Writes a report's files. Figures are independent of each other and of the PDF: as many processes draw as there are cores."""

import concurrent.futures
import os
import pathlib

import page
import pdf
import plot as plots
from figures import Plot


def _draw(plot: Plot, directory: pathlib.Path) -> tuple[str, str]:
    figure = plots.paint(plot)
    svg = plots.svg_of(figure)
    (directory / f"{plot.name}.svg").write_text(svg, encoding="utf-8")
    (directory / f"{plot.name}.png").write_bytes(plots.png_of(figure))
    return plot.name, plots.themed(svg, plot.name)


def _write_pdf(report: page.Report, path: pathlib.Path) -> None:
    pdf.write(report, path)


def write(report: page.Report, directory: pathlib.Path) -> None:
    workers = max(1, len(os.sched_getaffinity(0)))
    with concurrent.futures.ProcessPoolExecutor(workers) as pool:
        document = pool.submit(_write_pdf, report, directory / "report.pdf")
        drawn = [pool.submit(_draw, plot, directory / "figures") for plot in report.plots]
        (directory / "report.md").write_text(page.markdown(report), encoding="utf-8")
        svgs = dict(future.result() for future in drawn)
        (directory / "report.html").write_text(page.html(report, svgs), encoding="utf-8")
        document.result()
