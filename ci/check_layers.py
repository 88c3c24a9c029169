#!/usr/bin/env python3
"""Holds the tree to its architecture: the table of modules below and a few rules of hygiene.

Usage: check_layers.py [ROOT]. Prints every violation as `file:line: error: what`, with the rule and the remedy, and
exits 1 if there is one.
"""

import collections
import dataclasses
import functools
import pathlib
import re
import sys

# What each module stands on. A module may include itself, what its row names, and whatever those may include. The row with
# the longest matching path holds, so a folder or a file inside a module can have its own.
MODULES = {
    "lib/core": (),
    "lib/behavior": ("lib/core",),
    "lib/recipe": ("lib/behavior",),
    "lib/fixes": ("lib/behavior",),
    "lib/memory": ("lib/recipe",),
    "lib/tensor": ("lib/memory",),
    "lib/backend": ("lib/tensor",),
    "lib/backend/cpu": ("lib/backend",),
    "lib/backend/meta": ("lib/backend",),
    "lib/backend/cuda": ("lib/backend",),
    "lib/backend/cuda/device": ("lib/backend/cuda",),
    "lib/backend/cuda/attention": ("lib/backend/cuda/device",),
    "lib/backend/cuda/peer": ("lib/backend/cuda/device",),
    "lib/backend/cuda/quantize": ("lib/backend/cuda/device",),
    "lib/backend/cuda/elementwise": ("lib/backend/cuda/quantize",),
    "lib/backend/cuda/experts": ("lib/backend/cuda/device",),
    "lib/backend/cuda/gemm": ("lib/backend/cuda/quantize",),
    "lib/backend/cuda/norm": ("lib/backend/cuda/quantize",),
    "lib/backend/cuda/optim": ("lib/backend/cuda/quantize",),
    "lib/backend/cuda/cuda_device.cpp": ("lib/backend/cuda/gemm", "lib/backend/cuda/peer"),
    "lib/backend/devices.cpp": ("lib/backend/cpu", "lib/backend/meta", "lib/backend/cuda"),
    "lib/comm": ("lib/backend",),
    "lib/comm/in_process": ("lib/comm",),
    "lib/comm/processes": ("lib/comm",),
    "lib/comm/mpi": ("lib/comm/processes",),
    "lib/comm/sockets": ("lib/comm/processes",),
    "lib/comm/nccl": ("lib/comm", "lib/backend/cuda/peer"),
    "lib/comm/process_groups.cpp": ("lib/comm/in_process", "lib/comm/mpi", "lib/comm/nccl", "lib/comm/sockets"),
    "lib/ops": ("lib/comm",),
    "lib/autograd": ("lib/ops",),
    "lib/nn": ("lib/autograd",),
    "lib/fsdp": ("lib/nn",),
    "lib/optim": ("lib/fsdp",),
    "lib/harness/cell": ("lib/recipe",),
    "lib/harness/scenario": ("lib/harness/cell",),
    "lib/harness/predict": ("lib/harness/cell",),
    "lib/harness/eager": ("lib/harness/cell", "lib/memory"),
    "lib/harness/reference": ("lib/harness/cell",),
    "lib/harness/data": ("lib/harness/cell",),
    "lib/harness/train": ("lib/harness/data", "lib/optim"),
    "lib/harness/measure": ("lib/harness/predict", "lib/harness/reference", "lib/harness/train", "lib/fixes"),
    "lib/harness/results": ("lib/harness/scenario",),
    "lib/harness/values": ("lib/harness/measure", "lib/harness/scenario"),
    "lib/harness/run": ("lib/harness/measure", "lib/harness/results"),
    "lib/harness/subjects": ("lib/harness/run", "lib/harness/eager", "lib/harness/values"),
    "lib/harness/cli": ("lib/harness/subjects",),
    "scenarios": ("lib/harness/cli",),
    "bench": ("lib/harness/cli", "lib/backend/devices.cpp", "lib/comm/process_groups.cpp"),
    "correctness": ("correctness/support", "lib/backend/devices.cpp", "lib/comm/process_groups.cpp",
                    "lib/backend/cuda/attention", "lib/backend/cuda/gemm"),
    "correctness/support": ("lib/harness/cli", "correctness/reference"),
    # References share no code with what they judge.
    "correctness/reference": ("lib/recipe",),
}

