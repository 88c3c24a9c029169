#include "harness/subjects/subjects.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "core/check.h"
#include "harness/cell/subject_keys.h"
#include "harness/results/json_codec.h"
#include "harness/results/json_reader.h"
#include "harness/results/verdict.h"
#include "harness/subjects/captured_process.h"
#include "harness/subjects/installation.h"
#include "harness/subjects/python_path.h"
#include "harness/subjects/watched/script_arm.h"
#include "harness/subjects/watched/script_python.h"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

/// The worker may import PyTorch to answer, which takes seconds, and minutes from a cold network disk.
constexpr double kAnswerSeconds = 120;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string default_folder() {
  if (const std::string data = variable("XDG_DATA_HOME"); !data.empty()) return data + "/fp8lab/subjects";
  return variable("HOME") + "/.local/share/fp8lab/subjects";
}

bool is_release(const std::string& subject, const std::string& version) {
  return subject != "double" && subject != "script" && !version.empty() && !is_folder(version);
}

std::string last_line(const std::string& text) {
  const std::size_t end = text.find_last_not_of(" \n");
  if (end == std::string::npos) return "";
  const std::size_t newline = text.find_last_of('\n', end);
  const std::size_t begin = newline == std::string::npos ? 0 : newline + 1;
  return text.substr(begin, end - begin + 1);
}

/// Runs the module fp8lab_subjects.worker. Python puts the working directory first in sys.path, as "", whose files
/// would then replace the worker's modules; option -P, which prevents it, is new in Python 3.11.
constexpr const char* kRunWorker =
    "import sys; sys.path[:] = [folder for folder in sys.path if folder]; import runpy; "
    "runpy.run_module('fp8lab_subjects.worker', run_name='__main__', alter_sys=True)";

/// The last line of what a failed worker wrote, which in Python names the error.
std::string failure(const Captured& run) {
  if (run.late) return fmt::format("it gave no answer in {:g} s", kAnswerSeconds);
  const std::string line = last_line(run.errors);
  return line.empty() ? fmt::format("it ended with status {}", run.status) : line;
}

}  // namespace

Subjects::Subjects(const std::string& package_folder)
    : package_folder_(worker_folder(package_folder)),
      folder_(variable("FP8LAB_SUBJECTS")),
      abilities_(package_folder_ + "/fp8lab_subjects/abilities.json") {
  if (folder_.empty()) folder_ = default_folder();
}

std::string Subjects::python_of(const std::string& subject, const std::string& version) const {
  if (subject == "script") return script_python(version, folder_).python;
  if (is_release(subject, version)) return fmt::format("{}/{}-{}/bin/python", folder_, subject, version);
  const std::string named = variable("FP8LAB_SUBJECT_PYTHON");
  return named.empty() ? "python3" : named;
}

/// `env` finds Python in PATH and sets its variables.
std::vector<std::string> Subjects::worker(const std::string& subject, const std::string& version) const {
  std::string path = package_folder_;
  if (subject == "script") {
    if (const std::string folder = script_python(version, folder_).folder; !folder.empty()) path = folder + ":" + path;
  } else if (is_folder(version))
    path = fs::absolute(version).string() + ":" + path;
  if (const std::string others = python_path(); !others.empty()) path += ":" + others;
  std::error_code ignored;  // without its path, the program is looked for in PATH
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  return {"/usr/bin/env",
          "FP8LAB_PROGRAM=" + (ignored ? "fp8lab" : program.string()),
          "PYTHONPATH=" + path,
          "PYTHONSAFEPATH=1",  // for the processes that a library starts
          python_of(subject, version),
          "-c",
          kRunWorker};
}

ArmCommand Subjects::command(const CellConfig& cell, Arm arm) const {
  if (is_script(cell)) {
    ArmCommand own;
    own.arguments = {kScriptCommand};
    return own;
  }
  std::vector<std::string> words = worker(cell.subject, version_of(cell, arm));
  return {words.front(), {words.begin() + 1, words.end()}};
}

