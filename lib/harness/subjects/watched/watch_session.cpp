#include "harness/subjects/watched/watch_session.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <set>

#include "comm/launch.h"
#include "core/check.h"
#include "harness/cell/metrics.h"
#include "harness/run/run_folder.h"
#include "harness/subjects/python_path.h"

namespace fp8lab {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr const char* kPackage = "fp8lab_subjects";

/// "; rank 1: killed; its last recorded step is 4; rank 0: RuntimeError: ...": those that were killed first, as others
/// fail without them.
std::string how_ranks_ended(const Watched& watched) {
  std::string killed, failed;
  for (const WatchedProcess& process : watched.processes) {
    if (!process.error.empty()) failed += fmt::format("; rank {}: {}", process.rank, process.error);
    if (process.state == "running" && !watched.end.late)
      killed += fmt::format("; rank {}: killed; its last recorded step is {}", process.rank, process.steps);
  }
  return killed + failed;
}

/// True if a launcher started this program for each rank, so that the other ranks are not below it.
bool is_one_of_several() {
  try {
    return discover_launch([](const char* name) { return std::getenv(name); }).size > 1;
  } catch (const Error&) {
    return false;
  }
}

/// Sets `ranks` and `missing`. Processes without a step left no figures.
void count_ranks(Watched& watched) {
  constexpr std::size_t kMostNamed = 8;
  std::set<int> present;
  int here = 0, world = 0;
  for (const WatchedProcess& process : watched.processes) {
    if (process.steps == 0) continue;
    present.insert(process.rank);
    here = std::max(here, process.on_this_host);
    world = std::max(world, process.world);
  }
  watched.ranks = present.size();
  if (is_one_of_several() || present.size() >= static_cast<std::size_t>(here)) return;
  watched.ranks = static_cast<std::size_t>(here);
  if (here < world) {
    watched.missing =
        fmt::format("{} of the {} ranks on this host left no figures", watched.ranks - present.size(), here);
    return;
  }
  std::vector<std::string> absent;
  for (int rank = 0; rank < world && absent.size() < kMostNamed; ++rank)
    if (!present.contains(rank)) absent.push_back(std::to_string(rank));
  const std::size_t all = watched.ranks - present.size();
  watched.missing = fmt::format("{} {}{} of {} left no figures", all == 1 ? "rank" : "ranks", fmt::join(absent, ", "),
                                all > absent.size() ? " ..." : "", world);
}

}  // namespace

Watched watch(const WatchSession& session) {
  const TemporaryFolder spool("watch");
  const std::string worker =
      worker_folder_with(fmt::format("{}/watching/attach", kPackage), session.instruments, "watch");
  WatchedProgram program = session.program;
  std::string path = fmt::format("{0}/{1}/watching/attach:{0}", worker, kPackage);
  for (const std::string& folder : session.folders) path += ":" + folder;
  if (const std::string others = python_path(); !others.empty()) path += ":" + others;
  program.environment["PYTHONPATH"] = path;
  program.environment["FP8LAB_WATCH_FOLDER"] = spool.path().string();
  program.environment["FP8LAB_WATCH_MEASURE"] = fmt::format("{}", fmt::join(session.measure, ","));
  program.environment["FP8LAB_WATCH_STEPS"] = session.steps;
  const SteadyClock::time_point begin = SteadyClock::now();
  Watched out;
  out.end = run_watched(program);
  out.seconds = std::chrono::duration<double>(SteadyClock::now() - begin).count();
  out.processes = read_watched(spool.path());
  if (out.end.late || out.end.status != 0) out.failure = words_of(out.end, program) + how_ranks_ended(out);
  const bool any =
      std::any_of(out.processes.begin(), out.processes.end(), [](const WatchedProcess& p) { return p.steps > 0; });
  if (any) out.worst = &worst_of(out.processes);
  if (out.failure.empty())
    for (WatchedProcess& process : out.processes)  // the program went on without it
      if (!process.error.empty())
        process.failed.push_back(
            {.kind = "failed", .subject = "process", .text = process.error, .size = 0, .ranks = {process.rank}});
  out.findings = merged(out.processes, &WatchedProcess::findings);
  out.failed = merged(out.processes, &WatchedProcess::failed);
  count_ranks(out);
  return out;
}

bool is_complete(const Watched& watched) { return watched.missing.empty() && watched.failed.empty(); }

ArmResult figures_of(const Watched& watched) {
  ArmResult out = watched.worst->result;
  if (watched.processes.size() > 1)
    out.notes.push_back(fmt::format("figures of rank {}, whose peak is largest", watched.worst->rank));
  for (const WatchedProcess& process : watched.processes)
    for (const char* name : {"parity.weights_moved", "parity.gradients_not_finite", "memory.growth_bytes"}) {
      const auto other = process.result.metrics.find(name);
      if (other == process.result.metrics.end() || !other->second.value) continue;
      MetricValue& mine = out.metrics[name];
      const bool less_is_worse = find_metric(name)->better == Better::kMore;
      if (!mine.value || (less_is_worse ? *other->second.value < *mine.value : *other->second.value > *mine.value))
        mine = other->second;
    }
  for (const WatchFinding& failed : watched.failed) {
    out.notes.push_back("failed: " + failed.text + ranks_text(failed, watched));
    for (auto& [name, figure] : out.metrics)
      if (name.starts_with(failed.subject + ".")) {
        figure.value.reset();
        figure.reason = failed.subject + " was not measured to the end";
      }
  }
  return out;
}

std::string why_nothing(const Watched& watched) {
  if (watched.processes.empty())
    return "no process of the program imported PyTorch under the instruments: they attach through PYTHONPATH, which "
           "Python ignores when it is started with -I or -E, and containers may not inherit";
  if (!watched.failure.empty()) return "no step had ended by then";
  return "no step ended: a step ends with the step of a torch.optim.Optimizer; "
         "`import fp8lab_subjects; fp8lab_subjects.watch(model, optimizer)` in the program names the optimizer";
}

std::string ranks_text(const WatchFinding& finding, const Watched& watched) {
  if (watched.ranks <= 1 || finding.ranks.empty()) return "";
  if (finding.ranks.size() == watched.ranks) return " (every rank)";
  return fmt::format(" ({} {} of {})", finding.ranks.size() == 1 ? "rank" : "ranks", fmt::join(finding.ranks, ", "),
                     watched.ranks);
}

}  // namespace fp8lab