# Modules that include only themselves and these, whatever those may include: predictions and the reference step
# are independent statements of what the runtime must do, so they share no code with it; and the content of a corpus is known before
# there is a runtime. The eager program of PyTorch shares only the allocator, whose rules are PyTorch's.
SEALED = {module: ("lib/core", "lib/harness/cell")
          for module in ("lib/harness/data", "lib/harness/predict", "lib/harness/reference")}
SEALED["lib/harness/eager"] = ("lib/core", "lib/harness/cell", "lib/memory")

# External headers by pattern, and the modules that may see them.
EVERYWHERE = ("lib", "scenarios", "bench", "correctness")
EXTERNALS = (
    (r"[a-z_0-9]+", EVERYWHERE),  # the C++ standard library
    (r"fmt/.*", EVERYWHERE),
    (r"benchmark/.*", ("bench",)),
    (r"(gtest|gmock)/.*", ("correctness",)),
    (r"(cuda|cublas|cudnn|curand|driver_types|vector_types|mma|nv).*\.h|(cuda|cub|cooperative_groups)/.*"
     r"|cooperative_groups\.h", ("lib/backend/cuda", "lib/comm/nccl", "correctness/cuda/conversion_sweep.cu")),
    (r"nccl.*\.h", ("lib/comm/nccl",)),
    (r"mpi\.h", ("lib/comm/mpi",)),
    (r".*intrin\.h", ("lib/backend/cpu",)),
    (r"sanitizer/.*", ("lib/core/heap_allocations_sanitized.cpp",)),
    (r"yaml-cpp/.*", ("lib/harness/scenario", "correctness/harness", "correctness/scenarios")),
    (r"(nlohmann|CLI)/.*", ("lib/harness/results", "lib/harness/cli", "scenarios/main.cpp", "correctness/harness",
                            "correctness/scenarios", "correctness/subjects")),
    # A file that is on the disk, and not only on its way there, takes open() and fsync().
    (r"(fcntl|unistd)\.h",
     ("lib/harness", "lib/comm/sockets", "lib/optim/durable_file.cpp", "scenarios", "bench", "correctness")),
    (r"(dlfcn|elf|link)\.h", ("lib/core/shared_library.cpp", "lib/harness", "lib/comm/sockets", "bench", "correctness")),
    (r"nvrtc\.h", ("lib/backend/cuda/attention/cudnn_library.cpp",)),
    (r"(sys|linux|gnu)/.*\.h|(poll|signal|spawn|pthread|sched|time|errno)\.h",
     ("lib/harness", "lib/comm/sockets", "scenarios", "bench", "correctness")),
    (r"re2/re2\.h", ("lib/harness/scenario/id_matcher.cpp",)),
    (r"toml\+\+/.*", ("lib/harness/scenario/toml_file.h",)),
    (r"valijson/.*", ("correctness/harness",)),
    (r"zlib\.h", ("lib/harness/results",)),
)
# Heavy or versioned headers that stay out of headers of ours, except headers that only sources of their own folder include.
SOURCES_ONLY = r"(fmt|nlohmann)/.*"

# What device code sees of lib/: headers whose functions it calls (only these headers may test whether nvcc reads them);
# its own folders; and what a launcher's arguments are made of.
DEVICE_SHARED = ("lib/core/float8.h", "lib/core/float_bits.h", "lib/core/counter_rng.h", "lib/core/elementary.h")
DEVICE_FOLDERS = ("lib/backend/cuda", "lib/comm/nccl", "correctness/cuda")
LAUNCHERS_SEE = ("lib/core", "lib/backend/kernels.h", "lib/tensor/view.h", "lib/recipe/recipe.h")

LINES_WARN, LINES_FAIL = 400, 600
FILES_OF_A_FOLDER = 30

