#include <fmt/format.h>
#include <fmt/ranges.h>

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
#include "harness/cli/one_cell.h"
#include "harness/cli/one_cell_results.h"
#include "harness/cli/program.h"
#include "harness/cli/selection.h"
#include "harness/results/json_codec.h"
#include "harness/run/file_lock.h"
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
  CellRecord record;  ///< the cell's second run; of two folders, a cell of their names
};

CellRecord record_of_folders(const DivergenceRequest& request) {
  CellRecord out;
  out.config.scenario = out.config.id = "divergence";
  out.config.subject = "script";
  out.title = fmt::format("{} and {} have equal tensors", request.inputs[0], request.inputs[1]);
  out.file = request.inputs[0];
  PlannedCell cell;
  cell.config = out.config;
  out.hash = hash_of(cell);
  return out;
}

Found of_folders(const DivergenceRequest& request) {
  const FolderPair compared{request.inputs[0], request.inputs[1]};
  check(request.noise.size() <= 2, "divergence: --noise names at most two folders: a second run of A, and one of B");
  std::vector<FolderPair> repeats;
  for (std::size_t i = 0; i < request.noise.size(); ++i) repeats.push_back({request.inputs[i], request.noise[i]});
  return {.of = fmt::format("{} and {}", request.inputs[0], request.inputs[1]),
          .divergence = compare_folders(compared, repeats, request.tolerance),
          .has_noise = !repeats.empty(),
          .tolerance = request.tolerance,
          .files = "",
          .record = record_of_folders(request)};
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
                const DivergenceRequest& request, const Program& program, CellRecord& record) {
  for (const Arm arm : arms) clear_recording(folder / name(arm));
  const ScopedVariable values(kValuesVariable, fs::absolute(folder).string());
  const ScopedVariable steps(kValuesStepsVariable, request.steps);
  OneRun run = run_one_cell(cell, program, request.timeout_s);
  if (run.stopped_by != 0) return run.stopped_by;
  record = std::move(run.record);
  check(record.verdict != Verdict::kSkipped,
        fmt::format("divergence: cell {} is skipped: {}", cell.config.id, record.reason));
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
  CellRecord record;
  for (const char* run : kRuns) {
    stopped_by = record_cell(cell, arms, out / run, request, program, record);
    if (stopped_by != 0) return {};
  }
  const auto folder = [&](std::size_t run, std::size_t arm) { return out / kRuns[run] / name(arms[arm]); };
  const std::vector<FolderPair> repeats{{folder(0, 0), folder(1, 0)}, {folder(0, 1), folder(1, 1)}};
  return {.of = fmt::format("cell {}: {} and {}", cell.config.id, name(arms[0]), name(arms[1])),
          .divergence = compare_folders({folder(0, 0), folder(0, 1)}, repeats, request.tolerance),
          .has_noise = true,
          .tolerance = request.tolerance,
          .files = request.out,
          .record = std::move(record)};
}

std::string text_of(const Difference& one) {
  const std::string what =
      one.why.empty() ? fmt::format(" differs by {:.2g}, norms {:.4g} and {:.4g}", one.size, one.norm, one.other_norm)
                      : ": " + one.why;
  return fmt::format("step {}, {}{}{}{}", one.step, one.place, what, one.types.empty() ? "" : ", " + one.types,
                     one.rank == 0 ? "" : fmt::format(", rank {}", one.rank));
}

/// What a difference must exceed, " by more than noise"; "": nothing.
std::string limit_of(const Found& found) {
  const std::string tolerance = found.tolerance > 0 ? fmt::format("{:g}", found.tolerance) : "";
  if (!found.has_noise) return tolerance.empty() ? "" : " by more than " + tolerance;
  return " by more than " + (tolerance.empty() ? "noise" : fmt::format("noise and {}", tolerance));
}

std::string noise_text(const Found& found) {
  const Divergence& seen = found.divergence;
  if (!found.has_noise) return "not measured: --noise names second runs";
  std::vector<std::string> out;
  if (!seen.noisiest.empty())
    out.push_back(fmt::format("two runs of an arm differ by up to {:.2g}: {}", seen.largest_noise, seen.noisiest));
  if (seen.unlike > 0)
    out.push_back(fmt::format("{} of two runs of an arm cannot be compared, the first: {}",
                              counted(seen.unlike, "tensor"), seen.first_unlike));
  return out.empty() ? "none: two runs of an arm have equal bits" : fmt::format("{}", fmt::join(out, "; "));
}

