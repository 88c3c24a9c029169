"""Runs a tier of the scenarios as CI systems want it: builds what is missing, runs, compares with a baseline, reports.

The directory OUT then holds what `fp8lab run` writes (junit.xml among it, with a suite for the comparison),
comparison.json, and run_exit_code, the exit code of the run without the comparison. On GitHub a Markdown summary is appended to $GITHUB_STEP_SUMMARY and failures become annotations of the
scenario's line; elsewhere they are lines `file:line: error: ...`.

Exit codes: 0 all good, 1 a gate failed or a regression, 2 bad usage or configuration, 3 inconclusive, 4 a crash,
5 nothing ran, or no cell failed and none has the id of a baseline's cell, 124 timeout, 128+N stopped by signal N.
"""

import argparse
import contextlib
import datetime
import difflib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import traceback

try:
    import tomllib
except ImportError:
    sys.exit("ci/matrix: error: Python 3.11 or newer is needed, as Debian 12 and Ubuntu 24.04 have it")

import accepted
import matrix_report
from documents import one_line  # of reports/, which matrix_report finds

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build/cpu/scenarios/fp8lab"
# What a run leaves behind; an older run's must not be taken for this one's.
DOCUMENTS = ("results.json", "junit.xml", "summary.md", "comparison.json", "run_exit_code")
# What a run replaces beside them, and the file that every run leaves first.
TIMELINES, LINES, CELL_BEGINS = "timelines", "results.jsonl", b'{"id":"'
TIER_KEYS = {"title": str, "scenarios": list, "devices": list, "filter": str, "sample": int,
             "controls": bool, "limit_s": (int, float)}
EXIT_MEANINGS = {0: "all good", 1: "a gate failed",
                 2: "bad configuration or usage, or results cannot be written", 3: "inconclusive",
                 4: "a crash that no scenario expected", 5: "nothing ran", 124: "timeout"}


class UsageError(Exception):
    """A mistake of the caller's; the message names what is wrong and what to give instead."""


class Stopped(Exception):
    """A signal came before the run."""

    def __init__(self, number, during):
        super().__init__(f"stopped by {signal.Signals(number).name} during {during}")
        self.code = 128 + number


def say(text):
    print(f"ci/matrix: {one_line(text)}", flush=True)


def report_error(text):
    print(f"ci/matrix: error: {one_line(text)}", file=sys.stderr)
    if matrix_report.on_github():
        print(matrix_report.annotation("error", "ci/matrix", text))


def nearest(word, known):
    match = difflib.get_close_matches(word, known, 1)
    return f"did you mean {match[0]}?" if match else f"there are {', '.join(known)}"


def read_tiers(path):
    """The table of tiers, every key of it checked."""
    try:
        tiers = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}; give --tiers a table of tiers") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not TOML: {error}") from error
    for name, tier in tiers.items():
        if not isinstance(tier, dict):
            raise UsageError(f"{path}: `{name}` is not the table of a tier; write [{name}] and its keys below")
        for key, value in tier.items():
            if key not in TIER_KEYS:
                raise UsageError(f"{path}: [{name}]: `{key}` is not known; {nearest(key, TIER_KEYS)}")
            wrong_item = isinstance(value, list) and not (value and all(isinstance(item, str) for item in value))
            of_type = isinstance(value, TIER_KEYS[key]) and isinstance(value, bool) == (TIER_KEYS[key] is bool)
            if not of_type or wrong_item:
                raise UsageError(f"{path}: [{name}]: `{key}` cannot be {value!r}; see ci/tiers.toml for what it takes")
        for key in ("title", "scenarios", "limit_s"):
            if key not in tier:
                raise UsageError(f"{path}: [{name}]: `{key}` is missing")
    return tiers