HEADERS = {".h", ".cuh"}
DEVICE_FILES = {".cu", ".cuh"}
CXX_FILES = HEADERS | DEVICE_FILES | {".cpp"}
SIZED_FILES = CXX_FILES | {".py", ".cmake", ".txt"}
SKIPPED_FOLDERS = re.compile(r"\.(?!ci$|github$).*|build.*|out.*|__pycache__")
SKIPPED_FILES = {"LICENSE"}


@dataclasses.dataclass(frozen=True)
class Rule:
    name: str
    text: str
    remedy: str


LAYERS = Rule("layers", "a module includes only what the table of ci/check_layers.py lets it stand on",
              "move what is shared to a module further left, or take it as a parameter")
PATHS = Rule("include-path", "quoted includes name files of the project, from lib/ or from the module's own top folder",
             "write the path from there; external headers take <>")
EXTERNAL = Rule("external", "each external header is seen by the modules that its row in ci/check_layers.py names",
                "reach it through the interface of that module; a new dependency needs a row")
CMAKE = Rule("cmake", "MODULES in CMake mirrors the table of ci/check_layers.py and reaches every module included",
             "name in MODULES exactly the modules that the sources include, and no module to the right")
DEVICE = Rule("device", "device code lives in .cu and .cuh files, which hold nothing else and see of lib/ only their "
              f"own folder and {', '.join(LAUNCHERS_SEE)}", "keep kernels in .cu/.cuh and host code in .cpp/.h")
OPTIONAL = Rule("optional-dependency", "an optional dependency is chosen by source file, never by the preprocessor",
                "write x.cpp and no_x.cpp and let CMake choose")
PRAGMA = Rule("pragma-once", "every header starts with #pragma once", "add it as the first line")
HERMETIC = Rule("hermetic", "lib/ below harness never exits, prints or reads the environment",
                "throw through fail() or check(), return text, take a parameter")
SIZE = Rule("size", f"files stay near {LINES_WARN} lines, {LINES_FAIL} at most", "split the file by subject")
FOLDER = Rule("folder", f"a folder holds at most {FILES_OF_A_FOLDER} files", "make a folder of those that belong together")
WORDS = Rule("words", "the tree holds no unfinished work, no test that is off or proves nothing, no wait by the clock",
             "finish it, delete it, or wait for the event")

# Patterns are written so that they do not match themselves.
UNFINISHED = re.compile(r"\b(?:TO[D]O\b|FIX[M]E\b|X[X]X\b|HA[C]K\b|DIS[A]BLED_|GTEST_SK[I]P\(\)\s*;|sleep_f[o]r\b"
                        r"|(?:EXPECT|ASSERT)_TRUE\(tru[e]\)|(?i:st[u]b\b|place[h]older\b|not imple[m]ented\b))")
SIDE_EFFECT = re.compile(r"\b(secure_)?getenv\b|\bstd::(exit|quick_exit|_Exit|abort|terminate|cout|cerr|clog)\b"
                         r"|(?<![\w.>:])_?exit\s*\(|\b(v?f?printf|fputs|puts|putchar)\s*\(|\bfmt::print\b")
DEVICE_CODE = re.compile(r"\b__(global|device|shared|host)__\b|<<<")
OPTIONAL_SWITCH = re.compile(r"^[ \t]*#[ \t]*(?:(?:ifdef|ifndef)[ \t]+|(?:if|elif)\b.*\bdefined[ \t]*\(?[ \t]*)"
                             r"\w*(?:CUDA|NCCL|MPI).*|^[ \t]*#.*\b__has_include\b.*", re.M)

INCLUDE = re.compile(r"""^\s*#\s*include\s*(?:<([^>\n]+)>|"([^"\n]+)")""", re.M)
COMMENT_OR_LITERAL = re.compile(r"""//[^\n]*|/\*.*?\*/|R"([^\s(]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|"""
                                r"""(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'""", re.S)
CMAKE_MODULE = re.compile(r"\bfp8lab_module\(\s*(\w+)([^)]*)\)")
CMAKE_MODULES = re.compile(r"\bMODULES\b((?:\s+(?!SOURCES\b|LIBRARIES\b)\w+)*)")


