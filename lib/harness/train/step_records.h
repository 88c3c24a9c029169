#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "autograd/runtime.h"
#include "harness/cell/cell.h"

namespace fp8lab {

class Stopwatch {
 public:
  /// Milliseconds since the last call, or since construction.
  double lap_ms() {
    const auto now = std::chrono::steady_clock::now();
    const double ms = std::chrono::duration<double, std::milli>(now - last_).count();
    last_ = now;
    return ms;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

/// The wall time of the phases of one step; the device is synchronised at the end of each phase.
struct StepTimes {
  double forward_ms = 0.0;
  double backward_ms = 0.0;
  double optimizer_ms = 0.0;
  double step_ms = 0.0;
};

// A scenario may ask for a million steps, so records by step are bounded; only losses, four bytes each, are kept of
// every step.

/// A timeline holds this many of the first steps and this many of the last steps.
inline constexpr std::int64_t kTimelineSteps = 8;
/// Times are measured in the first step and in at most this many of the others, evenly spaced.
inline constexpr std::int64_t kTimedSteps = 1024;

/// What is recorded of the steps of a run on one rank.
class StepRecords {
 public:
  /// `cell` and `runtime` must outlive this object. `timeline`: the ledger records its events, of steps see
  /// kTimelineSteps.
  StepRecords(const CellConfig& cell, Runtime& runtime, bool timeline);

  /// Makes the steps measure the pre-forward host work of every layer and of the root; call it before the first.
  void measure_host_work();

  /// Chooses what is recorded of step `step`, which begins now.
  void begin(std::int64_t step);
  /// Adds to the present step's loss what micro-batch `index` contributes.
  void add_loss(std::int64_t index, float loss);
  /// Adds the loss of a validation.
  void add_validation(const ValidationLoss& validation) { validations_.push_back(validation); }
  /// Ends step `step`.
  void end(std::int64_t step, const StepTimes& times);

  /// By step.
  const std::vector<float>& losses() const { return losses_; }
  const std::vector<ValidationLoss>& validations() const { return validations_; }
  /// Times of the first step, then of the other timed steps (kTimedSteps).
  const std::vector<StepTimes>& times() const { return times_; }
  /// The samples of every layer in every timed step but the first.
  std::vector<PreForwardSample> host_work() const;
  /// The plans that fused chains made in the last step.
  std::int64_t fusion_plans() const { return fusion_plans_; }

 private:
  bool is_timed(std::int64_t step) const;

  const CellConfig& cell_;
  Runtime& runtime_;
  bool timeline_;
  bool measures_host_work_ = false;
  std::vector<float> losses_;
  std::vector<ValidationLoss> validations_;
  std::vector<StepTimes> times_;
  std::vector<PreForwardSample> host_work_;
  std::size_t host_work_of_first_step_ = 0;
  std::int64_t fusion_plans_before_ = 0, fusion_plans_ = 0;
};

}  // namespace fp8lab
