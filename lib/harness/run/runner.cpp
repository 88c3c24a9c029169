#include "harness/run/runner.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <list>
#include <map>
#include <memory>
#include <set>

#include "core/check.h"
#include "harness/cell/metrics.h"
#include "harness/cell/subject_keys.h"
#include "harness/cell/units.h"
#include "harness/results/json_codec.h"
#include "harness/run/limits.h"
#include "harness/run/run_folder.h"
#include "harness/run/running_cell.h"

namespace fp8lab {
namespace {

constexpr double kDefaultTimeoutSeconds = 600;
/// The most cells that have begun and are not finished. They may be more than the running ones: a cell that waits for
/// an arm which another cell runs holds the results of its own arms.
constexpr std::size_t kMostBegun = 512;
/// The most cells that wait for device memory while those behind them go ahead.
constexpr std::size_t kMostWaiting = 64;
constexpr auto kTick = std::chrono::milliseconds(200);
/// Device memory that the driver and its libraries use for a process; measured on H200: 0.55 GiB.
constexpr double kDriverBytes = 640.0 * (1 << 20);
/// What the allocator of a GPU that is nearly full reserves, over what is live; measured on H100: 1.004 to 1.007.
constexpr double kReservedOverLive = 1.01;

/// The most bytes of one rank of an arm, as far as they can be predicted.
std::optional<double> predicted_peak(const CellConfig& cell, Arm arm, const PredictFunction& predict) {
  if (!predict) return {};
  try {
    const auto figures = predict(cell, arm);
    const auto peak = figures.find("memory.peak_bytes");
    if (peak != figures.end()) return peak->second;
  } catch (const Error&) {  // the arm itself will report it
  }
  return {};
}

/// Device memory of a rank of an arm and of the further runs that its metrics need, as far as it can be predicted.
double predicted_bytes(const CellConfig& cell, Arm arm, const PredictFunction& predict) {
  const std::optional<double> peak = predicted_peak(cell, arm, predict);
  if (!peak) return 0.0;
  int others = 0;
  for (const MetricGroup& group : metric_groups())
    if (std::ranges::find(cell.measure, group.name) != cell.measure.end()) others += group.companions;
  const double most = cell.capacity > 0 ? std::min(*peak, static_cast<double>(cell.capacity)) : *peak;
  return most + *peak * others;
}

class Runner {
 public:
  Runner(const std::vector<PlannedCell>& cells, const Vocabulary& vocabulary, const RunnerOptions& options,
         const RunnerEvents& events, SignalWatch& watch)
      : vocabulary_(vocabulary),
        options_(options),
        events_(events),
        watch_(watch),
        shared_(options.task, cells, vocabulary) {
    for (const PlannedCell& cell : cells) order_.push_back(&cell);
    // Others would have to end before each of them, and wait for it.
    std::stable_partition(order_.begin(), order_.end(),
                          [this](const PlannedCell* cell) { return !runs_alone(cell->config); });
  }

  int run() {
    Clock::time_point next_tick = Clock::now();
    for (;;) {
      start_what_fits();
      if (running_.empty()) return 0;
      if (Clock::now() >= next_tick) {
        if (events_.tick) events_.tick(static_cast<int>(running_.size()));
        next_tick = Clock::now() + kTick;
      }
      wait_until(next_tick);
      if (watch_.stop_requests() > 0) return stop();
      for (auto it = running_.begin(); it != running_.end();) {
        if (!it->advance()) {
          ++it;
          continue;
        }
        CellRecord record = it->record();
        it = running_.erase(it);
        events_.finished(std::move(record));
      }
    }
  }

 private:
  /// True if no other cell may run at the same time. How much of a GPU a library needs is not predicted, so it has the
  /// GPU for itself, unless the user gives the number of arms that have room.
  bool runs_alone(const CellConfig& cell) const {
    return any_group(cell.measure, &MetricGroup::alone) ||
           (is_library(cell) && cell.device == "cuda" && !options_.libraries_share_gpus);
  }

  std::size_t processes() {
    std::size_t count = 0;
    for (RunningCell& cell : running_) count += cell.running().size();
    return count;
  }

  /// The first cell that has begun and has an arm to start; `idle`: of those that run none.
  RunningCell* unstarted(bool idle) {
    const auto found = std::ranges::find_if(
        running_, [&](const RunningCell& cell) { return cell.has_unstarted() && (!idle || cell.running().empty()); });
    return found == running_.end() ? nullptr : &*found;
  }

