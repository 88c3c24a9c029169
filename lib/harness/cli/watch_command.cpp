#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "core/check.h"
#include "harness/cell/escape.h"
#include "harness/cell/spelling.h"
#include "harness/cli/one_cell_results.h"
#include "harness/cli/program.h"
#include "harness/results/json_codec.h"
#include "harness/subjects/watched/watch_session.h"
#include "harness/values/recording.h"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

constexpr int kNoFindings = 0, kFindings = 1, kProgramFailed = 4, kNotMeasured = 5, kTimedOut = 124;

/// The name of the cell: the program's, without its folder and ending. "train" of `torchrun --nproc-per-node 2
/// a/train.py`.
std::string name_of(const WatchRequest& request) {
  if (!request.name.empty()) return request.name;
  const auto script = std::find_if(request.command.begin(), request.command.end(),
                                   [](const std::string& word) { return word.ends_with(".py"); });
  const auto module = std::find(request.command.begin(), request.command.end(), "-m");
  if (script != request.command.end()) return fs::path(*script).stem().string();
  if (module != request.command.end() && module + 1 != request.command.end()) return *(module + 1);
  return fs::path(request.command.front()).stem().string();
}

/// A gate for each thing that a training program should not do.
struct GateRow {
  const char* finding;  ///< the kind of finding that fails it
  const char* text;
  const char* metric;
};
constexpr GateRow kGates[] = {
    {"growth", "memory does not grow from step to step", "memory.growth_bytes"},
    {"retained", "autograd keeps nothing after backward", "memory.retained_bytes"},
    {"still", "every weight moves", "parity.weights_moved"},
    {"not_finite", "gradients are finite", "parity.gradients_not_finite"},
};

/// The gates of what was measured; a figure that needs more steps has none.
std::vector<Gate> gates_of(const ArmResult& result, const Watched& watched) {
  std::vector<Gate> out;
  for (const GateRow& row : kGates) {
    const auto metric = result.metrics.find(row.metric);
    Gate gate;
    gate.text = row.text;
    gate.metric = row.metric;
    gate.pass = true;
    if (metric != result.metrics.end()) gate.observed = metric->second.value;
    for (const WatchFinding& finding : watched.findings) {
      if (finding.kind != row.finding) continue;
      gate.pass = false;
      gate.detail += (gate.detail.empty() ? "" : "; ") + finding.text + ranks_text(finding, watched);
    }
    if (gate.observed || gate.pass == false) out.push_back(std::move(gate));
  }
  return out;
}

CellRecord record_of(const WatchRequest& request, const Watched& watched) {
  CellRecord out;
  out.config.scenario = out.config.id = name_of(request);
  out.config.subject = "script";
  out.config.measure = request.measure;
  out.title = fmt::format("{}", fmt::join(request.command, " "));
  out.file = request.command.front();
  out.seconds = watched.seconds;
  ArmResult& arm = out.arms[Arm::kAfter];
  if (watched.worst != nullptr) {
    out.config.device = watched.worst->device;
    out.config.ranks = watched.worst->world;
    out.config.training.steps = watched.worst->steps;
    arm = figures_of(watched);
    out.gates = gates_of(arm, watched);
  }
  const bool fails =
      std::any_of(out.gates.begin(), out.gates.end(), [](const Gate& gate) { return gate.pass == false; });
  out.verdict = watched.end.late           ? Verdict::kTimeout
                : !watched.failure.empty() ? Verdict::kCrashed
                : watched.worst == nullptr ? Verdict::kInconclusive
                : fails                    ? Verdict::kFail
                : !is_complete(watched)    ? Verdict::kInconclusive
                                           : Verdict::kPass;
  if (!watched.failure.empty()) {
    arm.status = watched.end.late ? "timeout" : "crashed";
    arm.reason = out.reason = watched.failure;
  } else if (watched.worst == nullptr) {
    out.reason = why_nothing(watched);
  } else if (fails) {
    out.reason = watched.findings.front().text;
  } else if (!is_complete(watched)) {
    out.reason = watched.missing.empty() ? watched.failed.front().text : watched.missing;
  }
  PlannedCell cell;
  cell.config = out.config;
  out.hash = hash_of(cell);
  return out;
}

