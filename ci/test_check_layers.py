"""Shows that every rule of check_layers.py fires if it must and is silent if it must."""

import pathlib
import tempfile
import unittest

import check_layers

HEADER = "#pragma once\n"
KERNEL = "__global__ void kernel() {}\n"
# What the cases below include or link, so that their paths resolve.
NEIGHBOURS = {
    "lib/core/check.h": HEADER,
    "lib/core/float8.h": HEADER,
    "lib/behavior/behaviors.h": HEADER,
    "lib/recipe/recipe.h": HEADER,
    "lib/tensor/tensor.h": HEADER,
    "lib/backend/device.h": HEADER,
    "lib/backend/cpu/cpu_device.h": HEADER,
    "lib/backend/meta/meta_device.h": HEADER,
    "lib/backend/cuda/launch.cuh": HEADER + KERNEL,
    "lib/backend/cuda/gemm/plan.h": HEADER,
    "lib/ops/ops.h": HEADER,
    "lib/harness/cell/cell.h": HEADER,
    "lib/fixes/fixes.h": HEADER,
    "bench/sizes.h": HEADER,
    "correctness/support/compare.h": HEADER,
    "correctness/reference/convert.h": HEADER,
}


def findings(files):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in {**NEIGHBOURS, **files}.items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return check_layers.check(folder)


def included(path, line):
    prefix = HEADER if path.endswith("h") else ""
    return {path: prefix + f"#include {line}\n" + (KERNEL if ".cu" in path else "")}


# rule, path, included header
BAD_INCLUDES = [
    ("layers", "lib/core/a.h", '"behavior/behaviors.h"'),
    ("layers", "lib/behavior/a.cpp", '"fixes/fixes.h"'),
    ("layers", "lib/fixes/a.cpp", '"tensor/tensor.h"'),
    ("layers", "lib/optim/a.cpp", '"fixes/fixes.h"'),
    ("layers", "lib/ops/a.cpp", '"harness/cell/cell.h"'),
    ("layers", "lib/backend/a.cpp", '"backend/cpu/cpu_device.h"'),
    ("layers", "lib/backend/cpu/a.cpp", '"backend/meta/meta_device.h"'),
    ("layers", "lib/ops/a.cpp", '"backend/cpu/cpu_device.h"'),
    ("layers", "correctness/reference/a.cpp", '"ops/ops.h"'),
    ("layers", "correctness/reference/a.cpp", '"backend/device.h"'),
    ("layers", "correctness/reference/a.cpp", '"support/compare.h"'),
    ("layers", "lib/harness/results/a.cpp", '"fixes/fixes.h"'),
    ("layers", "lib/harness/predict/a.cpp", '"recipe/recipe.h"'),
    ("layers", "lib/backend/cuda/a.cpp", '"backend/cuda/gemm/plan.h"'),
    ("include-path", "correctness/ops/a.cpp", '"sizes.h"'),
    ("include-path", "lib/ops/a.cpp", '"ops.h"'),
    ("include-path", "lib/ops/a.cpp", '"vector"'),
    ("external", "correctness/ops/a.cpp", "<benchmark/benchmark.h>"),
    ("external", "bench/a.cpp", "<gtest/gtest.h>"),
    ("external", "lib/ops/a.cpp", "<gmock/gmock.h>"),
    ("external", "lib/ops/a.cpp", "<cuda_runtime.h>"),
    ("external", "lib/backend/cpu/a.cpp", "<cublasLt.h>"),
    ("external", "bench/a.cpp", "<cudnn.h>"),
    ("external", "lib/backend/cuda/a.cpp", "<nccl.h>"),
    ("external", "lib/comm/nccl/a.cpp", "<mpi.h>"),
    ("external", "lib/ops/a.cpp", "<immintrin.h>"),
    ("external", "lib/recipe/a.cpp", "<yaml-cpp/yaml.h>"),
    ("external", "scenarios/other.cpp", "<CLI/CLI.hpp>"),
    ("external", "correctness/ops/a.cpp", "<nlohmann/json.hpp>"),
    ("external", "lib/harness/results/a.h", "<nlohmann/json.hpp>"),
    ("external", "lib/core/a.h", "<fmt/core.h>"),
    ("external", "lib/memory/a.cpp", "<unistd.h>"),
    ("external", "lib/harness/results/a.cpp", "<boost/any.hpp>"),
    ("external", "lib/harness/results/a.cpp", "<core/check.h>"),
    ("device", "lib/backend/cuda/a.cu", '"tensor/tensor.h"'),
    ("device", "lib/backend/cuda/a.cuh", '"backend/device.h"'),
]
GOOD_INCLUDES = [
    ("lib/behavior/a.cpp", '"core/check.h"'),
    ("lib/harness/measure/a.cpp", '"fixes/fixes.h"'),
    ("lib/harness/predict/a.cpp", '"harness/cell/cell.h"'),
    ("lib/backend/cuda/cuda_device.cpp", '"backend/cuda/gemm/plan.h"'),
    ("lib/harness/results/a.cpp", "<nlohmann/json.hpp>"),
    ("lib/harness/results/a.cpp", "<sys/wait.h>"),
    ("lib/ops/a.cpp", '"core/check.h"'),
    ("lib/ops/a.cpp", "<fmt/core.h>"),
    ("lib/ops/a.h", "<vector>"),
    ("lib/backend/devices.cpp", '"backend/cpu/cpu_device.h"'),
    ("lib/backend/cpu/a.cpp", "<immintrin.h>"),
    ("lib/backend/cuda/a.cpp", "<cuda_runtime.h>"),
    ("lib/backend/cuda/a.cu", '"core/float8.h"'),
    ("lib/backend/cuda/a.cu", '"backend/cuda/launch.cuh"'),
    ("lib/comm/nccl/a.cpp", "<nccl.h>"),
    ("bench/a.cpp", '"sizes.h"'),
    ("bench/a.cpp", "<benchmark/benchmark.h>"),
    ("scenarios/main.cpp", "<CLI/CLI.hpp>"),
    ("correctness/ops/a.cpp", '"support/compare.h"'),
    ("correctness/ops/a.cpp", '"backend/cpu/cpu_device.h"'),
    ("correctness/ops/a.cpp", "<gtest/gtest.h>"),
    ("correctness/harness/a.cpp", "<yaml-cpp/yaml.h>"),
    ("correctness/reference/a.cpp", "<cmath>"),
]

