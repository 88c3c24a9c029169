"""Writes the files of a report. Workers draw the figures."""

import pathlib

import browser
import page
import plot as plots
from files import Files
from progress import Progress
from workers import Workers


def write(report: page.Report, directory: pathlib.Path, files: Files, workers: Workers, progress: Progress) -> str:
    """Returns why there is no PDF, or an empty text."""
    futures = [workers.submit(plots.draw, plot) for plot in report.plots]
    files.write(directory / "report.md", page.markdown(report))
    svgs = {}
    for plot, (svg, of_page) in zip(report.plots, progress.each("figures drawn", futures)):
        files.write(directory / "figures" / f"{plot.name}.svg", svg)
        svgs[plot.name] = of_page
    progress.show("writing the page")
    files.write(directory / "report.html", page.html(report, svgs))
    progress.show("printing the PDF")
    pdf, reason = browser.pdf(page.printed(report))
    if pdf:
        files.write(directory / "report.pdf", pdf)
    else:
        files.replace_older([directory / "report.pdf"])
    return reason