def parse_arguments():
    parser = argparse.ArgumentParser(prog="ci/matrix", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tier", nargs="?", metavar="TIER", help="a tier of ci/tiers.toml; --list prints them")
    parser.add_argument("--against", metavar="BASELINE", type=pathlib.Path,
                        help="an earlier run: its directory or its results.json; regressions fail")
    parser.add_argument("--allow", metavar="REGEX", help="cells whose id matches may get worse or vanish")
    parser.add_argument("--accept", metavar="FILE", type=pathlib.Path,
                        help="a reviewed table of regressions that are accepted, each until a date; see ci/accepted.py")
    parser.add_argument("-d", "--device", metavar="DEVICE,...", help="only these of the tier's devices")
    parser.add_argument("-o", "--out", metavar="OUT", type=pathlib.Path,
                        help="directory for results; default: out/TIER below the repository's root")
    parser.add_argument("-j", "--jobs", metavar="N", help="arms at a time; default: one per core")
    parser.add_argument("--resume", action="store_true", help="keep what an earlier run finished in OUT")
    parser.add_argument("--program", metavar="FILE", type=pathlib.Path,
                        help="an fp8lab to run; default: install what is needed and build it, as ci/try does")
    parser.add_argument("--tiers", metavar="FILE", type=pathlib.Path, default=ROOT / "ci/tiers.toml",
                        help="another table of tiers")
    parser.add_argument("--list", action="store_true", help="print the tiers and run nothing")
    return parser.parse_args()


def devices_of(tier, wanted):
    """The tier's devices among the wanted ones; None for all there are."""
    devices = tier.get("devices")
    if wanted is None:
        return devices
    chosen = wanted.split(",")
    for device in chosen:
        if devices is not None and device not in devices:
            raise UsageError(f"--device {device}: not of this tier; {nearest(device, devices)}")
    return chosen


def at_terminal():
    """Whether a terminal sends its Ctrl-C to this process, and so to its children."""
    try:
        with open("/dev/tty", "rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


class Child:
    """A program to which the signals that ask this one to end are passed on. `with_group`: also to what it started,
    but not at a terminal, where sudo can ask for a password only in this process's group."""

    def __init__(self, command, with_group=False, **options):
        self.process, self.signals = None, []
        self.has_group = with_group and not at_terminal()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.on_signal)
        self.process = subprocess.Popen(command, process_group=0 if self.has_group else None, **options)
        for number in list(self.signals):  # those that came before there was a process
            self.send(number)

    def on_signal(self, number, _):
        self.signals.append(number)
        if self.process:
            self.send(number)

    def send(self, number):
        if self.process.poll() is not None or (number == signal.SIGINT and at_terminal()):
            return
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if self.has_group else os.kill)(self.process.pid, number)


def build():
    """Runs ci/build; returns its exit status."""
    child = Child([ROOT / "ci/build"], with_group=True)
    status = child.process.wait()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if child.signals:
        raise Stopped(child.signals[0], "ci/build")
    return status


def program_of(arguments):
    if arguments.program is None:
        status = build()
        if status != 0:
            raise UsageError(f"ci/build failed ({status}); its output contains the reason")
        return PROGRAM
    if not os.access(arguments.program, os.X_OK) or arguments.program.is_dir():
        raise UsageError(f"--program {arguments.program}: not a program; give the fp8lab that was built, "
                         f"such as {PROGRAM.relative_to(ROOT)}")
    return arguments.program.resolve()


def is_of_cells(path):
    """Also where a run was ended before its first line was full."""
    with path.open("rb") as file:
        return CELL_BEGINS.startswith(file.read(len(CELL_BEGINS)))


def refuse_foreign(out):
    """Refuses to replace files that no run wrote. A run's directory contains LINES; one of a run that failed before its
    first result contains only this script's junit.xml."""
    if (out / LINES).exists():
        if is_of_cells(out / LINES):
            return
        raise UsageError(f"{out / LINES}: a run would replace it, and it does not come from a run: it does not begin as a cell; "
                         "give another directory with --out, or remove it")
    for name in (*DOCUMENTS, TIMELINES):
        path = out / name
        if os.path.lexists(path) and not (name == "junit.xml" and matrix_report.is_of_no_results(path)):
            raise UsageError(f"{path}: a run would replace it, and it does not come from a run: there is no {LINES} next to it; "
                             "give another directory with --out, or remove it")


def compare_command(program, baseline, run, allow):
    return [program, "compare", baseline, run] + (["--allow", allow] if allow is not None else [])


def only_error(stderr):
    return one_line(stderr.strip().removeprefix("fp8lab: error: "))


