#pragma once

#include <map>
#include <string>

#include "harness/predict/predict_traffic.h"

namespace fp8lab::closed_form {

struct RunFigures {
  /// By metric name. Figures of a point of time (end of forward, of backward, of the step) describe the last step.
  std::map<std::string, Bytes> bytes;
  PhasePeak peak;  ///< in setup, forward, backward or optimizer
};

/// The live bytes of a training run on one rank.
class RunAccount {
 public:
  /// `cell`, `layers`, `ends` and `optimizer` must outlive this object.
  RunAccount(const CellConfig& config, const CellNumbers& cell, const LayersAccount& layers, const EndsAccount& ends,
             const OptimizerNumbers& optimizer);

  RunFigures figures() const;

 private:
  /// The schedules of one micro-batch by phase, without its inputs.
  struct Passes {
    Schedule forward, backward;
  };
  Passes passes(MicroBatch at) const;
  /// True for a layer whose input is the training loop's.
  bool holds_input(LayerPosition position) const { return position.is_first && !language_model_; }
  /// A batch for validation; `first`: of the run.
  Schedule validation(bool first) const;
  Schedule update(bool first_step) const;

  Bytes retained() const { return keep_loss_ ? layers_.sum(&LayerAccount::retained) : 0; }
  /// Transposes of gathered weights that live from backward to the next forward.
  Bytes left_transposes() const { return layers_.sum(&LayerAccount::left_transposes); }
  Bytes host_copies_peak() const;
  Bytes gradients() const { return layers_.sum(&LayerAccount::gradients) + ends_.gradients; }
  Bytes results() const;
  Bytes before_last_update() const;
  Bytes end_of_forward() const;
  Bytes end_of_backward() const;
  Bytes end_of_step() const;

  const CellNumbers& cell_;
  const LayersAccount& layers_;
  const EndsAccount& ends_;
  const OptimizerNumbers& optimizer_;
  BucketNumbers buckets_;
  std::int64_t steps_, micro_batches_, validation_batches_;
  bool validates_after_steps_;
  bool keep_loss_, language_model_;
  Bytes stream_;  ///< one activation of the residual stream
  Bytes kept_;    ///< parameters
  Bytes
      standing_;  ///< parameters, recipe state, buckets, cached copies, the average of the weights: alive in all steps
  Bytes inputs_;  ///< x, and the targets if the loss has them
};

}  // namespace fp8lab::closed_form
