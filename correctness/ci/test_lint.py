"""Shows that ci/lint finds what it must in the files of CI systems, and nothing in ours."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
GITHUB, GITLAB = ".github/workflows/ci.yml", ".gitlab-ci.yml"
ACTION, CONTAINER = "ci/action.yml", "ci/Containerfile"
COPIED = ("CMakeLists.txt", "CMakePresets.json", "LICENSE", "lib", "reports", "scenarios")  # into the container
# file, what is replaced, what by, what the finding is. A file that breaks its schema is not read further, so those
# mistakes go in a round of their own.
ROUNDS = (
    (
        (GITHUB, "timeout-minutes: 30", "timeout-minute: 30", "'timeout-minute'"),
        (GITLAB, "junit: out/results/junit.xml", "junitt: out/results/junit.xml", "'junitt'"),
        (ACTION, "using: composite", "using: composition", "composition"),
    ),
    (
        (GITHUB, "ci/matrix smoke", "ci/matrix smoky", "ci.yml:39: `smoky` is no tier"),
        (GITHUB, "- run: ci/test", "- run: ci/tests", "ci/tests is no program"),
        (GITHUB, '--device "$DEVICE"', "--device $DEVICE", "SC2086"),
        (GITLAB, "ci/matrix smoke", "ci/matrix smoggy", "`smoggy` is no tier"),
        (GITLAB, "if test -f baseline/results.json", "if test -f $baseline/results.json", "SC2154"),
        (ACTION, '" keep', '" $keep', "ci/action.yml:"),
        (GITHUB, "run scenarios/subjects", "run scenarios/subject", "scenarios/subject does not exist"),
        (GITHUB, "[[ -f ci/accepted.toml ]]", "true", "ci/accepted.toml does not exist"),
        (CONTAINER, "COPY reports reports", "COPY report report", "Containerfile: report does not exist"),
        (CONTAINER, '"$(nproc)"', "$(nproc)", "SC2046"),
        (CONTAINER, "RUN ci/setup", "RUN ci/set-up", "ci/set-up is no program"),
        ("ci/try", "-o out", "-o $PWD/out", "ci/try:"),
        ("ci/tiers.toml", "[gpu]", "[GPU]", "`gpu` is no tier"),
    ),
)


@unittest.skipUnless((ROOT / "build/lint/holds").exists(), "ci/lint's checkers are not installed; run ci/setup checkers")
class Lint(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        shutil.copytree(ROOT / "ci", self.root / "ci", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(ROOT / ".github", self.root / ".github")
        shutil.copy(ROOT / GITLAB, self.root)
        shutil.copy(ROOT / ".clang-format", self.root)
        for name in COPIED:
            (self.root / name).mkdir() if (ROOT / name).is_dir() else shutil.copy(ROOT / name, self.root)
        (self.root / "scenarios/subjects").mkdir()  # which a step names

    def lint(self, **environment):
        done = subprocess.run([ROOT / "ci/lint", self.root], capture_output=True, text=True, check=False,
                              env=os.environ | environment)
        return done.returncode, done.stdout + done.stderr

    def test_files_of_this_tree_are_clean(self):
        self.assertEqual((0, "ci/lint: 0 findings\n"), self.lint())

    def test_format_is_checked_and_written(self):
        source = self.root / "lib/core/a.cpp"
        source.parent.mkdir()
        source.write_text("int a;\nint  b ;\n", encoding="utf-8")
        code, output = self.lint()
        self.assertEqual(1, code, output)
        self.assertIn("lib/core/a.cpp:2: not as clang-format writes it", output)
        subprocess.run([ROOT / "ci/lint", "--fix", self.root], check=True, capture_output=True)
        self.assertEqual("int a;\nint b;\n", source.read_text(encoding="utf-8"))

    def test_mistakes_are_found(self):
        for mistakes in ROUNDS:
            texts = {file: (self.root / file).read_text(encoding="utf-8") for file, *_ in mistakes}
            for file, good, bad, _ in mistakes:
                path = self.root / file
                text = path.read_text(encoding="utf-8")
                self.assertIn(good, text)
                path.write_text(text.replace(good, bad), encoding="utf-8")
            code, output = self.lint()
            for file, text in texts.items():
                (self.root / file).write_text(text, encoding="utf-8")
            self.assertEqual(1, code, output)
            for file, _, bad, finding in mistakes:
                with self.subTest(file=file, bad=bad):
                    self.assertIn(finding, output)

    def test_every_shell_script_is_checked(self):
        for first_line in ("#!/bin/sh", "#!/bin/bash -e", "#!/usr/bin/env -S bash -e", "#! /bin/dash"):
            (self.root / "ci/fresh").write_text(f"{first_line}\nrm $1\n", encoding="utf-8")
            code, output = self.lint()
            self.assertEqual(1, code, first_line)
            self.assertRegex(output, r"ci/fresh:2:.*SC2086", first_line)
        (self.root / "ci/fresh").write_text("#!/usr/bin/env fish\nrm $argv\n", encoding="utf-8")
        self.assertEqual((0, "ci/lint: 0 findings\n"), self.lint())

    def test_what_shellcheck_cannot_check_is_a_finding(self):
        fake = self.root / "bin/shellcheck"
        fake.parent.mkdir()
        fake.write_text("#!/bin/sh\necho 'cannot read it' >&2\nexit 2\n", encoding="utf-8")
        fake.chmod(0o755)
        code, output = self.lint(PATH=f"{fake.parent}:{os.environ['PATH']}")
        self.assertEqual(1, code, output)
        self.assertIn("ci/setup: shellcheck: cannot read it", output)
        self.assertIn("ci/Containerfile: shellcheck: cannot read it", output)

    def test_a_missing_workflow_is_reported(self):
        (self.root / GITLAB).unlink()
        code, output = self.lint()
        self.assertEqual(1, code)
        self.assertIn("is missing", output)


if __name__ == "__main__":
    unittest.main()