def check_comparison(program, baseline, allow):
    """A long run should not end with a baseline that cannot be read, or an --allow that cannot."""
    command = compare_command(program, baseline, baseline, allow)
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    if checked.returncode not in (0, 1, 5):
        error = only_error(checked.stderr) or f"{program} compare ended with {checked.returncode} and printed nothing"
        raise UsageError(error if error.startswith("--allow") else f"--against: {error}")


def keep_baseline(baseline, out):
    """Where the baseline lies once the run has written to `out`: a run must not replace what it is compared with."""
    file = baseline / "results.json" if baseline.is_dir() else baseline
    if not file.exists():
        return file.with_name("results.json.gz")  # which no run writes
    if file.resolve() != (out / "results.json").resolve():
        return baseline
    kept = out / "baseline.json"
    if os.path.lexists(kept) and b'"schema": "fp8lab.results/' not in kept.read_bytes()[:100]:
        raise UsageError(f"{kept}: the baseline would be kept there, and this is no baseline; "
                         "give another directory with --out, or remove it")
    shutil.copyfile(file, kept)
    say(f"the baseline is in the folder of this run; it is kept as {kept}")
    return kept


def run_program(command):
    """Runs to the end, whatever signals arrive; returns the exit code and the errors that the program reported."""
    errors = []
    # An interrupted program ends in order, and so must this.
    with Child(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, errors="replace").process as process:
        for line in process.stderr:
            sys.stderr.write(line)
            sys.stderr.flush()
            if line.startswith("fp8lab: error: "):
                errors.append(one_line(line.removeprefix("fp8lab: error: ").strip()))
    code = process.returncode
    return (128 - code if code < 0 else code), errors


def compare(program, baseline, out, allow):
    """Prints the comparison, and returns it as data with the program's exit code and the errors that it reported."""
    command = compare_command(program, baseline, out, allow)
    print(flush=True)
    shown = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    sys.stderr.write(shown.stderr)
    if shown.returncode == 2:
        return None, 2, [only_error(shown.stderr)]
    compared = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    if not compared.stdout:
        return None, 2, [only_error(compared.stderr)]
    (out / "comparison.json").write_text(compared.stdout, encoding="utf-8")
    comparison, fault = matrix_report.read(out / "comparison.json", matrix_report.COMPARISON)
    return (comparison, shown.returncode, []) if comparison else (None, 2, [fault])


def accept(entries, comparison, code):
    """The changes that are accepted, each with its entry, and the comparison's exit code without them."""
    before = comparison["regressions"]
    taken, warnings = accepted.apply(entries, comparison, datetime.date.today())
    for change, entry in taken:
        say(f"{change['id']}: {change['text']}; accepted until {entry.expires}: {entry.why}")
    for text in warnings:
        matrix_report.warn(text)
    if before > 0 and comparison["regressions"] == 0:
        comparison["exit_code"] = code = 0
    return taken, code


def overall(run_code, compared_code):
    """A run that failed keeps its code. A regression outranks what a run merely left open, and so does a comparison of nothing: a
    gate that cannot fail is none."""
    return compared_code if run_code in (0, 3) and compared_code != 0 else run_code


def meaning_of(code, run_code, baseline):
    if code == run_code or code not in (1, 5):
        return EXIT_MEANINGS.get(code, "stopped by a signal")
    if code == 1:
        return f"regressions against {baseline}"
    alone = "" if run_code == 0 else f"; the run alone is {EXIT_MEANINGS[run_code]} (exit {run_code})"
    return (f"{matrix_report.NOTHING_COMPARED}: no cell ran both here and in {baseline}; "
            f"give --against a run of these cells, or leave it out until there is one{alone}")


def nothing_ran(results, errors):
    """Why a run that ended with 5 ran nothing."""
    if errors or not results:
        return "; ".join(errors)
    reasons = sorted({cell["reason"] for cell in results["cells"] if cell["reason"]})
    return f"all {len(results['cells'])} cells were skipped: {'; '.join(reasons)}"