void print_lines(std::FILE* out, const WatchRequest& request, const Watched& watched) {
  const auto row = [&](std::string_view topic, const std::string& text) {
    std::fprintf(out, "%s\n", fmt::format("  {:<9} {}", topic, for_terminal(text)).c_str());
  };
  if (!watched.failure.empty()) row("failed", watched.failure);
  for (const WatchedProcess& process : watched.processes)
    if (!process.where.empty()) row("stood", fmt::format("rank {}: {}", process.rank, process.where));
  if (watched.worst == nullptr) {
    row("nothing", why_nothing(watched));
    return;
  }
  for (const auto& [topic, text] : watched.worst->lines) row(topic, text);
  if (!watched.worst->guesses.empty()) row("guessed", fmt::format("{}", fmt::join(watched.worst->guesses, "; ")));
  row("cost", watched.worst->overhead);
  for (const WatchedProcess& process : watched.processes)
    if (process.others > 0)
      row("others", fmt::format("rank {}: {} trained, whose figures are not shown", process.rank,
                                counted(static_cast<std::size_t>(process.others), "more process")));
  if (!watched.missing.empty()) row("missing", watched.missing);
  for (const WatchFinding& one : watched.failed) row("failed", one.text + ranks_text(one, watched));
  for (const WatchFinding& finding : watched.findings) row("FOUND", finding.text + ranks_text(finding, watched));
  if (watched.findings.empty())
    row("found",
        is_complete(watched) ? "nothing that a training program should not do" : "nothing in what was measured");
  row("results", fmt::format("{0}/results.json; fp8lab report {0} -o report; fp8lab plan {0}", request.out));
}

std::string headline(const WatchRequest& request, const Watched& watched) {
  if (watched.worst == nullptr) return fmt::format("fp8lab watch: {}", name_of(request));
  const WatchedProcess& worst = *watched.worst;
  std::string out = fmt::format("fp8lab watch: {}: {} on {}, {}, PyTorch {}", name_of(request),
                                counted(static_cast<std::size_t>(worst.steps), "step"),
                                counted(static_cast<std::size_t>(worst.world), "rank"), worst.device, worst.torch);
  if (watched.processes.size() > 1)
    out += fmt::format("; figures of rank {}, the worst: its peak is largest", worst.rank);
  return out;
}

int code_of(const Watched& watched) {
  if (watched.end.interrupted_by != 0) return 128 + watched.end.interrupted_by;
  if (watched.end.late) return kTimedOut;
  if (!watched.failure.empty()) return kProgramFailed;
  if (watched.worst == nullptr) return kNotMeasured;
  if (!watched.findings.empty()) return kFindings;
  return is_complete(watched) ? kNoFindings : kNotMeasured;
}

}  // namespace

int watch_command(const WatchRequest& request, const Program& program) {
  OneCellResults results(request.out, program);
  std::FILE* text = request.json ? stderr : stdout;
  std::vector<std::string> measure = request.measure;
  std::map<std::string, std::string> environment_of_program;
  if (!request.values.empty()) {
    measure.emplace_back("values");
    check(!fs::exists(request.values) || fs::is_directory(request.values),
          fmt::format("watch: --values: {} is a file; name a folder", request.values));
    clear_recording(request.values);
    environment_of_program[kValuesVariable] = fs::absolute(request.values).string();
    environment_of_program[kValuesStepsVariable] = request.steps.empty() ? kRecordedSteps : request.steps;
  }
  Watched watched = watch({.program = {.words = request.command,
                                       .environment = environment_of_program,
                                       .folder = {},
                                       .timeout_s = request.timeout_s,
                                       .output_to_errors = request.json},
                           .instruments = program.worker_directory,
                           .folders = {},
                           .measure = measure,
                           .steps = request.steps});
  const bool says_why = std::ranges::any_of(watched.failed, [](const auto& one) { return one.subject == "values"; });
  if (!request.values.empty() && watched.worst != nullptr && !says_why && !has_recording(request.values))
    watched.failed.push_back({.kind = "failed",
                              .subject = "values",
                              .text = fmt::format("values: no rank left a file in {}", request.values),
                              .size = 0,
                              .ranks = {}});
  results.write(record_of(request, watched), request.json, watched.worst == nullptr ? "" : watched.worst->trained);
  std::fprintf(text, "\n%s\n", for_terminal(headline(request, watched)).c_str());
  print_lines(text, request, watched);
  return code_of(watched);
}

}  // namespace fp8lab