  /// Starts arms while there is room. A cell's arms run one after the other, in one process if that stays, which keeps
  /// what parity compares them with; side by side only when there is no other cell to begin.
  void start_what_fits() {
    for (RunningCell& cell : running_) cell.take_shared();
    for (;;) {
      const std::size_t busy = processes();
      if (busy > 0 && (alone_ || busy >= static_cast<std::size_t>(options_.jobs))) return;
      RunningCell* begun = unstarted(true);
      if (begun == nullptr && begin_next()) continue;
      if (begun == nullptr) begun = unstarted(false);
      if (begun == nullptr) return;
      const std::optional<int> first_gpu = place(begun->config(), begun->need());
      if (!first_gpu) return;
      start_next(*begun, *first_gpu);
    }
  }

  /// A cell that may begin.
  struct NextCell {
    const PlannedCell* cell;
    std::vector<Arm> arms;
    GpuNeed need;
  };

  /// Begins the next cell that fits, or has it wait or be skipped; false if there is none to do that with. A cell that
  /// waits for device memory lets others go ahead, and is the first to get what they leave.
  bool begin_next() {
    if (running_.size() >= kMostBegun) return false;
    const auto fits = [&](const NextCell& next) { return place(next.cell->config, next.need).has_value(); };
    if (const auto found = std::ranges::find_if(waiting_, fits); found != waiting_.end()) {
      begin(*found);
      waiting_.erase(found);
      return true;
    }
    if (next_ == order_.size() || waiting_.size() >= kMostWaiting) return false;
    const PlannedCell& cell = *order_[next_];
    std::vector<Arm> arms = arms_of(cell, vocabulary_);
    const std::string reason = cell.skip_reason.empty() ? too_large(cell, arms) : cell.skip_reason;
    if (!reason.empty()) {
      ++next_;
      events_.finished(skipped_record(cell, reason));
      return true;
    }
    if (runs_alone(cell.config) && (processes() > 0 || !waiting_.empty())) return false;
    ++next_;
    const GpuNeed need = need_of(cell, arms);
    NextCell next{&cell, std::move(arms), need};
    if (fits(next))
      begin(next);
    else
      waiting_.push_back(std::move(next));
    return true;
  }

  void begin(const NextCell& next) {
    alone_ = runs_alone(next.cell->config);
    if (alone_) idle_.clear();
    running_.emplace_back(*next.cell, next.arms, options_, events_, shared_, idle_, next.need);
  }

