#include "harness/train/step_records.h"

#include <algorithm>

#include "core/heap_allocations.h"

namespace fp8lab {

StepRecords::StepRecords(const CellConfig& cell, Runtime& runtime, bool timeline)
    : cell_(cell), runtime_(runtime), timeline_(timeline) {}

void StepRecords::measure_host_work() {
  const std::int64_t steps = std::min(cell_.training.steps, kTimedSteps + 1);
  const std::int64_t groups =
      cell_.model.layers + (is_language_model(cell_) ? 1 : 0);  // groups of parameters, with the root's
  host_work_.reserve(static_cast<std::size_t>(groups * steps * cell_.training.micro_batches));
  measures_host_work_ = true;
  runtime_.host.heap_allocations = heap_allocations;
}

bool StepRecords::is_timed(std::int64_t step) const {
  const std::int64_t others = cell_.training.steps - 1, apart = (others + kTimedSteps - 1) / kTimedSteps;
  return step == 0 || (step - 1) % apart == 0;
}

void StepRecords::begin(std::int64_t step) {
  const std::int64_t left = cell_.training.steps - step;
  if (timeline_) runtime_.device.ledger().record_timeline(step < kTimelineSteps || left <= kTimelineSteps);
  runtime_.host.samples = measures_host_work_ && is_timed(step) ? &host_work_ : nullptr;
  fusion_plans_before_ = runtime_.host.fusion_plans;
}

void StepRecords::add_loss(std::int64_t index, float loss) {
  if (index == 0)
    losses_.push_back(loss);
  else
    losses_.back() += loss;
}

void StepRecords::end(std::int64_t step, const StepTimes& times) {
  if (is_timed(step)) times_.push_back(times);
  fusion_plans_ = runtime_.host.fusion_plans - fusion_plans_before_;
  if (step == 0) host_work_of_first_step_ = host_work_.size();
}

std::vector<PreForwardSample> StepRecords::host_work() const {
  return {host_work_.begin() + static_cast<std::ptrdiff_t>(host_work_of_first_step_), host_work_.end()};
}

}  // namespace fp8lab
