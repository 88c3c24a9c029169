#pragma once

#include <string>
#include <vector>

#include "comm/process_group.h"
#include "harness/cell/cell.h"
#include "harness/reference/model.h"
#include "harness/train/training_run.h"

namespace fp8lab {

/// The biases of routers by their definition, from the first step on. They go on from step to step, so that a bias that
/// the runtime loses is found too.
class ExpertBalance {
 public:
  explicit ExpertBalance(const CellConfig& cell) : cell_(cell) {}

  /// For the choices of the present step.
  const reference_step::ExpertValues& biases() const { return biases_; }
  void saw_micro_batch(const reference_step::Step& step);
  /// Ends the step. Collective over `world`, which may be null. Returns what is wrong with the runtime's biases after
  /// it, in words, an entry for each router; empty within the rule.
  std::vector<std::string> wrong_biases(const StepValues& seen, ProcessGroup* world);

 private:
  const CellConfig& cell_;
  reference_step::ExpertValues biases_, tokens_;
};

}  // namespace fp8lab