  /// Starts the next arm of the cell, in a process that may be reused for other arms of the device that it has open. A
  /// process is not reused after an arm that did not end ok, which may leave damage behind; in a cell that measures
  /// time; or under a limit on processor time, which would count all arms of a process together. A library's process
  /// runs one arm: instruments and caches of a library outlive an arm, and versions differ in their interpreters.
  void start_next(RunningCell& cell, int first_gpu) {
    if (is_library(cell.config())) {
      ArmCommand command = options_.worker_command(cell.config(), cell.next());
      see_gpus_from(first_gpu, cell.config(), command);
      return cell.start_next(std::make_unique<ArmProcess>(command), first_gpu, ArmProcess::Then::kEnd);
    }
    const bool stays = !options_.isolate && !alone_ && !limits_processor_time();
    std::unique_ptr<ArmProcess> process = stays ? idle_.take(cell.config().device, first_gpu) : nullptr;
    if (!process) {
      ArmCommand command = options_.command;
      see_gpus_from(first_gpu, cell.config(), command);
      // The system clears new memory page by page, which for gigabytes of weights takes longer than to compare them:
      // glibc requests huge pages.
      if (std::getenv("GLIBC_TUNABLES") == nullptr) command.environment["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1";
      process = std::make_unique<ArmProcess>(command);
    }
    cell.start_next(std::move(process), first_gpu, stays ? ArmProcess::Then::kStay : ArmProcess::Then::kEnd);
  }

  void see_gpus_from(int first_gpu, const CellConfig& cell, ArmCommand& command) {
    if (const int gpus = static_cast<int>(gpus_of(cell).size()); gpus > 1)
      command.environment["CUDA_VISIBLE_DEVICES"] = visible_gpus(std::getenv("CUDA_VISIBLE_DEVICES"), gpus, first_gpu);
  }

  /// Memory of each GPU of the cell's device; empty if the device has no memory of its own.
  const std::vector<std::int64_t>& gpus_of(const CellConfig& cell) {
    const auto [entry, is_new] = gpus_.try_emplace(cell.device);
    const Term* device = find_term(vocabulary_.devices, cell.device);
    if (is_new && device && device->gpu_memory) entry->second = device->gpu_memory();
    return entry->second;
  }

  /// What the arm that needs the most needs.
  GpuNeed need_of(const PlannedCell& cell, const std::vector<Arm>& arms) {
    GpuNeed need{.ranks = cell.config.ranks, .process_bytes = kDriverBytes};
    // Most of a library's time is spent by Python on the host.
    if (is_library(cell.config)) need.most_arms = options_.jobs;
    if (!gpus_of(cell.config).empty())
      for (const Arm arm : arms)
        need.rank_bytes = std::max(need.rank_bytes, predicted_bytes(cell.config, arm, options_.predict));
    return need;
  }

  /// Why the device can never hold one rank of an arm; empty if it can, or if the cell expects an arm's end.
  std::string too_large(const PlannedCell& cell, const std::vector<Arm>& arms) {
    const std::vector<std::int64_t>& gpus = gpus_of(cell.config);
    const double memory = gpus.empty() ? 0.0 : static_cast<double>(std::ranges::min(gpus)) - kDriverBytes;
    const bool says =
        std::ranges::any_of(cell.expect, [](const Expectation& e) { return e.comparison == Comparison::kEnds; });
    if (memory <= 0.0 || says || cell.config.capacity > 0) return {};
    for (const Arm arm : arms)
      if (const double live = predicted_peak(cell.config, arm, options_.predict).value_or(0.0),
          bytes = std::ceil(kReservedOverLive * live);
          bytes > memory)
        return fmt::format("its {} arm needs {} of device memory, and the device has {} in addition to its driver's",
                           name(arm), figure(bytes, "B"), figure(memory, "B"));
    return {};
  }

  /// The GPU for the first rank of an arm in addition to running ones; nothing if there is no room. If no arm runs,
  /// it has to try. Ends idle processes to make room. 0 for devices without GPUs.
  std::optional<int> place(const CellConfig& cell, const GpuNeed& need) {
    const std::vector<std::int64_t>& gpus = gpus_of(cell);
    if (gpus.empty()) return 0;
    GpuLoad load(gpus);
    for (const RunningCell& other : running_)
      if (other.config().device == cell.device)
        for (const RunningArm& arm : other.running()) load.add(arm.first_gpu(), other.need());
    for (;;) {
      GpuLoad with_idle = load;
      for (std::size_t i = 0; i < idle_.count(cell.device); ++i) with_idle.add_idle(need);
      if (const std::optional<int> first_gpu = with_idle.place(need)) return first_gpu;
      if (!load.place(need) || !idle_.drop(cell.device)) break;
    }
    if (processes() > 0) return {};
    // More than an empty GPU may have: the arm has to try, with no other process on the GPU.
    while (idle_.drop(cell.device)) {
    }
    return 0;
  }

  void wait_until(Clock::time_point wake) {
    if (std::ranges::any_of(running_, &RunningCell::complete)) return;  // other cells ran all arms of this one
    std::vector<pollfd> fds{{watch_.fd(), POLLIN, 0}};
    for (RunningCell& cell : running_)
      for (RunningArm& arm : cell.running()) {
        fds.push_back({arm.process().output_fd(), POLLIN, 0});
        fds.push_back({arm.process().answer_fd(), POLLIN, 0});
        wake = std::min(wake, arm.deadline());
      }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(wake - Clock::now()).count() + 1;
    ::poll(fds.data(), fds.size(), static_cast<int>(std::clamp<long>(left, 0, 1000)));
    watch_.drain();
  }

  int stop() {
    std::vector<ArmProcess*> left;
    for (RunningCell& cell : running_)
      for (RunningArm& arm : cell.running()) left.push_back(&arm.process());
    for (ArmProcess* process : left) process->terminate();
    const Clock::time_point wait_limit = Clock::now() + kGrace;
    while (!left.empty() && watch_.stop_requests() < 2 && Clock::now() < wait_limit) {
      pollfd fd{watch_.fd(), POLLIN, 0};
      ::poll(&fd, 1, 50);
      watch_.drain();
      std::erase_if(left, [](ArmProcess* process) { return process->ended(); });
    }
    running_.clear();  // kills the remaining processes
    return watch_.first_stop_signal();
  }

  std::vector<const PlannedCell*> order_;  ///< those that run alone come last
  const Vocabulary& vocabulary_;
  const RunnerOptions& options_;
  const RunnerEvents& events_;
  SignalWatch& watch_;
  SharedArms shared_;
  IdleProcesses idle_;
  std::map<std::string, std::vector<std::int64_t>> gpus_;  ///< memory of each GPU, by device
  std::list<RunningCell> running_;
  std::size_t next_ = 0;
  std::vector<NextCell> waiting_;  ///< for device memory, in their order
  bool alone_ = false;             ///< the running cell measures time, so no other may run
};

}  // namespace

double time_limit(const PlannedCell& cell, const RunnerOptions& options) {
  return options.timeout_s.value_or(cell.timeout_s.value_or(kDefaultTimeoutSeconds));
}

CellRecord skipped_record(const PlannedCell& cell, const std::string& reason) {
  CellRecord record = make_record(cell, {}, 0);
  record.verdict = Verdict::kSkipped;
  record.reason = reason;
  record.gates.clear();
  return record;
}

void add_predictions(ArmResult& result, const CellConfig& cell, Arm arm, const PredictFunction& predict) {
  const bool has_own = std::any_of(result.metrics.begin(), result.metrics.end(),
                                   [](const auto& metric) { return metric.second.predicted.has_value(); });
  if (!predict || has_own) return;
  std::map<std::string, double> figures;
  try {
    figures = predict(cell, arm);
  } catch (const Error& error) {
    result.status = "error";
    result.reason = fmt::format("prediction: {}", error.what());
  }
  for (const auto& [name, value] : figures) {
    MetricValue& metric = result.metrics[name];
    metric.predicted = value;
    if (!metric.value && metric.reason.empty())
      metric.reason = result.status == "ok" ? "not measured" : "the arm ended " + result.status;
    if (metric.unit.empty())
      if (const Metric* row = find_metric(name)) metric.unit = row->unit;
    // What an arm without enough memory would have needed, as a figure that scenarios can gate.
    if (result.status == "out_of_memory" && name.starts_with("memory."))
      result.metrics["memory.predicted_" + name.substr(name.find('.') + 1)] = {
          .value = value, .predicted = {}, .unit = "B", .reason = ""};
  }
}

long descriptors_needed(const std::vector<PlannedCell>& cells, int jobs) {
  constexpr long kOfTheRun = 20, kOfAProcess = 3;  // results and standard streams; see ArmProcess
  std::set<std::string> devices;
  for (const PlannedCell& cell : cells) devices.insert(cell.config.device);
  const long arms = std::min(static_cast<long>(jobs), static_cast<long>(kArms.size() * cells.size()));
  return kOfTheRun + kOfAProcess * arms * static_cast<long>(devices.size());
}

CellRecord make_record(const PlannedCell& cell, ArmResults arms, double seconds) {
  CellRecord out;
  Judgement judgement = judge(cell.config, arms, cell.expect);
  out.verdict = judgement.verdict;
  out.reason = std::move(judgement.reason);
  out.gates = std::move(judgement.gates);
  if (out.verdict == Verdict::kConfirmed) out.effect = effect_of(arms, out.gates);
  for (const Claim& claim : cell.claims)
    out.claims.push_back(
        {claim, predicted(arms, claim.side, claim.metric).value, measured(arms, claim.side, claim.metric).value});
  out.config = cell.config;
  out.file = cell.file;
  out.line = cell.line;
  out.title = cell.title;
  out.upstream = cell.upstream;
  out.counterfactual = cell.counterfactual;
  out.seconds = seconds;
  out.arms = std::move(arms);
  out.text_checksum = cell.text_checksum;
  out.hash = hash_of(cell);
  return out;
}

int run_cells(const std::vector<PlannedCell>& cells, const Vocabulary& vocabulary, const RunnerOptions& options,
              const RunnerEvents& events, SignalWatch& watch) {
  const std::shared_ptr<const RunFolder> folder = RunFolder::shared();  // for all arms, also when none runs
  return Runner(cells, vocabulary, options, events, watch).run();
}

int run_cells(const std::vector<PlannedCell>& cells, const Vocabulary& vocabulary, const RunnerOptions& options,
              const RunnerEvents& events) {
  SignalWatch watch;
  return run_cells(cells, vocabulary, options, events, watch);
}

}  // namespace fp8lab
