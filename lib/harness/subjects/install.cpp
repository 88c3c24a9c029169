#include "harness/subjects/install.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "core/check.h"
#include "harness/cell/spelling.h"
#include "harness/cell/subject_keys.h"
#include "harness/run/arm_process.h"
#include "harness/subjects/captured_process.h"
#include "harness/subjects/installation.h"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

/// Transformer Engine's extension for PyTorch is compiled when it is installed.
constexpr double kInstallSeconds = 3600;

PinnedRelease parsed(const std::string& text) {
  PinnedRelease out = pinned_release(text);
  if (out.library.empty()) std::swap(out.library, out.release);  // without a release
  std::vector<std::string> installable;
  for (const SubjectRow& row : kSubjects)
    if (row.installable) installable.emplace_back(row.name);
  if (std::find(installable.begin(), installable.end(), out.library) == installable.end())
    fail(fmt::format("subjects: --install: `{}` is no library that can be installed; name one of {}",
                     quotable(out.library), listed(installable)));
  const bool sound = out.release.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyz.+") == std::string::npos;
  if (out.release.empty() || !sound || out.release.front() == '.')
    fail(fmt::format("subjects: --install: `{}` names no release; write {}==2.16.1", quotable(text), out.library));
  return out;
}

/// What pip is given, call after call. Transformer Engine's extra brings its layers for PyTorch, whose extension is
/// compiled against the PyTorch that is installed already.
std::vector<std::vector<std::string>> calls_of_pip(const PinnedRelease& release) {
  const std::string pinned = release.library + "==" + release.release;
  if (release.library == "torch") return {{pinned}};
  if (release.library == "torchao") return {{"torch", pinned}};
  return {{"torch", "setuptools", "wheel", "packaging", "ninja", "pybind11"},
          {"--no-build-isolation", "transformer_engine[pytorch]==" + release.release}};
}

void run_step(const std::vector<std::string>& words, const Installation& installation, const std::string& remedy) {
  const Captured run = captured(words, "", kInstallSeconds, [&] { installation.discard(); });
  if (run.status == 0) return;
  installation.discard();
  const std::size_t end = run.errors.find_last_not_of(" \n");
  std::string reason = run.late ? fmt::format("it took longer than {:g} s", kInstallSeconds) : "it left no message";
  if (!run.late && end != std::string::npos) {
    const std::size_t newline = run.errors.find_last_of('\n', end);
    const std::size_t begin = newline == std::string::npos ? 0 : newline + 1;
    reason = one_line(run.errors.substr(begin, end - begin + 1));
  }
  fail(fmt::format("subjects: --install: `{}` failed: {}; {}", fmt::join(words, " "), reason, remedy));
}

}  // namespace

std::string install_release(const std::string& text, const std::string& folder) {
  const PinnedRelease release = parsed(text);
  const fs::path environment = fs::path(folder) / fmt::format("{}-{}", release.library, release.release);
  const std::string python = (environment / "bin/python").string();
  fs::create_directories(folder);
  const Installation installation(environment);
  // Option -I: no file of the working directory replaces a module of Python, venv or pip.
  run_step({"python3", "-I", "-m", "venv", environment.string()}, installation,
           "install Python's venv module (Debian: python3-venv)");
  for (const std::vector<std::string>& wanted : calls_of_pip(release)) {
    std::vector<std::string> words{python, "-I", "-m", "pip", "install"};
    words.insert(words.end(), wanted.begin(), wanted.end());
    run_step(words, installation,
             fmt::format("if pip reaches no registry, make the environment with `python3 -m venv {}`, and install "
                         "wheels from a folder with `{} -m pip install --no-index --find-links WHEELS {}`",
                         environment.string(), python, fmt::join(wanted, " ")));
  }
  installation.finish();
  return fmt::format("{} {} is in {}; scenarios name it in `versions`", release.library, release.release,
                     environment.string());
}

}  // namespace fp8lab
