#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/cell/cell.h"

// Keys `subject` and `versions`: what trains a cell, this program's own runtime or a library that a worker process
// drives.
namespace fp8lab {

inline constexpr std::array<std::string_view, 1> kOwnKeys{"training.deterministic"};
inline constexpr std::array<std::string_view, 2> kLibraryKeys{"versions.before", "versions.after"};
inline constexpr std::array<std::string_view, 5> kScriptKeys{"versions.before", "versions.after", "script", "launcher",
                                                             "variant"};

/// A value of key `subject`.
struct SubjectRow {
  std::string_view name;
  std::string_view title;
  std::span<const std::string_view> keys;  ///< those that it reads and other subjects do not
  bool installable;                        ///< it is a package that `fp8lab subjects --install` can install
  std::string_view cost = {};              ///< disk and time that installing it takes
};

inline constexpr std::string_view kPytorchCost = "about 3 GB of disk and ten minutes on two cores";

inline constexpr std::array kSubjects{
    SubjectRow{"own", "this program's runtime", kOwnKeys, false},
    SubjectRow{"torch", "PyTorch: FSDP2 in BF16", kLibraryKeys, true, kPytorchCost},
    SubjectRow{"torchao", "torchao: float8 linear layers over FSDP2", kLibraryKeys, true, kPytorchCost},
    SubjectRow{
        "transformer_engine", "NVIDIA Transformer Engine for PyTorch", kLibraryKeys, true,
        "PyTorch's 3 GB of disk or more and ten minutes, then its extension is compiled with nvcc: up to an hour"},
    SubjectRow{"script", "a PyTorch training program of yours, watched from outside", kScriptKeys, false},
    SubjectRow{"double", "replaces a library in tests: a version names its defect", kLibraryKeys, false},
};

std::vector<std::string> subject_names();

/// True if a worker process trains the cell with a library.
bool is_library(const CellConfig& cell);

/// True if the cell runs a training program of the user's.
bool is_script(const CellConfig& cell);

/// The arguments of the program of an arm, and the diff of the arm or "". Both arms of a control run the after arm's.
const std::vector<std::string>& arguments_of(const CellConfig& cell, Arm arm);
const std::string& patch_of(const CellConfig& cell, Arm arm);

/// True if the program of the cell gets the value of the key: an argument contains `{name}`.
bool names_key(const CellConfig& cell, std::string_view name);

/// True if torchrun starts the program.
bool uses_torchrun(const CellConfig& cell);

/// The version of the library that an arm runs; empty: the installed one. The bf16 arm runs the after arm's version.
const std::string& version_of(const CellConfig& cell, Arm arm);

/// True for a version that is a folder (a checkout, or a tree of packages), not a release or a defect's name.
bool is_folder(std::string_view version);

/// The library and the release of "torch==2.10.0"; without a library "" and the text.
struct PinnedRelease {
  std::string library, release;
};
PinnedRelease pinned_release(std::string_view text);

/// "transformer_engine 2.13.0 -> 2.14.1", or "torch" without versions.
std::string subject_text(const CellConfig& cell);

}  // namespace fp8lab
