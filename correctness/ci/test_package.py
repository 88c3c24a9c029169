"""The library as another project has it: installed, moved, and found by find_package(fp8lab)."""

import os
import pathlib
import subprocess
import tempfile
import unittest

BUILD = os.environ["FP8LAB_BUILD"]
OUTSIDE = pathlib.Path(__file__).resolve().parent / "outside"
ROOT = OUTSIDE.parent.parent.parent


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        first = pathlib.Path(cls.folder.name, "first")
        subprocess.run(["cmake", "--install", BUILD, "--component", "library", "--prefix", first], check=True,
                       capture_output=True)
        cls.prefix = first.rename(first.with_name("moved"))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def configure(self, version):
        return subprocess.run(["cmake", "-S", OUTSIDE, "-B", pathlib.Path(self.folder.name, version), "-D",
                               f"CMAKE_PREFIX_PATH={self.prefix}", "-D", f"FP8LAB_VERSION={version}"],
                              capture_output=True, text=True, check=False)

    def test_an_outside_project_casts_a_tensor_and_predicts_memory(self):
        done = self.configure("0.1")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        build = pathlib.Path(self.folder.name, "0.1")
        done = subprocess.run(["cmake", "--build", build], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        error, weights = subprocess.run([build / "outside"], capture_output=True, text=True, check=True).stdout.split()
        # E4M3 has three bits of fraction: half a step is 2^-4 of a value, and most values of the matrix lie between steps.
        self.assertTrue(2**-6 < float(error) <= 2**-4, error)
        self.assertEqual(int(weights), 2 * 256 * 256 * 2)  # two layers in BF16

    def test_another_version_is_refused(self):
        self.assertNotEqual(self.configure("0.9").returncode, 0)

    def test_the_package_names_no_path_of_the_source_or_build_tree(self):
        for path in self.prefix.rglob("*.cmake"):
            for tree in (ROOT, BUILD):
                self.assertNotIn(f"{tree}/", path.read_text(encoding="utf-8"), path)

    def test_headers_and_libraries_are_all_that_is_installed(self):
        kinds = {path.suffix for path in self.prefix.rglob("*") if path.is_file()}
        self.assertEqual(kinds, {".a", ".cmake", ".h"})
        headers = {path.relative_to(ROOT / "lib") for path in (ROOT / "lib").rglob("*.h")}
        folder = next(self.prefix.rglob("fp8lab/core/check.h")).parent.parent
        self.assertEqual({path.relative_to(folder) for path in folder.rglob("*.h")}, headers)


if __name__ == "__main__":
    unittest.main()
