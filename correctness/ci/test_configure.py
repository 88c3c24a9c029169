"""Configures the project: paths that no build can quote, and whether CUDA is built."""

import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NVCC = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
HAS_GPU = bool(list(pathlib.Path("/dev").glob("nvidia[0-9]*"))) or pathlib.Path("/dev/dxg").exists()


class Configure(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def configure(self, source, *words):
        done = subprocess.run(["cmake", "-S", source, "-B", self.folder / "build", "-D", "FP8LAB_TESTS=OFF", "-D",
                               "FP8LAB_BENCH=OFF", *words], capture_output=True, text=True, check=False)
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    def test_a_source_path_with_a_quote_or_a_dollar_is_refused_with_the_characters_and_the_path(self):
        for name in ('qu"ote', "dol$lar", "semi;colon"):
            source = self.folder / name
            source.symlink_to(ROOT)
            with self.subTest(name=name):
                code, output = self.configure(source)
                self.assertEqual(code, 1, output)
                self.assertIn('a path that has none of the characters " $ ` \\ ;', output)
                self.assertIn(name, output)
                self.assertEqual(output.count("CMake Error"), 1, output)

    def test_a_source_path_with_spaces_and_a_single_quote_configures(self):
        source = self.folder / "it's a path"
        source.symlink_to(ROOT)
        code, output = self.configure(source, "-D", "FP8LAB_CUDA=OFF")
        self.assertEqual(code, 0, output)

    @unittest.skipIf(NVCC is None or HAS_GPU, "needs nvcc, and a machine without a GPU")
    def test_auto_without_a_gpu_builds_no_cuda_and_says_how_to_get_it(self):
        code, output = self.configure(ROOT)
        self.assertEqual(code, 0, output)
        self.assertIn("CUDA: not built, because this machine has no NVIDIA GPU; -D FP8LAB_CUDA=ON builds it", output)

    @unittest.skipIf(NVCC is None, "needs nvcc")
    def test_nvcc_without_a_gpu_builds_cuda(self):
        code, output = self.configure(ROOT, "-D", "FP8LAB_CUDA=NVCC", "-D", "CMAKE_CUDA_ARCHITECTURES=90a-real")
        self.assertEqual(code, 0, output)
        self.assertIn("Attention through cuDNN", output)

    @unittest.skipIf(NVCC is None, "needs nvcc")
    def test_a_frontend_older_than_the_oldest_accepted_is_named_and_left_out(self):
        headers = self.folder / "old"
        headers.mkdir()
        (headers / "cudnn_frontend.h").touch()
        (headers / "cudnn_frontend_version.h").write_text("\n".join(
            f"#define CUDNN_FRONTEND_{part}_VERSION {number}" for part, number in
            (("MAJOR", 1), ("MINOR", 12), ("PATCH", 0))))
        code, output = self.configure(ROOT, "-D", "FP8LAB_CUDA=ON", "-D", f"FP8LAB_CUDNN_FRONTEND_INCLUDE={headers}", "-D",
                                      "CMAKE_CUDA_ARCHITECTURES=90a-real", "-D", f"FP8LAB_CUDNN_INCLUDE={headers}")
        self.assertEqual(code, 0, output)
        self.assertRegex(output, r"not built \(needs cudnn.h and .* or later; found is 1.12.0 in")


if __name__ == "__main__":
    unittest.main()