/// What is missing before the worker can be asked, or "".
std::string Subjects::missing(const CellConfig& cell, Arm arm) const {
  const std::string& version = version_of(cell, arm);
  if (!fs::is_directory(fs::path(package_folder_) / "fp8lab_subjects"))
    return fmt::format(
        "'{}' does not hold the worker (fp8lab_subjects); name the checkout's folder lib/subjects in "
        "FP8LAB_WORKER",
        package_folder_);
  if (is_script(cell)) return why_no_script_python(version, folder_);
  std::error_code ignored;
  if (is_folder(version) && !fs::is_directory(version, ignored))
    return fmt::format("there is no folder {} for the {} arm; a folder in `versions` is relative to the scenario's",
                       fs::absolute(version).lexically_normal().string(), name(arm));
  if (!is_release(cell.subject, version)) return "";
  const std::string python = python_of(cell.subject, version);
  if (const std::string why = unfinished(fs::path(folder_) / fmt::format("{}-{}", cell.subject, version)); !why.empty())
    return fmt::format("{} {} is not installed: {}", cell.subject, version, why);
  if (!fs::exists(python, ignored))
    return fmt::format("{} {} is not installed: there is no {}; run `fp8lab subjects --install {}=={}`", cell.subject,
                       version, python, cell.subject, version);
  return "";
}

/// Why the library cannot be imported with the GPUs, or has too few of them, or "". Asked once for each library.
std::string Subjects::without_gpus(const CellConfig& cell, Arm arm) {
  if (cell.device != "cuda") return "";
  std::vector<std::string> words = worker(cell.subject, version_of(cell, arm));
  const std::string library = is_script(cell) ? "torch" : cell.subject;
  words.insert(words.end(), {"--machine", library});
  const auto [machine, is_new] = machines_.try_emplace(fmt::format("{}", fmt::join(words, " ")));
  Machine& found = machine->second;
  if (is_new) {
    const Captured run = captured(words, "", kAnswerSeconds);
    try {
      if (run.status != 0) fail(failure(run));
      const JsonDocument document(last_line(run.output));
      found.reason = one_line(document.root().text_or_empty("skip"));
      if (found.reason.empty()) found.gpus = document.root().at("gpus").integer(0, kMostRanks);
    } catch (const Error& error) {
      found.reason = one_line(fmt::format("{} cannot be imported: {}", library, error.what()));
    }
  }
  if (found.reason.empty() && found.gpus < cell.ranks)
    return fmt::format("ranks: {} need one GPU each, PyTorch sees {}", cell.ranks, found.gpus);
  return found.reason;
}

/// Why the Python of a script's arm has no PyTorch, or "".
std::string Subjects::without_pytorch(const CellConfig& cell, Arm arm) {
  std::vector<std::string> words = worker(cell.subject, version_of(cell, arm));
  words.insert(words.end(), {"--describe", "torch"});
  const auto [answer, is_new] = answers_.try_emplace(fmt::format("{}", fmt::join(words, " ")));
  if (!is_new) return answer->second;
  const Captured run = captured(words, "", kAnswerSeconds);
  try {
    if (run.status != 0) fail(failure(run));
    const JsonDocument document(last_line(run.output));
    if (!document.root().at("available").flag()) answer->second = one_line(document.root().text_or_empty("reason"));
  } catch (const Error& error) {
    answer->second = one_line(fmt::format("the script's Python cannot be asked: {}", error.what()));
  }
  return answer->second;
}

/// The worker's reason why it cannot run the arm, or "".
std::string Subjects::asked(const CellConfig& cell, Arm arm) {
  if (is_script(cell)) return without_pytorch(cell, arm);
  std::vector<std::string> words = worker(cell.subject, version_of(cell, arm));
  words.emplace_back("--check");
  const std::string library = fmt::format("{}\n{}", cell.subject, fmt::join(words, " "));
  if (const auto found = absent_.find(library); found != absent_.end()) return found->second;
  CellConfig nameless = cell;
  nameless.scenario.clear();
  nameless.id.clear();
  nameless.axes.clear();
  const std::string request = fmt::format("{}\n{}", name(arm), cell_to_json(nameless));
  const auto [answer, is_new] = answers_.try_emplace(fmt::format("{}\n{}", fmt::join(words, " "), request), "");
  if (!is_new) return answer->second;
  const Captured run = captured(words, request, kAnswerSeconds);
  try {
    if (run.status != 0) fail(failure(run));
    const JsonDocument document(run.output);
    answer->second = one_line(document.root().text_or_empty("skip"));
    if (const auto every_cell = document.root().find("every_cell"); every_cell && every_cell->flag())
      absent_[library] = answer->second;
  } catch (const Error& error) {
    answer->second = one_line(fmt::format("the worker of {} cannot be asked: {}", cell.subject, error.what()));
  }
  return answer->second;
}

