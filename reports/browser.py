"""The PDF of a report: its page as Chromium or Chrome prints it."""

import os
import pathlib
import shutil
import subprocess
import tempfile

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LIMIT_S = 300
REMEDY = "install the Debian package chromium, or print report.html from your browser"


def find() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def pdf(html: str) -> tuple[bytes, str]:
    """The bytes of the PDF, or none and the reason."""
    program = find()
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
