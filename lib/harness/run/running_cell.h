#pragma once

#include <algorithm>
#include <chrono>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "harness/run/gpu_load.h"
#include "harness/run/idle_processes.h"
#include "harness/run/rounds.h"
#include "harness/run/runner.h"

// A cell whose arms run, as the runner sees it.
namespace fp8lab {

/// The time between SIGTERM and SIGKILL to a process group.
inline constexpr auto kGrace = std::chrono::seconds(2);

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// An arm that runs in a process, with its time limit.
class RunningArm {
 public:
  /// `first_gpu`: the process's first GPU, if its device has GPUs.
  RunningArm(std::unique_ptr<ArmProcess> process, int first_gpu, Arm arm, double limit_s)
      : arm_(arm), first_gpu_(first_gpu), limit_s_(limit_s), process_(std::move(process)) {
    deadline_ =
        process_->started() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limit_s));
  }

  Arm arm() const { return arm_; }
  int first_gpu() const { return first_gpu_; }
  ArmProcess& process() { return *process_; }
  std::unique_ptr<ArmProcess> release() { return std::move(process_); }
  Clock::time_point deadline() const { return deadline_; }

  /// True once the arm has ended. Past its time limit its process gets SIGTERM, later SIGKILL.
  bool advance() {
    process_->drain();
    if (process_->ended()) return true;
    if (Clock::now() < deadline_) return false;
    if (asked_to_end_) {
      process_->kill();
    } else {
      process_->time_out(limit_s_);
      asked_to_end_ = true;
    }
    deadline_ = Clock::now() + kGrace;
    return false;
  }

 private:
  Arm arm_;
  int first_gpu_;
  double limit_s_;
  std::unique_ptr<ArmProcess> process_;
  Clock::time_point deadline_;
  bool asked_to_end_ = false;
};

class RunningCell {
 public:
  /// `need`: of the arm that needs the most.
  RunningCell(const PlannedCell& cell, const std::vector<Arm>& arms, const RunnerOptions& options,
              const RunnerEvents& events, SharedArms& shared, IdleProcesses& idle, const GpuNeed& need)
      : cell_(cell),
        options_(options),
        events_(events),
        shared_(shared),
        idle_(idle),
        need_(need),
        limit_s_(time_limit(cell, options)),
        rounds_(cell, arms, processes_of(cell, options.processes)) {
    begin_round();
  }

  const CellConfig& config() const { return cell_.config; }
  const GpuNeed& need() const { return need_; }

  /// True if there is an arm that no cell runs yet.
  bool has_unstarted() const { return unstarted() != waiting_.end(); }
  Arm next() const { return unstarted()->arm; }
  void start_next(std::unique_ptr<ArmProcess> process, int first_gpu, ArmProcess::Then then) {
    CellConfig config = cell_.config;
    config.timeout_s = limit_s_;
    const auto next = unstarted();
    process->start(config, next->arm, then);
    running_.emplace_back(std::move(process), first_gpu, next->arm, limit_s_);
    shared_.begin(next->task);
    waiting_.erase(next);
  }
  std::list<RunningArm>& running() { return running_; }
  const std::list<RunningArm>& running() const { return running_; }

  void take_shared() {
    std::erase_if(waiting_, [&](const WaitingArm& one) {
      std::optional<ArmResult> result = shared_.take(one.task, limit_s_);
      if (result) results_[one.arm] = *std::move(result);
      return result.has_value();
    });
  }
  bool complete() const { return running_.empty() && waiting_.empty(); }

  /// Records the results of arms that have ended; true if all arms of the cell have.
  bool advance() {
    for (auto it = running_.begin(); it != running_.end();) {
      if (!it->advance()) {
        ++it;
        continue;
      }
      ArmResult result = it->process().result();
      add_predictions(result, cell_.config, it->arm(), options_.predict);
      if (rounds_.first() && events_.arm_ended) events_.arm_ended(cell_.config, it->arm(), result);
      shared_.finish(shared_.task(cell_.config, it->arm()), result, cell_.config.id);
      if (result.status == "ok" && it->process().ready())
        idle_.put(cell_.config.device, it->first_gpu(), it->release());
      rounds_.add(it->arm(), std::move(result), results_);
      it = running_.erase(it);
    }
    if (complete()) begin_round();
    return complete();
  }

  CellRecord record() { return make_record(cell_, std::move(results_), seconds_since(start_)); }

 private:
  void begin_round() {
    for (const Arm arm : rounds_.next(results_)) waiting_.push_back({arm, shared_.task(cell_.config, arm)});
    take_shared();
  }

  /// An arm that has not run yet, or that another cell is running.
  struct WaitingArm {
    Arm arm;
    std::string task;
  };
  std::vector<WaitingArm>::const_iterator unstarted() const {
    return std::ranges::find_if(waiting_, [&](const WaitingArm& one) { return !shared_.underway(one.task); });
  }

  const PlannedCell& cell_;
  const RunnerOptions& options_;
  const RunnerEvents& events_;
  SharedArms& shared_;
  IdleProcesses& idle_;
  GpuNeed need_;
  double limit_s_;
  Rounds rounds_;
  Clock::time_point start_ = Clock::now();
  std::vector<WaitingArm> waiting_;
  std::list<RunningArm> running_;
  ArmResults results_;
};

}  // namespace fp8lab
