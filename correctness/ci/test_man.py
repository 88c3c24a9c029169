"""The manual page: no warning of the programs that format it, and everything that the program and its sources name."""

import os
import pathlib
import re
import shutil
import subprocess
import unittest

PROGRAM = os.environ["FP8LAB_PROGRAM"]
LIB = pathlib.Path(__file__).resolve().parent.parent.parent / "lib"


def output_of(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=True, **options).stdout


PAGE = output_of(PROGRAM, "man")
# As a reader sees it, without the requests of troff.
TEXT = re.sub(r"\\f[BIR]|^\.[A-Z]+ ?", "", PAGE, flags=re.MULTILINE).replace("\\-", "-")


class Man(unittest.TestCase):
    @unittest.skipIf(shutil.which("groff") is None, "groff is not installed")
    def test_groff_has_no_warning(self):
        done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-rLL=200n"], input=PAGE, capture_output=True, text=True,
                              check=True)
        self.assertEqual(done.stderr, "")

    @unittest.skipIf(shutil.which("mandoc") is None, "mandoc is not installed")
    def test_mandoc_has_no_warning(self):
        done = subprocess.run(["mandoc", "-T", "lint", "-W", "warning"], input=PAGE, capture_output=True, text=True,
                              check=False)
        # The page names the program's version, not a day.
        warnings = [line for line in done.stdout.splitlines() if "missing date" not in line]
        self.assertEqual(warnings, [])

    def test_every_command_and_every_option_of_help_is_on_the_page(self):
        listing = output_of(PROGRAM, "--help").partition("Subcommands:")[2].partition("\n\n")[0]
        commands = re.findall(r"^  (\S+)", listing, flags=re.MULTILINE)
        self.assertGreater(len(commands), 10)
        for command in commands:
            self.assertIn(f"\nfp8lab {command}\n", TEXT)
            for option in re.findall(r"^  (?:-\w,)?(--[\w-]+)", output_of(PROGRAM, command, "--help"), flags=re.MULTILINE):
                self.assertIn(option, TEXT, command)

    def test_its_sections_are_those_that_readers_of_manuals_look_for(self):
        sections = re.findall(r"^\.SH (.*)", PAGE, flags=re.MULTILINE)
        self.assertEqual(sections, ["NAME", "SYNOPSIS", "OPTIONS", "COMMANDS", "EXAMPLES", "FILES", "ENVIRONMENT",
                                    "EXIT CODES"])

    def test_every_environment_variable_that_sources_read_is_on_the_page(self):
        named = set()
        for path in [*LIB.rglob("*.cpp"), *LIB.rglob("*.h")]:
            named |= set(re.findall(r'"(FP8LAB_\w+)"', path.read_text(encoding="utf-8")))
        self.assertGreater(len(named), 6)
        # The program sets the variables of its children; one is a setting of the build.
        internal = {name for name in named if name.startswith(("FP8LAB_WATCH", "FP8LAB_VALUES"))}
        internal |= {"FP8LAB_PROGRAM", "FP8LAB_RESULTS_SCHEMA"}
        for name in named - internal - {"FP8LAB_CUDNN_FRONTEND_INCLUDE"}:
            self.assertIn(name, TEXT)


if __name__ == "__main__":
    unittest.main()
