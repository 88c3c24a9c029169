"""Writes the files of a report. Workers paint figures, and this process draws them into the PDF."""

import pathlib
import pickle

import page
import pdf
import plot as plots
from figures import Plot
from files import Files
from workers import Workers


def _draw(plot: Plot, in_pdf: bool) -> tuple[bytes, str, bytes]:
    """A figure as PNG, as SVG, and, if it is in the PDF, pickled."""
    figure = plots.paint(plot)
    return plots.png_of(figure), plots.svg_of(figure), pickle.dumps(figure) if in_pdf else b""


def write(report: page.Report, directory: pathlib.Path, files: Files, workers: Workers) -> None:
    in_pdf = pdf.drawn_in(report)
    drawn = {plot.name: workers.submit(_draw, plot, plot.name in in_pdf) for plot in report.plots}
    files.write(directory / "report.md", page.markdown(report))
    files.write(directory / "report.pdf", pdf.document(report, lambda plot: pickle.loads(drawn[plot.name].result()[2])))
    svgs = {}
    for name, future in drawn.items():
        png, svg, _ = future.result()
        files.write(directory / "figures" / f"{name}.png", png)
        files.write(directory / "figures" / f"{name}.svg", svg)
        svgs[name] = plots.themed(svg, name)
    files.write(directory / "report.html", page.html(report, svgs))
