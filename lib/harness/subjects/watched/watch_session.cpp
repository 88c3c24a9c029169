#include "harness/subjects/watched/watch_session.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "core/check.h"
#include "harness/cell/metrics.h"
#include "harness/cell/temporary_folder.h"
#include "harness/subjects/python_path.h"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;
using SteadyClock = std::chrono::steady_clock;

constexpr const char* kPackage = "fp8lab_subjects";

/// A folder that is removed at the end.
class SpoolFolder {
 public:
  SpoolFolder() : path_(make_temporary_folder("fp8lab-watch-")) {
    check(!path_.empty(), "watch: no temporary folder can be made; name another place in TMPDIR");
  }
  ~SpoolFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  SpoolFolder(const SpoolFolder&) = delete;
  SpoolFolder& operator=(const SpoolFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::string folder_of_instruments(const std::string& built_in) {
  const char* named = std::getenv("FP8LAB_WORKER");
  const std::string folder = named && *named ? named : built_in;
  check(
      fs::is_directory(fs::path(folder) / kPackage / "watching" / "attach"),
      fmt::format("watch: '{}' does not hold the instruments ({}/watching); name the checkout's folder lib/subjects in "
                  "FP8LAB_WORKER",
                  folder, kPackage));
  return fs::absolute(folder).string();
}

/// "; rank 1: killed after step 4; rank 0: RuntimeError: ...": those that were killed first, as others fail without
/// them.
std::string how_ranks_ended(const Watched& watched) {
  std::string killed, failed;
  for (const WatchedProcess& process : watched.processes) {
    if (!process.error.empty()) failed += fmt::format("; rank {}: {}", process.rank, process.error);
    if (process.state == "running" && !watched.end.late)
      killed += fmt::format("; rank {}: killed after step {}", process.rank, process.steps);
  }
  return killed + failed;
}

}  // namespace

Watched watch(const WatchSession& session) {
  const SpoolFolder spool;
  const std::string worker = folder_of_instruments(session.instruments);
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
  out.findings = findings_of(out.processes);
  return out;
}

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

std::string ranks_text(const WatchFinding& finding, std::size_t processes) {
  if (processes == 1) return "";
  if (finding.ranks.size() == processes) return " (every rank)";
  return fmt::format(" ({} {} of {})", finding.ranks.size() == 1 ? "rank" : "ranks", fmt::join(finding.ranks, ", "),
                     processes);
}

}  // namespace fp8lab
