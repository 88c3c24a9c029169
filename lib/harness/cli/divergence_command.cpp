#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "harness/cell/escape.h"
#include "harness/cell/spelling.h"
#include "harness/cell/subject_keys.h"
#include "harness/cli/program.h"
#include "harness/cli/selection.h"
#include "harness/run/file_lock.h"
#include "harness/run/runner.h"
#include "harness/run/signal_watch.h"
#include "harness/subjects/subjects.h"
#include "harness/values/divergence.h"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kNone = 0, kDiverges = 1;
constexpr const char* kRuns[] = {"run-1", "run-2"};

struct Found {
  std::string of;  ///< "cell leak/device=cpu: before and after"
  Divergence divergence;
  bool has_noise = false;
  double tolerance = 0;
  std::string files;  ///< the folder of the recordings that were made; "" if none were
};

Found of_folders(const DivergenceRequest& request) {
  const FolderPair compared{request.inputs[0], request.inputs[1]};
  check(request.noise.size() <= 2, "divergence: --noise names at most two folders: a second run of A, and one of B");
  std::vector<FolderPair> repeats;
  for (std::size_t i = 0; i < request.noise.size(); ++i) repeats.push_back({request.inputs[i], request.noise[i]});
  return {.of = fmt::format("{} and {}", request.inputs[0], request.inputs[1]),
          .divergence = compare_folders(compared, repeats, request.tolerance),
          .has_noise = !repeats.empty(),
          .tolerance = request.tolerance,
          .files = ""};
}

/// Sets a variable of the environment for the arms that are started meanwhile.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const std::string& value) : name_(name) { ::setenv(name, value.c_str(), 1); }
  ~ScopedVariable() { ::unsetenv(name_); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* name_;
};

std::vector<Arm> arms_of(const DivergenceRequest& request) {
  std::vector<Arm> out;
  for (const std::string& text : request.arms)
    for (const Arm arm : kArms)
      if (name(arm) == text) out.push_back(arm);
  check(out.size() == 2 && out[0] != out[1], "divergence: --arms names two of before, after, bf16: before,after");
  return out;
}

/// Runs the arms of a cell once, which leave their tensors in `folder`. Returns the signal that stopped it, or 0.
int record_cell(const PlannedCell& cell, const std::vector<Arm>& arms, const fs::path& folder,
                const DivergenceRequest& request, const Program& program) {
  for (const Arm arm : arms) clear_recording(folder / name(arm));
  const ScopedVariable values(kValuesVariable, fs::absolute(folder).string());
  const ScopedVariable steps(kValuesStepsVariable, request.steps);
  const Vocabulary& vocabulary = program.vocabulary();
  Subjects subjects(program.worker_directory);
  std::vector<PlannedCell> cells{cell};
  subjects.skip_impossible(cells, vocabulary);
  check(cells.front().skip_reason.empty(),
        fmt::format("divergence: cell {} is skipped: {}", cell.config.id, cells.front().skip_reason));
  RunnerOptions options;
  options.timeout_s = request.timeout_s;
  options.predict = program.predict;
  options.worker_command = [&](const CellConfig& config, Arm arm) { return subjects.command(config, arm); };
  CellRecord record;
  RunnerEvents events;
  events.finished = [&](CellRecord&& finished) { record = std::move(finished); };
  if (const int stopped_by = run_cells(cells, vocabulary, options, events, SignalWatch::until_exit()))
    return stopped_by;
  for (const Arm arm : arms) {
    const auto found = record.arms.find(arm);
    check(found != record.arms.end(), fmt::format("divergence: cell {}: {}", cell.config.id, record.reason));
    check(found->second.status == "ok", fmt::format("divergence: the {} arm of cell {} ended with {}: {}", name(arm),
                                                    cell.config.id, found->second.status, found->second.reason));
  }
  return 0;
}

/// Runs both arms of the cell twice. `stopped_by`: as record_cell() returns it.
Found of_cell(const DivergenceRequest& request, const Program& program, int& stopped_by) {
  const std::vector<Arm> arms = arms_of(request);
  PlannedCell cell = only_cell(request.inputs[0], request.filters, program, "divergence");
  check(cell.skip_reason.empty() || cell.skipped_here,
        fmt::format("divergence: cell {} is skipped: {}", cell.config.id, cell.skip_reason));
  cell.skip_reason.clear();
  cell.claims.clear();
  cell.expect.clear();
  const bool reads_bf16 = arms[0] == Arm::kBf16 || arms[1] == Arm::kBf16;
  cell.config.measure = {reads_bf16 ? "parity" : "memory"};
  const std::vector<Arm> has = arms_of(cell, program.vocabulary());
  for (const Arm arm : arms)
    check(std::find(has.begin(), has.end(), arm) != has.end(),
          fmt::format("divergence: cell {} has no {} arm; --arms names two of those that it has", cell.config.id,
                      name(arm)));
  const fs::path out = request.out;
  std::error_code error;
  fs::create_directories(out, error);
  check(!error, fmt::format("divergence: {} cannot be made: {}", request.out, error.message()));
  const FileLock lock(out / "lock", FileLock::Create::kYes);
  check(lock.held(), fmt::format("divergence: {} {}; name another folder with -o", request.out,
                                 lock.held_by_another() ? "is used by another run" : "cannot be locked"));
  for (const char* run : kRuns) {
    stopped_by = record_cell(cell, arms, out / run, request, program);
    if (stopped_by != 0) return {};
  }
  const auto folder = [&](std::size_t run, std::size_t arm) { return out / kRuns[run] / name(arms[arm]); };
  const std::vector<FolderPair> repeats{{folder(0, 0), folder(1, 0)}, {folder(0, 1), folder(1, 1)}};
  return {.of = fmt::format("cell {}: {} and {}", cell.config.id, name(arms[0]), name(arms[1])),
          .divergence = compare_folders({folder(0, 0), folder(0, 1)}, repeats, request.tolerance),
          .has_noise = true,
          .tolerance = request.tolerance,
          .files = request.out};
}

