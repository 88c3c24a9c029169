"""fp8lab report: result sets as one HTML page, Markdown, PDF, figures, and files for the viewers of other tools."""

import argparse
import importlib.util
import logging
import os
import pathlib
import re
import signal
import sys
import traceback
from typing import Any

import files
from documents import one_line, printable

PACKAGES = {"matplotlib": "python3-matplotlib", "jinja2": "python3-jinja2", "fastjsonschema": "python3-fastjsonschema"}
# matplotlib warns if it cannot keep its cache of fonts, which it then makes again each time.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
EXIT_BAD_INPUT, EXIT_NOTHING, EXIT_INTERRUPTED = 2, 5, 128 + signal.SIGINT


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="fp8lab report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="What cannot be read is named, in the report and on standard error, and left out; the rest is shown.\n"
        "Exit codes: 0 all was read, 2 something was not (the rest is shown) or cannot be written, 5 all was read and\n"
        "there was nothing to show, 130 interrupted. Its files appear together at the end. report.pdf is the page printed by\n"
        "Chromium or Chrome; without one there is no PDF. FP8LAB_DEBUG=1 shows where an internal error arose.",
    )
    made.add_argument(
        "out",
        nargs="+",
        metavar="OUT",
        help="a directory that `fp8lab run -o` left, with benchmarks under its bench/; a results.json, also as .json.gz, "
        "or .jsonl; a Google Benchmark JSON, of a peer if its name starts with peer_. LABEL=OUT names it",
    )
    made.add_argument("-o", "--out", dest="directory", required=True, metavar="DIR", help="folder of the report")
    made.add_argument("--title", default="fp8lab report", metavar="TEXT", help="title of the report")
    made.add_argument("--figures", type=int, default=1, metavar="N", help="cells per fix whose memory is drawn (default: 1)")
    made.add_argument(
        "--snapshots",
        action="store_true",
        help="write DIR/snapshots/*.pickle for PyTorch's memory viewer "
        "(pytorch.org/memory_viz), of every cell with a timeline that --cells matches",
    )
    made.add_argument(
        "--traces", action="store_true", help="write DIR/traces/*.json for Perfetto and chrome://tracing, of the same cells"
    )
    made.add_argument("--cells", metavar="REGEX", help="which cells --snapshots and --traces take (default: those drawn)")
    return made


def missing_packages() -> list[str]:
    return [package for module, package in PACKAGES.items() if importlib.util.find_spec(module) is None]


def say(line: str) -> bool:
    """Print a line; False if standard output cannot be written."""
    try:
        print(line, flush=True)
    except OSError:
        # Python flushes standard output again at exit and would print a second error; /dev/null prevents that.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


def main(arguments: list[str]) -> int:
    try:
        return checked(parser().parse_args(arguments))
    except KeyboardInterrupt:
        # Workers finish their figures first; a second Ctrl-C meanwhile would print a traceback.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("fp8lab: error: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except files.Unwritable as error:
        report_error(str(error))
    except OSError as error:
        report_error(f"{error.filename or 'the system'}: {error.strerror}")
    except Exception as error:  # an internal error; Python's exit code 1 would mean that a gate failed
        if os.environ.get("FP8LAB_DEBUG"):
            traceback.print_exception(error)
        report_error(
            f"internal error: {type(error).__name__}: {error}; please report it with its traceback, which "
            "FP8LAB_DEBUG=1 shows"
        )
    return EXIT_BAD_INPUT


def report_error(message: str) -> None:
    print(f"fp8lab: error: {one_line(message)}", file=sys.stderr)


def checked(options: argparse.Namespace) -> int:
    missing = missing_packages()
    if missing:
        print(
            f"fp8lab: error: a report needs the Debian packages {' and '.join(missing)}: apt-get install {' '.join(missing)}",
            file=sys.stderr,
        )
        return EXIT_BAD_INPUT
    try:
        pattern = re.compile(options.cells) if options.cells else None
    except re.error as error:
        print(f"fp8lab: error: --cells: `{options.cells}` is not a regular expression: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    return write_report(options, pattern)


def write_report(options: argparse.Namespace, pattern: "re.Pattern[str] | None") -> int:
    with files.held():  # libraries do not expect an interrupt during their imports
        import bench
        import choice
        import export
        import figures
        import load
        import page
        import render
        import workers

    loader, shown = load.Loader(), workers.Progress()
    for number, argument in enumerate(options.out, 1):
        shown.show("reading results", number, len(options.out))
        loader.load(argument)
    benches = bench.load(loader.bench_files, loader.problems)
    directory = pathlib.Path(options.directory)
    if not benches and not any(results.cells for results in loader.sets):
        for problem in loader.problems:
            report_error(str(problem))
        report_error("there is nothing to show; no report was written")
        return EXIT_NOTHING if all(problem.text == load.NO_CELL for problem in loader.problems) else EXIT_BAD_INPUT
    files.refuse_to_replace(directory, ("report.html", "report.md"), "report.pdf", page.MARK)
    ended, lines = 0, []
    with files.Files() as out, workers.Workers() as pool, shown:

        def read_each(work: Any, arguments: list[Any]) -> list[Any]:
            return shown.each("memory timelines read", [pool.submit(work, argument) for argument in arguments])

        out.make_directory(directory / "figures")
        out.replace_older(files.figures_of(directory / "report.md"))
        plots = choice.choose(loader.sets, benches, options.figures, loader.problems, read_each)
        if options.snapshots or options.traces:
            drawn = figures.timeline_cells(loader.sets, options.figures)
            cells = (
                drawn
                if pattern is None
                else [cell for results in loader.sets for cell in results.cells if pattern.search(cell.id)]
            )
            written = export.write(cells, directory, out, options.snapshots, options.traces, loader.problems)
            lines = exported(options, directory, cells, written)
            if pattern is not None and not cells:
                report_error(f"--cells: `{options.cells}` matches no cell; no snapshots or traces were written")
                ended = EXIT_BAD_INPUT
        report = page.make(printable(options.title), loader.sets, benches, plots, loader.problems)
        without_pdf = render.write(report, directory, out, pool, shown)
    lines += [f"report.pdf: none; {without_pdf}"] if without_pdf else []
    for problem in loader.problems:
        report_error(str(problem))
    if not all([say(line) for line in [*lines, f"report: {one_line(str(directory / 'report.html'))}"]]):
        print("fp8lab: error: standard output cannot be written, and some of it is lost; is its disk full?", file=sys.stderr)
        return EXIT_BAD_INPUT
    return EXIT_BAD_INPUT if loader.problems else ended


def exported(options: argparse.Namespace, directory: pathlib.Path, cells: list[Any], written: tuple[int, int]) -> list[str]:
    """What --snapshots and --traces wrote, or why they wrote nothing."""
    lines = []
    for name, asked, number in zip(("snapshots", "traces"), (options.snapshots, options.traces), written):
        if not asked:
            continue
        if number:
            lines.append(f"{name}: {number} file{'s' * (number != 1)} in {one_line(str(directory / name))}")
        elif not cells:
            lines.append(f"{name}: none, because no cell with a timeline was drawn; choose cells with --cells REGEX")
        else:
            lines.append(
                f"{name}: none, because none of {len(cells)} cell{'s' * (len(cells) != 1)} has a timeline; those that ran "
                "measure memory, and OUT must be the directory that `fp8lab run -o` left"
            )
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
