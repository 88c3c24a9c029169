"""Writes the files of a report. Workers draw the figures, and Chromium or Chrome prints the page as PDF."""

import os
import pathlib
import shutil
import subprocess
import tempfile

import page
import plot as plots
from files import Files
from workers import Progress, Workers

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LIMIT_S = 300
REMEDY = "install the Debian package chromium, or print report.html from your browser"


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
    pdf, reason = pdf_of(page.printed(report))
    if pdf:
        files.write(directory / "report.pdf", pdf)
    else:
        files.replace_older([directory / "report.pdf"])
    return reason


def find_browser() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def pdf_of(html: str) -> tuple[bytes, str]:
    """The bytes of the PDF, or none and the reason."""
    program = find_browser()
    if program is None:
        return b"", f"a PDF needs Chromium or Chrome: {REMEDY}"
    with tempfile.TemporaryDirectory(prefix="fp8lab-pdf-", ignore_cleanup_errors=True) as name:
        directory = pathlib.Path(name)
        page, out = directory / "report.html", directory / "report.pdf"
        page.write_text(html, encoding="utf-8")
        options = ["--headless", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--no-pdf-header-footer"]
        if os.geteuid() == 0:
            options.append("--no-sandbox")  # Chromium refuses to run as root with its sandbox; the page has no script
        command = [program, *options, f"--user-data-dir={directory / 'profile'}", f"--print-to-pdf={out}", page.as_uri()]
        try:
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return b"", f"{program} did not print the page ({type(error).__name__}): {REMEDY}"
        content = out.read_bytes() if out.is_file() else b""
        return content, "" if content else f"{program} did not print the page: {REMEDY}"