# rule, path, text, line of the finding; words that must not be in the tree are written in two parts
BAD_TEXTS = [
    ("layers", "lib/attic/a.cpp", "int a;\n", 1),
    ("device", "lib/ops/a.cpp", "int a;\n__device__ int b;\n", 2),
    ("device", "lib/backend/cuda/a.cu", "int host_only;\n", 1),
    ("optional-dependency", "lib/comm/a.cpp", "#ifdef FP8LAB_HAVE_MPI\n#endif\n", 1),
    ("optional-dependency", "lib/backend/cpu/a.cpp", "#if A && defined(USE_CUDA)\n#endif\n", 1),
    ("optional-dependency", "lib/comm/a.cpp", "\n#if __has_include(<mpi.h>)\n#endif\n", 2),
    ("pragma-once", "lib/ops/a.h", "int a;\n", 1),
    ("hermetic", "lib/ops/a.cpp", 'auto a = std::getenv("A");\n', 1),
    ("hermetic", "lib/ops/a.cpp", "void f() { exit(1); }\n", 1),
    ("hermetic", "lib/ops/a.cpp", "void f() { std::abort(); }\n", 1),
    ("hermetic", "lib/ops/a.cpp", 'void f() { printf("x"); }\n', 1),
    ("hermetic", "lib/ops/a.cpp", "// fine\nvoid f() { std::cout << 1; }\n", 2),
    ("hermetic", "lib/ops/a.cpp", 'void f() { fmt::print("x"); }\n', 1),
    ("size", "lib/ops/a.cpp", "\n" * (check_layers.LINES_FAIL + 1), check_layers.LINES_FAIL + 1),
    ("words", "lib/ops/a.cpp", "// TO" "DO: later\n", 1),
    ("words", "README.md", "FIX" "ME\n", 1),
    ("words", "scenarios/a.yaml", "# a place" "holder\n", 1),
    ("words", "correctness/ops/a.cpp", "TEST(A, DIS" "ABLED_B) {}\n", 1),
    ("words", "correctness/ops/a.cpp", "GTEST" "_SKIP();\n", 1),
    ("words", "correctness/ops/a.cpp", "EXPECT_TRUE" "(true);\n", 1),
    ("words", "correctness/ops/a.cpp", "sleep" "_for(1s);\n", 1),
    ("words", "lib/ops/a.cpp", 'fail("not ' 'implemented");\n', 1),
    ("cmake", "lib/behavior/CMakeLists.txt", "fp8lab_module(behavior SOURCES a.cpp MODULES core ops)\n", 1),
    ("cmake", "lib/attic/CMakeLists.txt", "# modules\nfp8lab_module(attic SOURCES a.cpp)\n", 2),
]
GOOD_TEXTS = [
    ("lib/ops/a.cpp", "// exit(1) would print to std::cout\n/* getenv */ const char* a = \"printf(\";\n"),
    ("lib/ops/a.cpp", "void f() { std::snprintf(buffer, 4, format); scope.exit(); }\n"),
    ("lib/ops/a.cpp", "constexpr int kMillion = 1'000'000;\n"),
    ("lib/comm/mpi/a.cpp", "#if MPI_VERSION < 3\n#error old\n#endif\n"),
    ("lib/harness/results/a.cpp", 'auto a = std::getenv("A"); void f() { std::cout << 1; }\n'),
    ("lib/core/float_bits.h", HEADER + "#if defined(__CUDACC__)\n#define F8 __host__ __device__\n#endif\n"),
    ("lib/ops/a.h", "// Comments may come first.\n#pragma once\n"),
    ("correctness/ops/a.cpp", 'if (alone) GTEST_SKIP() << "two ranks are needed";\n'),
    ("lib/ops/CMakeLists.txt", "fp8lab_module(ops\n  SOURCES a.cpp\n  MODULES comm core\n  LIBRARIES m)\n"),
]