@dataclasses.dataclass(frozen=True)
class Finding:
    rule: Rule
    path: str
    line: int
    what: str
    severity: str = "error"

    def __str__(self):
        return (f"{self.path}:{self.line}: {self.severity}: {self.what} [{self.rule.name}]\n"
                f"    rule:   {self.rule.text}\n    remedy: {self.rule.remedy}")


def within(path, folder):
    return path == folder or path.startswith(folder + "/")


def within_any(path, folders):
    return any(within(path, folder) for folder in folders)


def module_of(path):
    """The row of MODULES that holds for `path`, or None."""
    return max((module for module in MODULES if within(path, module)), key=len, default=None)


@functools.cache
def reach(module):
    """Every module that `module` may include."""
    return frozenset({module}).union(*(reach(below) for below in MODULES[module]))


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def without_comments(text, literals=False):
    """`text` with comments, and with `literals` also strings and characters, blanked out; lines keep their numbers."""

    def cover(match):
        token = match.group()
        return re.sub(r"[^\n]", " ", token) if literals or token.startswith(("//", "/*")) else token

    return COMMENT_OR_LITERAL.sub(cover, text)


class Tree:
    """The texts of the project's files by path from its root."""

    def __init__(self, root):
        self.texts = dict(self._read(pathlib.Path(root), pathlib.Path(root)))

    def _read(self, root, folder):
        for entry in sorted(folder.iterdir()):
            if entry.is_dir():
                if not SKIPPED_FOLDERS.fullmatch(entry.name):
                    yield from self._read(root, entry)
            elif entry.name not in SKIPPED_FILES:
                try:
                    yield entry.relative_to(root).as_posix(), entry.read_text(encoding="utf-8")
                except UnicodeDecodeError:
                    pass

    def resolve(self, path, include):
        """The file that a quoted include in `path` names, or None."""
        top = path.split("/")[0]
        roots = ("lib",) if top == "lib" else (top, "lib")
        return next((f"{root}/{include}" for root in roots if f"{root}/{include}" in self.texts), None)

    def private_header(self, path):
        """Whether only sources in the folder of the header `path` include it."""
        name = path.split("/", 1)[1]
        users = [user for user, text in self.sources() if f'"{name}"' in text]
        return bool(users) and all(user.endswith(".cpp") and pathlib.PurePath(user).parent == pathlib.PurePath(path).parent
                                   for user in users)

    def sources(self):
        for path, text in self.texts.items():
            if pathlib.PurePath(path).suffix in CXX_FILES:
                yield path, text


def check_includes(tree, path, text):
    module = module_of(path)
    if module is None:
        yield Finding(LAYERS, path, 1, "the file lies in no module of the table")
        return
    suffix = pathlib.PurePath(path).suffix
    code = without_comments(text)
    for match in INCLUDE.finditer(code):
        external, own = match.groups()
        line = line_of(code, match.start(1 if external else 2))
        if external:
            rows = [modules for pattern, modules in EXTERNALS if re.fullmatch(pattern, external)]
            if not rows:
                yield Finding(EXTERNAL, path, line, f"<{external}> is in no row of the table")
            elif not within_any(path, rows[0]):
                yield Finding(EXTERNAL, path, line, f"<{external}> belongs to {', '.join(rows[0])}, not to {module}")
            elif suffix in HEADERS and re.fullmatch(SOURCES_ONLY, external) and not tree.private_header(path):
                yield Finding(EXTERNAL, path, line, f"<{external}> is for .cpp files, not for headers of several folders")
            continue
        target = tree.resolve(path, own)
        if target is None:
            yield Finding(PATHS, path, line, f'"{own}" names no file of the project')
        elif module_of(target) not in reach(module):
            yield Finding(LAYERS, path, line, f"{module} includes {target}")
        elif module in SEALED and not within_any(target, (module, *SEALED[module])):
            yield Finding(LAYERS, path, line, f"{module} is sealed and includes {target}")
        elif suffix in DEVICE_FILES and not within_any(target, LAUNCHERS_SEE + DEVICE_FOLDERS):
            yield Finding(DEVICE, path, line, f"device code includes {target}")