std::string text_of(const Difference& one) {
  const std::string what = one.why.empty() ? fmt::format(" differs by {:.2g}", one.size) : ": " + one.why;
  return fmt::format("step {}, {}{}{}{}", one.step, one.place, what, one.types.empty() ? "" : ", " + one.types,
                     one.rank == 0 ? "" : fmt::format(", rank {}", one.rank));
}

/// What a difference must exceed, " by more than noise"; "": nothing.
std::string limit_of(const Found& found) {
  const std::string tolerance = found.tolerance > 0 ? fmt::format("{:g}", found.tolerance) : "";
  if (!found.has_noise) return tolerance.empty() ? "" : " by more than " + tolerance;
  return " by more than " + (tolerance.empty() ? "noise" : fmt::format("noise and {}", tolerance));
}

void print(std::FILE* out, const Found& found) {
  const Divergence& seen = found.divergence;
  const auto row = [&](const char* topic, const std::string& text) {
    std::fprintf(out, "%s\n", fmt::format("  {:<6} {}", topic, for_terminal(text)).c_str());
  };
  std::fprintf(out, "%s\n",
               for_terminal(fmt::format("{}: {} compared", found.of, counted(seen.tensors, "tensor"))).c_str());
  for (const std::string& one : seen.incomplete) row("warning", one);
  std::vector<std::string> noise;
  if (!seen.noisiest.empty())
    noise.push_back(fmt::format("two runs of an arm differ by up to {:.2g}: {}", seen.largest_noise, seen.noisiest));
  if (seen.unlike > 0)
    noise.push_back(fmt::format("{} of two runs of an arm cannot be compared, the first: {}",
                                counted(seen.unlike, "tensor"), seen.first_unlike));
  if (!found.has_noise) noise.push_back("not measured: --noise names second runs");
  if (noise.empty()) noise.push_back("none: two runs of an arm have equal bits");
  for (const std::string& one : noise) row("noise", one);
  if (seen.only_in_one > 0)
    row("only", fmt::format("{} of one run only, the first: {}", counted(seen.only_in_one, "tensor"), seen.first_only));
  if (!seen.first) {
    row("first", fmt::format("no tensor of both runs differs{}", limit_of(found)));
    return;
  }
  row("first", text_of(*seen.first));
  const bool has_factor = std::isfinite(seen.rise_factor);
  if (seen.rise)
    row("rise",
        text_of(*seen.rise) +
            (has_factor ? fmt::format(", {:.0f} times as much as any before it in this phase", seen.rise_factor) : ""));
  row("all", fmt::format("{} of {} differ{}", seen.different, counted(seen.tensors, "tensor"), limit_of(found)));
}

Json json_of(const Difference& one) {
  Json out{{"rank", one.rank}, {"step", one.step}, {"tensor", one.place}, {"noise", one.noise}};
  out["relative_difference"] = std::isfinite(one.size) ? Json(one.size) : Json("inf");
  if (!one.why.empty()) out["reason"] = one.why;
  if (!one.types.empty()) out["types"] = one.types;
  return out;
}

std::string json_of(const Found& found) {
  const Divergence& seen = found.divergence;
  Json out{{"schema", "fp8lab.divergence/1"},
           {"compared", found.of},
           {"tensors", seen.tensors},
           {"different", seen.different},
           {"only_in_one", seen.only_in_one},
           {"first_only_in_one", seen.first_only},
           {"first", nullptr},
           {"rise", nullptr},
           {"noise", nullptr},
           {"incomplete", seen.incomplete}};
  if (found.has_noise)
    out["noise"] = {{"largest", seen.largest_noise}, {"tensor", seen.noisiest}, {"unlike", seen.unlike}};
  if (seen.first) out["first"] = json_of(*seen.first);
  if (seen.rise) out["rise"] = json_of(*seen.rise);
  if (seen.rise) out["rise"]["factor"] = std::isfinite(seen.rise_factor) ? Json(seen.rise_factor) : Json("inf");
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

int divergence_command(const DivergenceRequest& request, const Program& program) {
  check(request.inputs.size() == 2 || request.noise.empty(),
        "divergence: --noise belongs to two folders of recordings; a scenario's arms run twice");
  int stopped_by = 0;
  const Found found = request.inputs.size() == 2 ? of_folders(request) : of_cell(request, program, stopped_by);
  if (stopped_by != 0) return 128 + stopped_by;
  if (request.json) std::fputs(json_of(found).c_str(), stdout);
  std::FILE* text = request.json ? stderr : stdout;
  print(text, found);
  if (!found.files.empty()) std::fprintf(text, "recordings: %s\n", for_terminal(found.files).c_str());
  const Divergence& seen = found.divergence;
  return seen.first || seen.only_in_one > 0 || !seen.incomplete.empty() ? kDiverges : kNone;
}

}  // namespace fp8lab
