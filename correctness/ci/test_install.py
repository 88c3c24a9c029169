"""The program as a new user has it: installed, and used from a folder outside the source tree."""

import gzip
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

BUILD = os.environ["FP8LAB_BUILD"]

TEN_MISTAKES = """version: 1
name: ten mistakes
titel: A file
modle: {layer: transformer, hidden: 0}
training: {steps: 1.5, optimizer: adams}
matrix: {device: [tpu]}
measure: [memory]
expect:
  - {metric: memory.peak, at_moost: 1}
"""


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.prefix = pathlib.Path(cls.folder.name, "prefix")
        subprocess.run(["cmake", "--install", BUILD, "--component", "program", "--prefix", cls.prefix], check=True,
                       capture_output=True)
        cls.share = cls.prefix / "share/fp8lab"

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def setUp(self):
        self.empty = pathlib.Path(tempfile.mkdtemp(dir=self.folder.name))

    def fp8lab(self, *arguments, code=0):
        done = subprocess.run([self.prefix / "bin/fp8lab", *arguments], cwd=self.empty, capture_output=True, text=True,
                              check=False, timeout=120)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def kinds(self):
        return [line.split()[0] for line in self.fp8lab("init", "--list").stdout.splitlines()]

    def test_man_and_shells_find_what_the_program_prints_about_itself(self):
        for words, place in ((["completion", "bash"], "bash-completion/completions/fp8lab"),
                             (["completion", "zsh"], "zsh/vendor-completions/_fp8lab"),
                             (["completion", "fish"], "fish/vendor_completions.d/fp8lab.fish")):
            self.assertEqual((self.prefix / "share" / place).read_text(), self.fp8lab(*words).stdout)
        with gzip.open(self.prefix / "share/man/man1/fp8lab.1.gz", "rt", encoding="utf-8") as page:
            self.assertEqual(page.read(), self.fp8lab("man").stdout)

    def test_every_kind_of_scenario_passes_as_it_is_written(self):
        kinds = self.kinds()
        self.assertGreaterEqual(len(kinds), 5)
        for kind in kinds:
            self.fp8lab("init", kind)
        self.assertEqual({path.name for path in self.empty.iterdir()}, {f"{kind}.yaml" for kind in kinds})
        self.fp8lab("run", ".", "-o", "out")
        verdicts = {cell["verdict"] for cell in json.loads((self.empty / "out/results.json").read_text())["cells"]}
        self.assertEqual(verdicts, {"pass", "confirmed"})

    def test_a_scenario_is_replaced_only_on_demand(self):
        (self.empty / "memory.yaml").write_text("mine")
        self.assertIn("--force", self.fp8lab("init", "memory", code=2).stderr)
        self.assertEqual((self.empty / "memory.yaml").read_text(), "mine")
        self.fp8lab("init", "memory", "--force")
        printed = self.fp8lab("init", "memory", "-o", "-").stdout
        self.assertEqual((self.empty / "memory.yaml").read_text(), printed)
        self.assertIn("Did you mean `memory`?", self.fp8lab("init", "memori", code=2).stderr)

    def test_a_run_becomes_a_report_by_the_installed_program(self):
        main = self.share / "reports/__main__.py"
        self.addCleanup(main.write_text, main.read_text())
        main.write_text("print('installed')\n" + main.read_text())
        self.fp8lab("init", "fix")
        self.fp8lab("run", "fix.yaml", "-o", "out")
        self.assertTrue(self.fp8lab("report", "out", "-o", "report").stdout.startswith("installed"))
        self.assertGreater((self.empty / "report/report.html").stat().st_size, 10_000)

    def test_the_installed_scenarios_are_found(self):
        installed = self.share / "scenarios/added.yaml"
        self.addCleanup(installed.unlink)
        installed.write_text(self.fp8lab("init", "memory", "-o", "-").stdout.replace("name: memory", "name: added"))
        listed = self.fp8lab("run", "scenarios", "--list").stdout
        self.assertIn("added/", listed)
        self.assertIn("recipe-parity/", listed)
        (self.empty / "scenarios").mkdir()
        shutil.copy(installed, self.empty / "scenarios")
        self.assertNotIn("recipe-parity/", self.fp8lab("run", "scenarios", "--list").stdout)

    def test_every_key_and_metric_is_explained(self):
        for table in ("keys", "metrics"):
            rows = json.loads(self.fp8lab(table, "--json").stdout)
            self.assertGreater(len(rows), 30)
            for row in rows:
                self.assertIn(row["meaning"], self.fp8lab(table, row["name"]).stdout)

    def test_ten_mistakes_are_reported_at_once_by_every_command(self):
        (self.empty / "ten.yaml").write_text(TEN_MISTAKES)
        for command in ("validate", "plan", "run"):
            lines = self.fp8lab(command, "ten.yaml", code=2).stderr.splitlines()
            self.assertEqual(10, len(lines), lines)
            for line, key in zip(lines, ("name", "titel", "modle", "model.layer", "model.hidden", "training.steps",
                                         "training.optimizer", "matrix.device", "expect.metric", "expect.at_moost")):
                self.assertRegex(line, rf"^fp8lab: error: ten\.yaml:\d+:\d+: `{key}`")

    def test_a_run_that_was_killed_is_not_compared(self):
        self.fp8lab("init", "memory")
        self.fp8lab("run", "memory.yaml", "-o", "cut")
        (self.empty / "cut/results.json").unlink()
        self.assertIn("did not end", self.fp8lab("compare", "cut", "cut", code=2).stderr)

    def test_sections_and_groups_list_their_members(self):
        self.assertEqual(self.fp8lab("keys", "training.recipe_options").stdout.count("training.recipe_options."), 7)
        self.assertIn("host.pre_forward_ns", self.fp8lab("metrics", "host").stdout)
        self.assertIn("at_least", self.fp8lab("keys", "expect").stdout)

    def test_near_misses_are_named(self):
        self.fp8lab("init", "memory")
        self.assertIn("Did you mean `cuda`?", self.fp8lab("run", "memory.yaml", "-d", "gpu", code=2).stderr)
        self.assertIn("the cells of these files are on meta", self.fp8lab("run", "memory.yaml", "-d", "cpu", code=5).stderr)
        self.assertIn("Did you mean `recipe`?", self.fp8lab("keys", "recip", code=2).stderr)
        self.assertIn("memory.peak_bytes", self.fp8lab("metrics", "memory.peak_byte", code=2).stderr)

    def test_examples_of_keys_are_valid_values(self):
        for row in json.loads(self.fp8lab("keys", "--json").stdout):
            (self.empty / "k.yaml").write_text("version: 1\nname: k\ntitle: K\n" + "\n".join(
                ["model: {}" if not row["example"].startswith("model:") else "", row["example"], "measure: [memory]"]))
            done = subprocess.run([self.prefix / "bin/fp8lab", "validate", "k.yaml"], cwd=self.empty,
                                  capture_output=True, text=True, check=False)
            for refusal in ("unknown key", "is not allowed", "must be"):
                self.assertNotIn(refusal, done.stderr, row)


if __name__ == "__main__":
    unittest.main()