class CheckLayers(unittest.TestCase):
    def expect_one(self, files, rule, path, line):
        found = findings(files)
        self.assertEqual([(rule, path, line, "error")],
                         [(one.rule.name, one.path, one.line, one.severity) for one in found])

    def test_every_rule_has_a_case(self):
        rules = {value.name for value in vars(check_layers).values() if isinstance(value, check_layers.Rule)}
        self.assertEqual(rules, {case[0] for case in BAD_INCLUDES + BAD_TEXTS} | {"folder"})

    def test_bad_includes(self):
        for rule, path, header in BAD_INCLUDES:
            with self.subTest(path=path, header=header):
                self.expect_one(included(path, header), rule, path, 2 if path.endswith("h") else 1)

    def test_good_includes(self):
        for path, header in GOOD_INCLUDES:
            with self.subTest(path=path, header=header):
                self.assertEqual([], findings(included(path, header)))

    def test_bad_texts(self):
        for rule, path, text, line in BAD_TEXTS:
            with self.subTest(path=path, text=text):
                self.expect_one({path: text}, rule, path, line)

    def test_good_texts(self):
        for path, text in GOOD_TEXTS:
            with self.subTest(path=path, text=text):
                self.assertEqual([], findings({path: text}))

    def test_heavy_header_in_a_header_of_one_folder(self):
        header = {"lib/harness/cli/parts.h": HEADER + "#include <nlohmann/json.hpp>\n"}
        user = {"lib/harness/cli/a.cpp": '#include "harness/cli/parts.h"\n'}
        self.assertEqual([], findings({**header, **user}))
        for other in ("lib/harness/cli/b.h", "scenarios/main.cpp"):
            with self.subTest(other=other):
                text = (HEADER if other.endswith("h") else "") + '#include "harness/cli/parts.h"\n'
                self.expect_one({**header, **user, other: text}, "external", "lib/harness/cli/parts.h", 2)
        self.expect_one(header, "external", "lib/harness/cli/parts.h", 2)

    def test_include_in_a_comment_is_none(self):
        self.assertEqual([], findings({"lib/core/a.cpp": '/*\n#include "ops/ops.h"\n*/\n//\n'}))

    def test_long_file_warns_first(self):
        found = findings({"lib/ops/a.cpp": "\n" * (check_layers.LINES_WARN + 1)})
        self.assertEqual([("size", "warning")], [(one.rule.name, one.severity) for one in found])

    def test_folder_has_a_limit(self):
        files = {f"lib/ops/a{i}.cpp": "int a;\n" for i in range(check_layers.FILES_OF_A_FOLDER - 1)}  # and ops.h
        self.assertEqual([], findings(files))
        self.expect_one({**files, "lib/ops/last.cpp": "int a;\n"}, "folder", "lib/ops", 1)
        files = {f"scenarios/many/a{i}.yaml": "version: 1\n" for i in range(check_layers.FILES_OF_A_FOLDER)}
        self.assertEqual([], findings(files))
        self.expect_one({**files, "scenarios/many/last.yaml": "version: 1\n"}, "folder", "scenarios/many", 1)

    def test_cmake_must_reach_what_is_included(self):
        files = {
            "lib/core/CMakeLists.txt": "fp8lab_module(core SOURCES a.cpp)\n",
            "lib/behavior/CMakeLists.txt": "fp8lab_module(behavior SOURCES a.cpp MODULES core)\n",
            "lib/fixes/CMakeLists.txt": "fp8lab_module(fixes SOURCES a.cpp MODULES behavior)\n",
            "lib/fixes/a.cpp": '#include "core/check.h"\n',
        }
        self.assertEqual([], findings(files))
        files["lib/fixes/CMakeLists.txt"] = "fp8lab_module(fixes SOURCES a.cpp)\n"
        self.expect_one(files, "cmake", "lib/fixes/CMakeLists.txt", 1)

    def test_folders_that_are_built_are_not_read(self):
        self.assertEqual([], findings({"build/cpu/a.cpp": '#include "no/such.h"\n', "out/notes.md": "FIX" "ME\n"}))

    def test_report_names_place_rule_and_remedy(self):
        text = str(findings(included("lib/core/a.cpp", '"ops/ops.h"'))[0])
        self.assertIn("lib/core/a.cpp:1: error: lib/core includes lib/ops/ops.h [layers]", text)
        self.assertIn("rule:", text)
        self.assertIn("remedy:", text)


if __name__ == "__main__":
    unittest.main()
