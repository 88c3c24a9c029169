"""ci/gpu with programs in place of the tools it calls: what it runs, what it prints, and how it ends."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

GPU = pathlib.Path(__file__).resolve().parents[2] / "ci/gpu"

# A tool that records its arguments.
RECORDED = '#!/bin/sh\necho "$(basename "$0") $*" >>"$FAKE_CALLS"\n'
# Of two GPUs, or of those that -i names.
NVIDIA_SMI = """#!/bin/sh
[ "$1" = -i ] || { printf "NVIDIA H200\\nNVIDIA H200\\n"; exit; }
case $2 in 0|1|GPU-2b) echo "NVIDIA H200";; *) echo "No devices were found"; exit 6;; esac
"""
# Builds a program whose scenarios end as $FAKE_RUN specifies; fails at the target that $FAKE_BROKEN names.
CMAKE = RECORDED + """
case "$*" in *"$FAKE_BROKEN"*) echo "error: $FAKE_BROKEN is broken"; exit 1;; esac
mkdir -p build/cuda/scenarios
cat >build/cuda/scenarios/fp8lab <<'PROGRAM'
#!/bin/sh
echo "fp8lab $*" >>"$FAKE_CALLS"
echo "multicast $NCCL_NVLS_ENABLE" >>"$FAKE_CALLS"
while [ "$1" != -o ]; do shift; done
mkdir -p "$2"
echo '{"cells": [{"verdict": "pass"}, {"verdict": "confirmed"}, {"verdict": "pass"}]}' >"$2/results.json"
exit "$FAKE_RUN"
PROGRAM
chmod +x build/cuda/scenarios/fp8lab
"""
# Five tests, one of which uses every GPU.
CTEST = RECORDED + """
case "$*" in
*show-only*gpus*) echo 'warning'; echo '{"tests": [{"name": "ranks"}]}'; exit;;
*show-only*) echo '{"tests": [{"name": "a"}, {"name": "b"}, {"name": "ranks"}, {"name": "c.d"}, {"name": "e"}]}'; exit;;
esac
while [ "$1" != -R ]; do shift; done
echo "GPUs $CUDA_VISIBLE_DEVICES $2" >>"$FAKE_CALLS"
[ "$2" != '^e$' ] || sleep 0.5
echo "$FAKE_TESTS"
[ "$2" != "$FAKE_SKIPPED" ] || echo "	 3 - windows (Skipped)"
[ "${FAKE_TESTS#100%}" != "$FAKE_TESTS" ]
"""


class Gpu(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        (self.root / "ci").mkdir()
        shutil.copy(GPU, self.root / "ci/gpu")
        (self.root / "bin").mkdir()
        self.tools = {"nvidia-smi": NVIDIA_SMI, "cmake": CMAKE, "ctest": CTEST}

    def run_gpu(self, *arguments, run=0, broken="no-target", tests="100% tests passed, 0 tests failed out of 1",
                skipped="", visible=None):
        for name, text in self.tools.items():
            path = self.root / "bin" / name
            path.write_text(text)
            path.chmod(0o755)
        self.calls = self.root / "calls"
        self.calls.touch()
        environment = {**os.environ, "PATH": f"{self.root / 'bin'}:/usr/bin:/bin", "FAKE_CALLS": str(self.calls),
                       "FAKE_RUN": str(run), "FAKE_BROKEN": broken, "FAKE_TESTS": tests,
                       "FAKE_SKIPPED": skipped}
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        if visible is not None:
            environment["CUDA_VISIBLE_DEVICES"] = visible
        return subprocess.run([self.root / "ci/gpu", *arguments], capture_output=True, text=True, timeout=60,
                              check=False, env=environment, stdin=subprocess.DEVNULL)

    def test_row_holds_commit_gpus_tests_cells_and_exit_status(self):
        done = self.run_gpu("--commit", "abc1234", "-D", "FP8LAB_NCCL=ON")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        row = done.stdout.splitlines()[-1]
        self.assertRegex(row, r"^\| `abc1234` \| \d{4}-\d\d-\d\d \| 2 x NVIDIA H200 \| 5 of 5 tests in \d+ s \| "
                              r"3 cells: 1 confirmed, 2 pass, exit 0, in \d+ s \| \d+ s \|$")
        self.assertEqual((self.root / "out/gpu/row.md").read_text(), row + "\n")
        calls = self.calls.read_text()
        self.assertIn("run scenarios -d cuda", calls)
        self.assertIn("cmake --preset cuda -D FP8LAB_NCCL=ON\n", calls)
        self.assertIn("multicast 0", calls)
        self.assertIn("--target fp8lab gpu_tests", calls)
        self.assertLess(calls.index("--target one_gpu_tests"), calls.index("GPUs "), "they are built before they run")

    def test_gpus_divide_the_tests_but_for_those_that_use_every_gpu(self):
        # The test that may take longest begins first, so that one GPU runs it and the other one the rest.
        self.tools["ctest"] = CTEST.replace(
            '{"name": "e"}', '{"name": "e", "properties": [{"name": "TIMEOUT", "value": 600.0}]}')
        self.run_gpu("--commit", "abc1234")
        runs = [line.split()[1:] for line in self.calls.read_text().splitlines() if line.startswith("GPUs")]
        gpu_of = {run[-1]: run[0] for run in runs[:-1]}
        self.assertEqual(set(gpu_of), {"^a$", "^b$", "^c\\.d$", "^e$"})
        others = {gpu_of[name] for name in gpu_of if name != "^e$"}
        self.assertEqual(others | {gpu_of["^e$"]}, {"0", "1"})
        self.assertEqual(len(others), 1, "the GPU of the long test takes another one only after it")
        self.assertEqual(runs[-1], ["^ranks$"], "it sees every GPU, after the others")

    def test_only_gpus_that_are_visible_are_used(self):
        for visible in ("1", "1, GPU-2b"):
            done = self.run_gpu("--commit", "abc1234", visible=visible)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            gpus = [gpu.strip() for gpu in visible.split(",")]
            self.assertIn(f"| {len(gpus)} x NVIDIA H200 |", done.stdout.splitlines()[-1])
            runs = [line for line in self.calls.read_text().splitlines() if line.startswith("GPUs")]
            self.assertEqual({line.split()[1] for line in runs[:-1]}, set(gpus))
            self.assertEqual(runs[-1], f"GPUs {visible} ^ranks$")
            self.calls.unlink()
        for visible, error in (("7", "no GPU 7, which CUDA_VISIBLE_DEVICES=7 names"), ("0,7", "no GPU 7, which"),
                               ("", "no GPU in CUDA_VISIBLE_DEVICES=;")):
            done = self.run_gpu("--commit", "abc1234", visible=visible)
            self.assertEqual(done.returncode, 2)
            self.assertIn(error, done.stderr)

    def test_only_one_half_runs_when_asked(self):
        done = self.run_gpu("--commit", "abc1234", "--only", "scenarios")
        self.assertRegex(done.stdout.splitlines()[-1], r"\| not run \| 3 cells: .* exit 0")
        self.assertNotIn("ctest", self.calls.read_text())
        done = self.run_gpu("--commit", "abc1234", "--only", "tests")
        self.assertRegex(done.stdout.splitlines()[-1], r"\| 5 of 5 tests in \d+ s \| not run \|")

    def test_summary_of_cmake_4_is_read_and_skipped_tests_do_not_count_as_run(self):
        done = self.run_gpu("--commit", "abc1234", tests="100% tests passed out of 1", skipped="^b$")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("4 of 5 tests, 1 skipped, in", done.stdout.splitlines()[-1])

    def test_a_run_whose_tests_were_all_skipped_fails(self):
        done = self.run_gpu("--commit", "abc1234", tests="100% tests passed out of 1\n\n\t 3 - windows (Skipped)")
        self.assertEqual(done.returncode, 1, done.stdout)

    def test_failed_test_ends_with_1_and_shows_its_log(self):
        done = self.run_gpu("--commit", "abc1234", tests="0% tests passed, 1 tests failed out of 1")
        self.assertEqual(done.returncode, 1)
        self.assertIn("0 of 5 tests", done.stdout)
        self.assertIn("test-ranks ended with status 1", done.stdout)

    def test_failed_scenarios_end_with_1_and_are_in_the_row(self):
        done = self.run_gpu("--commit", "abc1234", run=124)
        self.assertEqual(done.returncode, 1)
        self.assertIn("exit 124", done.stdout.splitlines()[-1])

    def test_a_run_without_tests_fails(self):
        self.assertEqual(self.run_gpu("--commit", "abc1234", tests="100% of nothing").returncode, 1)

    def test_broken_build_is_named_with_its_log(self):
        done = self.run_gpu("--commit", "abc1234", broken="one_gpu_tests")
        self.assertEqual(done.returncode, 1)
        self.assertIn("error: one_gpu_tests is broken", done.stderr)

    def test_build_beside_the_tests_that_breaks_hides_no_failed_test(self):
        done = self.run_gpu("--commit", "abc1234", broken="fp8lab gpu_tests",
                            tests="0% tests passed, 1 tests failed out of 1")
        self.assertEqual(done.returncode, 1)
        self.assertIn("error: fp8lab gpu_tests is broken", done.stdout)
        self.assertIn("test-a ended with status 1", done.stdout)
        self.assertNotIn("test-ranks", done.stdout)
        self.assertRegex(done.stdout.splitlines()[-1], r"\| 0 of 4 tests in \d+ s \| not run \|")

    def test_listing_that_fails_leaves_no_build_behind(self):
        self.tools["ctest"] = CTEST.replace("*show-only*gpus*) ", "*show-only*gpus*) exit 3; ")
        done = self.run_gpu("--commit", "abc1234")
        self.assertEqual(done.returncode, 1)
        self.assertIn("list-gpus ended with status 3", done.stderr)
        self.assertNotIn("--target fp8lab", self.calls.read_text())

    def test_machine_without_gpu_gets_an_error(self):
        self.tools["nvidia-smi"] = "#!/bin/sh\necho no devices were found\nexit 6\n"
        done = self.run_gpu("--commit", "abc1234")
        self.assertEqual(done.returncode, 2)
        self.assertIn("finds no GPU", done.stderr)

    def test_tree_without_git_needs_a_commit(self):
        done = self.run_gpu()
        self.assertEqual(done.returncode, 2)
        self.assertIn("--commit", done.stderr)


if __name__ == "__main__":
    unittest.main()
