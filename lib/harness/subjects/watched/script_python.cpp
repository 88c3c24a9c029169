#include "harness/subjects/watched/script_python.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "harness/cell/subject_keys.h"
#include "harness/subjects/installation.h"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

/// The folder of the virtual environment of "torch==2.14.0"; empty for other versions.
fs::path environment_of(const std::string& version, const std::string& environments) {
  const auto [library, release] = pinned_release(version);
  if (is_folder(version) || library.empty()) return {};
  return fs::path(environments) / fmt::format("{}-{}", library, release);
}

}  // namespace

ScriptPython script_python(const std::string& version, const std::string& environments) {
  if (const fs::path environment = environment_of(version, environments); !environment.empty())
    return {.python = fs::absolute(environment / "bin/python").string(), .folder = {}};
  std::error_code ignored;
  if (is_folder(version) && fs::exists(fs::path(version) / "bin/python", ignored))
    return {.python = fs::absolute(fs::path(version) / "bin/python").lexically_normal().string(), .folder = {}};
  const char* named = std::getenv("FP8LAB_SUBJECT_PYTHON");
  return {.python = named && *named ? named : "python3",
          .folder = is_folder(version) ? fs::absolute(version).lexically_normal().string() : ""};
}

std::string why_no_script_python(const std::string& version, const std::string& environments) {
  std::error_code ignored;
  if (is_folder(version))
    return fs::is_directory(version, ignored)
               ? ""
               : fmt::format("there is no folder {}; a folder in `versions` is relative to the scenario's",
                             fs::absolute(version).lexically_normal().string());
  const fs::path environment = environment_of(version, environments);
  if (environment.empty()) return "";
  if (const std::string why = unfinished(environment); !why.empty())
    return fmt::format("{} is not installed: {}", version, why);
  if (fs::exists(environment / "bin/python", ignored)) return "";
  return fmt::format("{0} is not installed: there is no {1}; run `fp8lab subjects --install {0}`", version,
                     (environment / "bin/python").string());
}

}  // namespace fp8lab
