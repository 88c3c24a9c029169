"""Completes commands in a real shell: test_completion.py SHELL."""

import os
import pathlib
import pty
import select
import subprocess
import sys
import tempfile
import unittest

PROGRAM = pathlib.Path(os.environ["FP8LAB_PROGRAM"])
SHELL = sys.argv.pop()
# The text typed before the tab key, and the line that must result.
LINES = (
    ("fp8lab comple", "fp8lab completion"),
    ("fp8lab plan --js", "fp8lab plan --json"),
    ("fp8lab run -d cu", "fp8lab run -d cuda"),
    ("fp8lab run -d cpu,m", "fp8lab run -d cpu,meta"),
    ("fp8lab run --device=m", "fp8lab run --device=meta"),
    ("fp8lab run scenarios_he", "fp8lab run scenarios_here/"),
    ("fp8lab run --out scenarios_he", "fp8lab run --out scenarios_here/"),
    ("fp8lab run --out=scenarios_he", "fp8lab run --out=scenarios_here/"),
    ("fp8lab compare scenarios_here/on", "fp8lab compare scenarios_here/one.yaml"),
    ("fp8lab completion fi", "fp8lab completion fish"),
    ("fp8lab plan --model gpt3-17", "fp8lab plan --model gpt3-175b"),
    ("fp8lab plan --gpu b2", "fp8lab plan --gpu b200"),
    ("fp8lab plan --recipe bf16,mx", "fp8lab plan --recipe bf16,mxfp8"),
    ("fp8lab plan --as transformer_engine@2.1 --set model.vocab",
     "fp8lab plan --as transformer_engine@2.1 --set model.vocabulary="),
    ("fp8lab plan --set model.form=ll", "fp8lab plan --set model.form=llama"),
    ("fp8lab plan --set=model.form=ll", "fp8lab plan --set=model.form=llama"),
    ("fp8lab subjects --install transformer_", "fp8lab subjects --install transformer_engine=="),
    ("fp8lab keys model.form", "fp8lab keys model.form"),
    ("fp8lab metrics memory.retained", "fp8lab metrics memory.retained_bytes"),
    ("fp8lab fixes release_att", "fp8lab fixes release_attention_tensors"),
    ("fp8lab init par", "fp8lab init parity"),
    ("fp8lab schema comp", "fp8lab schema comparison"),
)


class Terminal:
    """A shell on a pseudo-terminal, so that it is interactive."""

    def __init__(self, command, folder, environment):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe(command[0], command, environment)

    def type(self, text):
        os.write(self.fd, text.encode())

    def read_until(self, mark, seconds=60):
        seen = b""
        while mark.encode() not in seen:
            if not select.select([self.fd], [], [], seconds)[0]:
                raise AssertionError(f"the shell did not say {mark!r}, but {seen.decode(errors='replace')!r}")
            seen += os.read(self.fd, 65536)
        return seen.decode(errors="replace")

    def close(self):
        os.close(self.fd)
        os.waitpid(self.pid, 0)


class Completion(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        scenarios = pathlib.Path(self.folder.name, "scenarios_here")
        scenarios.mkdir()
        (scenarios / "one.yaml").touch()
        self.environment = {"PATH": f"{PROGRAM.parent}:{os.environ['PATH']}", "HOME": self.folder.name, "TERM": "xterm"}

    def completed_interactively(self, command, setup, typed):
        terminal = Terminal(command, self.folder.name, self.environment)
        try:
            # The marks are typed in two parts, so that their echo is not taken for their output.
            terminal.type(setup + "\necho re''ady\n")
            terminal.read_until("ready\r\n")
            # END after what was completed, then to the line's beginning, which makes the line the words of an echo.
            terminal.type(f"{typed}\tEN''D\x01echo BEG''IN \n")
            return terminal.read_until("END\r\n").rpartition("BEGIN ")[2].partition("END\r\n")[0].strip()
        finally:
            terminal.close()

    def completed_by_fish(self, typed):
        script = f"fp8lab completion fish | source; complete -C '{typed}'"
        done = subprocess.run(["fish", "--no-config", "-c", script], cwd=self.folder.name, env=self.environment,
                              capture_output=True, text=True, check=True)
        words = [line.partition("\t")[0] for line in done.stdout.splitlines()]
        self.assertEqual(1, len(words), done.stdout + done.stderr)
        return typed.rpartition(" ")[0] + " " + words[0]

    def completed(self, typed):
        if SHELL == "fish":
            return self.completed_by_fish(typed)
        if SHELL == "zsh":
            return self.completed_interactively(
                ["zsh", "-f", "-i"], "PROMPT=; unset zle_bracketed_paste; "
                "source <(fp8lab completion zsh)", typed)
        return self.completed_interactively(
            ["bash", "--norc", "--noprofile", "-i"], "PS1=; bind 'set enable-bracketed-paste off'; "
            "source <(fp8lab completion bash)", typed)

    def test_lines(self):
        for typed, full in LINES:
            with self.subTest(typed=typed):
                self.assertEqual(full, self.completed(typed))

    def test_a_word_without_completions_stays(self):
        if SHELL != "fish":
            self.assertEqual("fp8lab nothing-of-this-na", self.completed("fp8lab nothing-of-this-na"))


if __name__ == "__main__":
    unittest.main()