void Subjects::skip_unable(std::vector<PlannedCell>& cells, const Vocabulary& vocabulary) const {
  for (PlannedCell& cell : cells) {
    if (!is_library(cell.config)) continue;
    for (const Arm arm : arms_of(cell, vocabulary)) {
      if (!cell.skip_reason.empty()) break;
      cell.skip_reason =
          vocabulary.computes_values && !vocabulary.computes_values(cell.config.device)
              ? fmt::format("{} computes in every cell; only this program's own runtime runs on device {}",
                            cell.config.subject, cell.config.device)
              : abilities_.why_unable(cell.config, arm);
      cell.skipped_here = !cell.skip_reason.empty();
    }
  }
}

void Subjects::skip_missing(std::vector<PlannedCell>& cells, const Vocabulary& vocabulary) const {
  skip_unable(cells, vocabulary);
  for (PlannedCell& cell : cells) {
    if (!is_library(cell.config)) continue;
    for (const Arm arm : arms_of(cell, vocabulary)) {
      if (!cell.skip_reason.empty()) break;
      cell.skip_reason = missing(cell.config, arm);
      cell.skipped_here = !cell.skip_reason.empty();
    }
  }
}

void Subjects::skip_impossible(std::vector<PlannedCell>& cells, const Vocabulary& vocabulary) {
  skip_missing(cells, vocabulary);
  for (PlannedCell& cell : cells) {
    if (!is_library(cell.config)) continue;
    for (const Arm arm : arms_of(cell, vocabulary)) {
      if (!cell.skip_reason.empty()) break;
      cell.skip_reason = asked(cell.config, arm);
      if (!cell.skip_reason.empty()) break;
      cell.skip_reason = without_gpus(cell.config, arm);
      cell.skipped_here = !cell.skip_reason.empty();
    }
  }
}

SubjectState Subjects::state_of(const std::string& subject, const std::string& version) const {
  SubjectState out;
  out.subject = subject;
  out.python = python_of(subject, version);
  CellConfig cell;
  cell.subject = subject;
  cell.versions.after = version;
  out.reason = missing(cell, Arm::kAfter);
  if (!out.reason.empty()) return out;
  std::vector<std::string> words = worker(subject, version);
  words.insert(words.end(), {"--describe", subject});
  const Captured run = captured(words, "", kAnswerSeconds);
  try {
    if (run.status != 0) fail(failure(run));
    const JsonDocument document(run.output);
    const JsonReader json = document.root();
    out.available = json.at("available").flag();
    out.reason = json.text_or_empty("reason");
    out.version = json.text_or_empty("version");
    if (const auto libraries = json.find("libraries"))
      libraries->each_member(
          [&](const std::string& name, const JsonReader& text) { out.libraries.emplace_back(name, text.text()); });
  } catch (const Error& error) {
    out.available = false;
    out.reason = one_line(error.what());
  }
  return out;
}

std::vector<SubjectState> Subjects::states() const {
  std::vector<SubjectState> out;
  for (const SubjectRow& row : kSubjects) {
    const std::string subject(row.name);
    if (subject == CellConfig{}.subject || subject == "script") continue;  // neither is a library
    out.push_back(state_of(subject, ""));
    std::vector<std::string> releases;
    std::error_code ignored;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_, ignored))
      if (const std::string found = entry.path().filename(); found.starts_with(subject + "-"))
        releases.push_back(found.substr(subject.size() + 1));
    std::sort(releases.begin(), releases.end());
    for (const std::string& release : releases) out.push_back(state_of(subject, release));
  }
  return out;
}

}  // namespace fp8lab