std::string rise_text(const Divergence& seen) {
  const bool has_factor = std::isfinite(seen.rise_factor);
  return text_of(*seen.rise) +
         (has_factor ? fmt::format(", {:.0f} times as much as any before it in this phase", seen.rise_factor) : "");
}

void print(std::FILE* out, const Found& found) {
  const Divergence& seen = found.divergence;
  const auto row = [&](const char* topic, const std::string& text) {
    std::fprintf(out, "%s\n", fmt::format("  {:<6} {}", topic, for_terminal(text)).c_str());
  };
  std::fprintf(out, "%s\n",
               for_terminal(fmt::format("{}: {} compared", found.of, counted(seen.tensors, "tensor"))).c_str());
  for (const std::string& one : seen.incomplete) row("warning", one);
  row("noise", noise_text(found));
  if (seen.only_in_one > 0)
    row("only", fmt::format("{} of one run only, the first: {}", counted(seen.only_in_one, "tensor"), seen.first_only));
  if (!seen.first) {
    row("first", fmt::format("no tensor of both runs differs{}", limit_of(found)));
    return;
  }
  row("first", text_of(*seen.first));
  if (seen.rise) row("rise", rise_text(seen));
  row("all", fmt::format("{} of {} differ{}", seen.different, counted(seen.tensors, "tensor"), limit_of(found)));
}

/// The record of the result set: gates that state what was found.
CellRecord record_of(const Found& found) {
  const Divergence& seen = found.divergence;
  const std::string compared =
      fmt::format("{} of {} differ; noise: {}", seen.different, counted(seen.tensors, "tensor"), noise_text(found));
  Gate equal;
  equal.text = "no tensor differs" + limit_of(found);
  equal.side = Side::kDifference;
  equal.pass = !seen.first;
  equal.detail = compared;
  if (seen.first) {
    if (std::isfinite(seen.first->size)) equal.observed = seen.first->size;
    equal.limit = std::max(found.tolerance, kTimesNoise * seen.first->noise);
    equal.detail = fmt::format("first: {}; {}{}", text_of(*seen.first),
                               seen.rise ? "rise: " + rise_text(seen) + "; " : "", compared);
  }
  Gate paired;
  paired.text = "both runs have each tensor";
  paired.side = Side::kDifference;
  paired.pass = seen.only_in_one == 0;
  paired.observed = static_cast<double>(seen.only_in_one);
  paired.limit = 0;
  paired.detail = seen.first_only.empty() ? "" : "first: " + seen.first_only;
  Gate complete;
  complete.text = "no recording is incomplete";
  complete.side = Side::kDifference;
  complete.pass = seen.incomplete.empty();
  complete.observed = static_cast<double>(seen.incomplete.size());
  complete.limit = 0;
  complete.detail = fmt::format("{}", fmt::join(seen.incomplete, "; "));
  CellRecord out = found.record;
  out.verdict = *equal.pass && *paired.pass && *complete.pass ? Verdict::kPass : Verdict::kFail;
  out.reason = !*equal.pass ? text_of(*seen.first) : !*paired.pass ? paired.detail : complete.detail;
  out.gates = {std::move(equal), std::move(paired), std::move(complete)};
  out.effect.reset();
  return out;
}

Json json_of(const Difference& one) {
  Json out{{"rank", one.rank}, {"step", one.step}, {"tensor", one.place}, {"noise", one.noise}};
  out["relative_difference"] = std::isfinite(one.size) ? Json(one.size) : Json("inf");
  if (!one.why.empty()) out["reason"] = one.why;
  if (std::isfinite(one.norm) && std::isfinite(one.other_norm)) out["norms"] = {one.norm, one.other_norm};
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
  OneCellResults(request.out, program).write(record_of(found), /*prints=*/false);
  if (request.json) std::fputs(json_of(found).c_str(), stdout);
  std::FILE* text = request.json ? stderr : stdout;
  print(text, found);
  if (!found.files.empty()) std::fprintf(text, "recordings: %s\n", for_terminal(found.files).c_str());
  std::fprintf(
      text, "%s\n",
      for_terminal(fmt::format("results: {0}/results.json; fp8lab report {0} -o report", request.out)).c_str());
  const Divergence& seen = found.divergence;
  return seen.first || seen.only_in_one > 0 || !seen.incomplete.empty() ? kDiverges : kNone;
}

}  // namespace fp8lab
