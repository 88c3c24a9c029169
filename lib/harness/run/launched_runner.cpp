#include "harness/run/launched_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "backend/device.h"
#include "core/check.h"
#include "harness/cell/subject_keys.h"
#include "harness/cell/temporary_folder.h"
#include "harness/results/json_codec.h"

namespace fp8lab {
namespace {

constexpr auto kPollInterval = std::chrono::milliseconds(50);
/// The timeout of ranks as a fraction of the arm's limit. It is below 1: ranks that wait without result since soon
/// after the arm's start then report whom they miss before the arm is stopped.
constexpr double kShareOfTheLimit = 0.8;
/// The longest time that connecting may take, in units of the timeout of a rank: after it the ranks are stopped without
/// a report of who is missing.
constexpr double kLongestStart = 4;
/// The time that ranks wait for rank 0, which may be computing predictions or writing results.
constexpr double kLongestWriteSeconds = 300;
/// The time within which a signal that a launcher sends to all ranks comes to each of them. mpirun sends SIGKILL a
/// second after SIGTERM, and a rank must have ended by then.
constexpr auto kLongestDelivery = std::chrono::milliseconds(400);
constexpr int kLastSignal = 64;
constexpr const char* kWhyNoCrash =
    "it expects an arm to crash, which only a local run survives: launched ranks are processes of one run";

constexpr const char* kWhyNoLibrary = "a library's worker starts its own ranks; run it without a launcher";

std::chrono::nanoseconds to_duration(double seconds) {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

bool expects_crash(const PlannedCell& cell) {
  return std::any_of(cell.expect.begin(), cell.expect.end(), [](const Expectation& expectation) {
    return expectation.comparison == Comparison::kEnds && expectation.status == "crashed";
  });
}

Place place_of_ranks(const std::vector<Scenario>& scenarios, const std::string& file) {
  for (const Scenario& scenario : scenarios) {
    if (scenario.file != file) continue;
    for (const char* key : {"ranks", "name"})
      if (const auto found = scenario.places.find(key); found != scenario.places.end()) return found->second;
  }
  return {1, 1};
}

/// While it lives, requests a stop of the running work `grace_s` after a signal, or once `limit_s` has passed. Ends the
/// process at a further signal, or if the work goes on for another `limit_s` without reaching a collective, at which it
/// would stop: the other ranks no longer wait for this one then, and no other process may end it.
class Watchdog {
 public:
  Watchdog(const SignalWatch& watch, double limit_s, double grace_s = 0)
      : grace_(to_duration(grace_s)),
        deadline_(Clock::now() + to_duration(limit_s)),
        last_deadline_(deadline_ + to_duration(limit_s)),
        thread_([this, &watch](const std::stop_token& ended) { poll(watch, ended); }) {}

  std::stop_token stop() const { return stop_.get_token(); }

 private:
  void poll(const SignalWatch& watch, const std::stop_token& ended) {
    std::unique_lock lock(mutex_);
    const int known = std::max(watch.stop_requests(), 1);
    bool asked = false;
    while (!ended.stop_requested()) {
      if (!asked && watch.stop_requests() > 0) {
        asked = true;
        deadline_ = std::min(deadline_, Clock::now() + grace_);
      }
      if (Clock::now() >= deadline_) stop_.request_stop();
      if (watch.stop_requests() > known) std::_Exit(128 + watch.first_stop_signal());
      if (Clock::now() >= last_deadline_) {
        std::fputs("fp8lab: error: this rank does not come to its next collective, and ends\n", stderr);
        std::_Exit(exit_code({.verdicts = {}, .ranks_lost = true}));
      }
      never_.wait_for(lock, ended, kPollInterval, [] { return false; });
    }
  }

  Clock::duration grace_;
  Clock::time_point deadline_;
  Clock::time_point last_deadline_;
  std::stop_source stop_;
  std::mutex mutex_;
  std::condition_variable_any never_;
  std::jthread thread_;
};

}  // namespace

void fit_to_launch(std::vector<PlannedCell>& cells, const std::vector<Scenario>& scenarios,
                   const LaunchedRanks& ranks) {
  for (PlannedCell& cell : cells) {
    if (cell.skip_reason.empty() && is_library(cell.config)) cell.skip_reason = kWhyNoLibrary;
    if (cell.skip_reason.empty() && expects_crash(cell)) cell.skip_reason = kWhyNoCrash;
    if (!cell.skip_reason.empty() || cell.config.ranks == ranks.size()) continue;
    throw ScenarioError(
        cell.file, place_of_ranks(scenarios, cell.file),
        fmt::format("`ranks` is {} for cell {}, but {} started {} processes; make them equal, or choose "
                    "cells with --filter",
                    cell.config.ranks, cell.config.id, ranks.launcher(), ranks.size()));
  }
}

LaunchedRunner::LaunchedRunner(const LaunchedRanks& ranks, const std::vector<PlannedCell>& plan,
                               const Vocabulary& vocabulary, MeasureOver measure)
    : ranks_(ranks), plan_(plan), measure_(std::move(measure)) {
  ::setenv(kTemporaryVariable, folder_->unused_path().c_str(), 1);
  for (const PlannedCell& cell : plan_) {
    cells_and_arms_ += hash_of(cell);
    for (const Arm arm : arms_of(cell, vocabulary)) cells_and_arms_ += name(arm);
  }
}

int LaunchedRunner::connect(const RunnerOptions& options) {
  const double limit_s = time_limit(plan_.front(), options);
  const Watchdog watchdog(watch_, kLongestStart * limit_s);
  try {
    const auto limit = to_duration(limit_s);
    ranks_.check_equal(cells_and_arms_, "cells",
                       {.timeout = limit, .shutdown_timeout = limit, .stop = watchdog.stop()});
  } catch (const Error& error) {
    // A launcher sends a signal to all ranks, and another rank may have received it, and stopped, before this one.
    const bool stopped = std::string_view(error.what()).find(kStoppedFromOutside) != std::string_view::npos;
    if (stopped || dynamic_cast<const RanksLost*>(&error) != nullptr) watch_.wait_for_stop(kLongestDelivery);
    if (watch_.stop_requests() > 0) return watch_.first_stop_signal();
    if (stopped) throw RanksLost(error.what());
    throw;
  }
  return 0;  // a signal that arrives later stops run()
}

int LaunchedRunner::run(const std::vector<PlannedCell>& cells, const Vocabulary& vocabulary,
                        const RunnerOptions& options, const RunnerEvents& events) {
  silence_s_ = kShareOfTheLimit * time_limit(plan_.front(), options);
  std::map<std::string, std::int64_t> places;
  for (const PlannedCell& cell : plan_) places.emplace(cell.config.id, static_cast<std::int64_t>(places.size()));
  SharedArms shared(options.task, cells, vocabulary);
  for (const PlannedCell& cell : cells) {
    if (!cell.skip_reason.empty()) {
      events.finished(skipped_record(cell, cell.skip_reason));
      continue;
    }
    const Clock::time_point start = Clock::now();
    ArmResults results;
    for (const Arm arm : arms_of(cell, vocabulary)) {
      if (watch_.stop_requests() > 0) return watch_.first_stop_signal();
      if (events.tick) events.tick(1);
      const std::string task = shared.task(cell.config, arm);
      if (std::optional<ArmResult> known = shared.take(task, time_limit(cell, options))) {
        results[arm] = *std::move(known);
        continue;
      }
      shared.begin(task);
      tell({.cell = places.at(cell.config.id), .arm = static_cast<std::int32_t>(arm)});
      ArmResult result = run_arm(cell, arm, options);
      if (stopped_by_ != 0) return stopped_by_;
      add_predictions(result, cell.config, arm, options.predict);
      if (events.arm_ended) events.arm_ended(cell.config, arm, result);
      shared.finish(task, result, cell.config.id);
      results[arm] = std::move(result);
    }
    events.finished(make_record(cell, std::move(results), std::chrono::duration<double>(Clock::now() - start).count()));
  }
  return 0;
}

int LaunchedRunner::follow(const RunnerOptions& options) {
  silence_s_ = kShareOfTheLimit * time_limit(plan_.front(), options);
  for (;;) {
    LaunchedRanks::Order order;
    between_arms(kLongestWriteSeconds, [&](const RunOptions& run) { order = ranks_.hear(run); });
    if (!LaunchedRanks::is_valid(order, plan_.size()))
      throw RanksLost(fmt::format("rank 0 orders arm {} of cell {}, exit code {}, in a plan of {} cells", order.arm,
                                  order.cell, order.exit_code, plan_.size()));
    if (order.cell < 0) return order.exit_code;
    run_arm(plan_[static_cast<std::size_t>(order.cell)], static_cast<Arm>(order.arm), options);
  }
}

void LaunchedRunner::dismiss(int exit_code) {
  try {
    tell({.exit_code = exit_code});
  } catch (const Error&) {
    // Ranks that this rank cannot reach find that out by themselves.
  }
}

void LaunchedRunner::tell(const LaunchedRanks::Order& order) const {
  between_arms(silence_s_, [&](const RunOptions& run) { ranks_.tell(order, run); });
}

/// Runs communication between two arms. A signal here takes effect in the next arm, which then ends on all ranks; if no
/// arm follows, the watchdog stops the work after its grace. An error here becomes RanksLost: the ranks no longer agree
/// on what comes next.
void LaunchedRunner::between_arms(double longest_s, const std::function<void(const RunOptions&)>& work) const {
  const Watchdog watchdog(watch_, 2 * (longest_s + silence_s_), silence_s_);
  try {
    work({.timeout = to_duration(longest_s), .shutdown_timeout = to_duration(silence_s_), .stop = watchdog.stop()});
  } catch (const Error& error) {
    throw RanksLost(error.what());
  }
}

ArmResult LaunchedRunner::run_arm(const PlannedCell& cell, Arm arm, const RunnerOptions& options) {
  const double limit_s = time_limit(cell, options);
  silence_s_ = kShareOfTheLimit * limit_s;
  const Clock::time_point start = Clock::now();
  std::optional<RanksLost> lost;
  ArmResult result;
  {
    const Watchdog watchdog(watch_, limit_s);
    const StartRanks start_ranks = [&](const CellConfig& config, const RankFunction& rank_function) {
      RunOptions run{.timeout = to_duration(silence_s_), .stop = watchdog.stop()};
      bool on_gpus = false;
      std::exception_ptr no_device;
      try {
        const auto device =
            open_device(config.device, {.arch = config.arch, .rank = ranks_.local_rank(), .memory = {}});
        run.moves_data = device->computes();
        on_gpus = device->peer_access() != nullptr;
      } catch (...) {
        no_device = std::current_exception();
      }
      // A rank that cannot open its device must join the others before it fails: else they would wait for it, or
      // mistake its next run for this one.
      const RankFunction fail_or_run = [&](ProcessGroup& world) {
        if (no_device) std::rethrow_exception(no_device);
        rank_function(world);
      };
      ranks_.run(run, fail_or_run, on_gpus);
    };
    const ArmFunction measure = [&](const CellConfig& config, Arm side) {
      try {
        return measure_(start_ranks, config, side);
      } catch (const RanksLost& error) {
        lost = error;
        throw;
      }
    };
    result = run_arm_guarded(measure, cell.config, arm);
  }
  if (lost) throw *lost;
  // A signal to any rank ends the arm on all ranks, just as its time limit does. Only that rank can see that it was a
  // signal, so the ranks exchange it.
  between_arms(silence_s_, [&](const RunOptions& run) {
    stopped_by_ = ranks_.largest(watch_.stop_requests() > 0 ? watch_.first_stop_signal() : 0, run);
  });
  if (stopped_by_ < 0 || stopped_by_ > kLastSignal)
    throw RanksLost(fmt::format("a rank was stopped by signal {}", stopped_by_));
  if (result.status == "error" && result.reason == kStoppedFromOutside) {
    result.status = "timeout";
    result.reason = fmt::format("took longer than {:g} s", limit_s);
  }
  result = arm_from_json(arm_to_json(result));  // the same result as if a child process had reported it
  result.reason = one_line(std::move(result.reason));
  result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return result;
}

}  // namespace fp8lab
