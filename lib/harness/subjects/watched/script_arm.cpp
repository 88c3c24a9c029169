#include "harness/subjects/watched/script_arm.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <filesystem>
#include <optional>

#include "core/check.h"
#include "harness/cell/subject_keys.h"
#include "harness/run/child_process.h"
#include "harness/subjects/watched/patched_copy.h"
#include "harness/subjects/watched/script_python.h"
#include "harness/subjects/watched/watch_session.h"
#include "harness/values/recording.h"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

/// The runner sends SIGKILL two seconds after SIGTERM, and the figures must be read before.
constexpr std::chrono::milliseconds kScriptGrace{1000};

std::vector<std::string> words_of(const CellConfig& cell, Arm arm, const std::string& python, const fs::path& script) {
  std::vector<std::string> words{python};
  if (uses_torchrun(cell))
    for (const std::string& word :
         {std::string("-m"), std::string("torch.distributed.run"), std::string("--standalone"),
          std::string("--nproc-per-node"), std::to_string(cell.ranks)})
      words.push_back(word);
  words.push_back(script.string());
  const std::vector<std::string>& arguments = arguments_of(cell, arm);
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

/// "; rank 0: train.py:31" for each rank whose place is in its file.
std::string places(const Watched& watched) {
  std::string out;
  for (const WatchedProcess& process : watched.processes)
    if (!process.where.empty()) out += fmt::format("; rank {}: {}", process.rank, process.where);
  return out;
}

bool lacked_memory(const Watched& watched) {
  for (const WatchedProcess& process : watched.processes)
    if (process.error.find("OutOfMemoryError") != std::string::npos) return true;
  return false;
}

void add_notes(const CellConfig& cell, const Watched& watched, ArmResult& result) {
  const WatchedProcess& worst = *watched.worst;
  result.notes.push_back(
      fmt::format("PyTorch {}, Python {}, {}, {} steps", worst.torch, worst.python, worst.device, worst.steps));
  if (worst.world != cell.ranks)
    result.notes.push_back(fmt::format("the program ran on {} ranks, the cell names {}", worst.world, cell.ranks));
  if (worst.device != cell.device)
    result.notes.push_back(fmt::format("the program trained on {}, the cell names {}", worst.device, cell.device));
  for (const WatchFinding& finding : watched.findings)
    result.notes.push_back("found: " + finding.text + ranks_text(finding, watched));
}

}  // namespace

ArmResult run_script_arm(const CellConfig& cell, Arm arm, const Subjects& subjects) {
  const ScriptPython python = script_python(version_of(cell, arm), subjects.folder());
  fs::path script = fs::absolute(cell.script.path).lexically_normal();
  std::string checkout = python.folder;
  std::optional<PatchedCopy> copy;
  if (const std::string& patch = patch_of(cell, arm); !patch.empty()) {
    const fs::path folder = checkout.empty() ? script.parent_path() : fs::path(checkout);
    copy.emplace(folder, patch);
    script = moved(script, folder, copy->path());
    if (!checkout.empty()) checkout = copy->path().string();
  }
  WatchSession session{.program = {.words = words_of(cell, arm, python.python, script),
                                   .environment = {{"PYTHONUNBUFFERED", "1"}},
                                   .folder = script.parent_path().string(),
                                   .timeout_s = {},
                                   .grace = kScriptGrace,
                                   .kills_after_stop = true,
                                   .reads_input = false},
                       .instruments = subjects.package_folder(),
                       .folders = {},
                       .measure = cell.measure,
                       .steps = {}};
  if (const std::optional<fs::path> recording = recording_folder(arm)) {
    session.measure = {"values"};
    session.program.environment[kValuesVariable] = recording->string();
  }
  if (!checkout.empty()) session.folders.push_back(checkout);
  if (cell.device == "cpu") session.program.environment["CUDA_VISIBLE_DEVICES"] = "";
  ::fcntl(kExchangeFd, F_SETFD, FD_CLOEXEC);  // the program must not write into this arm's result
  const Watched watched = watch(session);
  ArmResult result;
  if (watched.worst != nullptr) {
    result = figures_of(watched);
    add_notes(cell, watched, result);
  }
  if (watched.end.interrupted_by != 0) {
    result.status = "timeout";
    result.reason = fmt::format("took longer than {:g} s{}", cell.timeout_s, places(watched));
  } else if (!watched.failure.empty()) {
    result.status = lacked_memory(watched) ? "out_of_memory" : "crashed";
    result.reason = "the script ended with " + watched.failure;
    if (watched.end.signal != 0) result.signal = words_of(watched.end, session.program);
  } else if (watched.worst == nullptr) {
    fail(why_nothing(watched));
  } else if (!watched.missing.empty()) {
    fail(watched.missing);
  }
  return result;
}

}  // namespace fp8lab
