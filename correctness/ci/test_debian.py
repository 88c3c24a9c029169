"""The Debian package that cpack makes: what it depends on, what it holds, and what lintian reports."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

BUILD = os.environ["FP8LAB_BUILD"]
PROGRAM = os.environ["FP8LAB_PROGRAM"]


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@unittest.skipIf(any(shutil.which(tool) is None for tool in ("cpack", "dpkg-deb", "dpkg-shlibdeps")),
                 "cpack or dpkg-dev is not installed")
class Debian(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        made = subprocess.run(["cpack", "--config", f"{BUILD}/CPackConfig.cmake", "-B", cls.folder.name],
                              capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stdout + made.stderr
        cls.package, = pathlib.Path(cls.folder.name).glob("*.deb")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def field(self, name):
        return output_of("dpkg-deb", "-f", self.package, name).strip()

    def test_it_depends_on_the_packages_of_the_libraries_that_the_program_is_linked_with_and_on_no_other(self):
        depends = {re.split(r"[ (|]", word.strip())[0] for word in self.field("Depends").split(",")}
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", output_of("readelf", "-d", PROGRAM))
        paths = dict(re.findall(r"^\s*(\S+) => (\S+)", output_of("ldd", PROGRAM), flags=re.MULTILINE))
        owners = set()
        for library in needed:
            if library in paths:  # the loader itself has no path
                path = pathlib.Path(paths[library])
                done = subprocess.run(["dpkg", "-S", f"*/{path.name}"], capture_output=True, text=True, check=True)
                owners |= {line.split(":")[0] for line in done.stdout.splitlines() if line.endswith(f"/{path.name}")}
        self.assertEqual(depends - owners, set())
        self.assertTrue({"libc6", "libstdc++6"} <= depends, depends)

    def test_what_only_some_commands_need_is_recommended_or_suggested(self):
        self.assertEqual(self.field("Recommends"), "python3, python3-matplotlib, python3-jinja2, python3-fastjsonschema")
        self.assertEqual(self.field("Suggests"), "python3-venv")

    def test_its_maintainer_has_a_name_and_an_address(self):
        self.assertRegex(self.field("Maintainer"), r"^[^<>]+ <[^<>@ ]+@[^<>@ ]+>$")

    def test_it_holds_the_program_the_manual_page_and_completions(self):
        held = output_of("dpkg-deb", "-c", self.package)
        for path in ("bin/fp8lab", "share/man/man1/fp8lab.1.gz", "share/bash-completion/completions/fp8lab",
                     "share/zsh/vendor-completions/_fp8lab", "share/fish/vendor_completions.d/fp8lab.fish",
                     "share/doc/fp8lab/copyright", "share/doc/fp8lab/changelog.gz", "share/fp8lab/reports/__main__.py"):
            self.assertIn(f" ./usr/{path}\n", held)

    @unittest.skipIf(shutil.which("lintian") is None, "lintian is not installed")
    def test_lintian_finds_no_error(self):
        done = subprocess.run(["lintian", "--allow-root", "--fail-on", "error", self.package], capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