def check_source(path, text):
    code = without_comments(text, literals=True)
    suffix = pathlib.PurePath(path).suffix
    device = DEVICE_CODE.search(code)
    makes_kernels = suffix == ".cu" and '.cuh"' in text  # kernels of a header's templates
    if suffix in DEVICE_FILES and not device and not makes_kernels:
        yield Finding(DEVICE, path, 1, "the file holds no device code")
    if suffix not in DEVICE_FILES and path not in DEVICE_SHARED:
        if device:
            yield Finding(DEVICE, path, line_of(code, device.start()), f"{device.group()} outside .cu and .cuh")
        for match in OPTIONAL_SWITCH.finditer(code):
            yield Finding(OPTIONAL, path, line_of(code, match.start()), match.group().strip())
    if suffix in HEADERS and not re.match(r"\s*#pragma once\b", code):
        yield Finding(PRAGMA, path, 1, "the header does not start with #pragma once")
    if within(path, "lib") and not within(path, "lib/harness"):
        for match in SIDE_EFFECT.finditer(code):
            yield Finding(HERMETIC, path, line_of(code, match.start()), match.group().rstrip("( \t"))


def check_text(path, text):
    for match in UNFINISHED.finditer(text):
        yield Finding(WORDS, path, line_of(text, match.start()), match.group())
    lines = len(text.splitlines())
    if pathlib.PurePath(path).suffix in SIZED_FILES and lines > LINES_WARN:
        severity = "error" if lines > LINES_FAIL else "warning"
        yield Finding(SIZE, path, lines, f"{lines} lines", severity)


def check_cmake(tree):
    """Every module's MODULES against the table, and every include against what MODULES reaches."""
    by_target = {module.removeprefix("lib/").replace("/", "_"): module for module in MODULES if within(module, "lib")}
    links, declared = {}, {}
    for path, text in tree.texts.items():
        if not (within(path, "lib") and path.endswith("CMakeLists.txt")):
            continue
        code = re.sub(r"#[^\n]*", "", text)
        for call in CMAKE_MODULE.finditer(code):
            target, arguments = call.groups()
            line = line_of(code, call.start(1))
            if target not in by_target:
                yield Finding(CMAKE, path, line, f"{target} is in no row of the table")
                continue
            modules = CMAKE_MODULES.search(arguments)
            links[target] = modules.group(1).split() if modules else []
            declared[target] = (path, line)
            for linked in links[target]:
                if by_target.get(linked) not in reach(by_target[target]):
                    yield Finding(CMAKE, path, line, f"{target} links {linked}, which it may not include")

    def target_of(path):
        return max((target for target in links if within(path, by_target[target])), key=len, default=None)

    def reached(target, seen):
        if target in links and target not in seen:
            seen.add(target)
            for linked in links[target]:
                reached(linked, seen)
        return seen

    unreached = {}
    for path, text in tree.sources():
        target = target_of(path)
        if target is None or not within(path, "lib"):
            continue
        for _, own in INCLUDE.findall(without_comments(text)):
            included = target_of(tree.resolve(path, own) or "")
            if included and included not in reached(target, set()):
                unreached.setdefault((target, included), f"{path} includes {own}")
    for (target, included), why in unreached.items():
        yield Finding(CMAKE, *declared[target], f"{target} does not link {included}, though {why}")


def check_folders(tree):
    folders = collections.Counter(str(pathlib.PurePosixPath(path).parent) for path in tree.texts)
    for folder, files in folders.items():
        if files > FILES_OF_A_FOLDER:
            yield Finding(FOLDER, folder, 1, f"{files} files")


def check(root):
    """All findings of the tree under `root`."""
    tree = Tree(root)
    findings = [*check_cmake(tree), *check_folders(tree)]
    for path, text in tree.texts.items():
        findings += check_text(path, text)
    for path, text in tree.sources():
        findings += check_includes(tree, path, text)
        findings += check_source(path, text)
    return sorted(findings, key=lambda finding: (finding.path, finding.line))


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent
    findings = check(root)
    for finding in findings:
        print(finding)
    errors = sum(finding.severity == "error" for finding in findings)
    print(f"check_layers: {errors} errors, {len(findings) - errors} warnings")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