def run_tier(arguments):
    tiers = read_tiers(arguments.tiers)
    if arguments.list:
        for name, tier in tiers.items():
            print(f"{name:<8} {tier['title']} (up to {tier['limit_s']} s on two cores)")
        return 0
    if arguments.tier is None:
        raise UsageError(f"which tier? There are {', '.join(tiers)}")
    if arguments.tier not in tiers:
        raise UsageError(f"{arguments.tier}: not a tier of {arguments.tiers}; {nearest(arguments.tier, tiers)}")
    tier = tiers[arguments.tier]
    devices = devices_of(tier, arguments.device)
    out = (arguments.out or ROOT / "out" / arguments.tier).resolve()
    if arguments.against and not arguments.against.exists():  # before minutes of building
        raise UsageError(f"--against: {arguments.against}: no such file; "
                         "give the results.json of a finished run, or the directory that holds it")
    if arguments.accept and not arguments.against:
        raise UsageError("--accept needs --against: without a baseline there is nothing to accept")
    entries = accepted.read(arguments.accept) if arguments.accept else []
    refuse_foreign(out)
    program = program_of(arguments)
    baseline = arguments.against.resolve() if arguments.against else None
    if baseline:
        check_comparison(program, baseline, arguments.allow)
    try:
        out.mkdir(parents=True, exist_ok=True)
        if baseline:
            baseline = keep_baseline(baseline, out)
        for name in DOCUMENTS:
            (out / name).unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{error.filename or out}: cannot be written: {error.strerror}; "
                         "give another directory with --out") from error

    say(f"tier {arguments.tier}: {tier['title']}")
    command = [program, "run", *tier["scenarios"], "-o", out]
    command += ["-d", ",".join(devices)] if devices else []
    command += ["-f", tier["filter"]] if "filter" in tier else []
    command += ["--sample", str(tier["sample"])] if "sample" in tier else []
    command += ["--controls"] if tier.get("controls") else []
    command += ["-j", arguments.jobs] if arguments.jobs else []
    command += ["--resume"] if arguments.resume else []
    start = time.monotonic()
    run_code, errors = run_program(command)
    seconds = time.monotonic() - start

    results, fault = matrix_report.read(out / "results.json", matrix_report.RESULTS)
    errors += [fault] if fault else []
    run_code = 2 if fault else run_code
    if results:
        (out / "run_exit_code").write_text(f"{run_code}\n", encoding="utf-8")
    comparison, compared_code, taken = None, 0, []
    if baseline and results and not results["complete"]:
        errors.append(f"the run was stopped before its last cell, so it is not compared with {baseline}")
        say(errors[-1])
    elif baseline and results:
        comparison, compared_code, compare_errors = compare(program, baseline, out, arguments.allow)
        errors += compare_errors
        if comparison:
            taken, compared_code = accept(entries, comparison, compared_code)
    code = overall(run_code, compared_code)
    report = matrix_report.Report(
        tier=arguments.tier, code=code, meaning=meaning_of(code, run_code, baseline), seconds=seconds,
        limit_s=tier["limit_s"], out=out, root=ROOT, results=results, comparison=comparison, baseline=baseline,
        errors=[nothing_ran(results, errors)] if run_code == 5 else errors, accepted=taken)
    matrix_report.publish(report)
    say(f"exit {code}: {report.meaning}" + (f": {report.errors[0]}" if (code == 2 or run_code == 5) and report.errors else ""))
    return code


def main():
    arguments = parse_arguments()
    try:
        return run_tier(arguments)
    except Stopped as stop:
        report_error(str(stop))
        return stop.code
    except KeyboardInterrupt:
        report_error("stopped by SIGINT")
        return 128 + signal.SIGINT
    except (UsageError, accepted.AcceptError) as error:
        report_error(str(error))
    except OSError as error:
        report_error(f"{error.filename or 'the system'}: {error.strerror}")
    except Exception as error:  # what nobody foresaw: exit code 1 would say that a gate failed
        if os.environ.get("FP8LAB_DEBUG"):
            traceback.print_exception(error)
        report_error(f"internal error: {type(error).__name__}: {error}; please report it with its traceback, "
                     "which FP8LAB_DEBUG=1 shows")
    return 2


if __name__ == "__main__":
    sys.exit(main())
