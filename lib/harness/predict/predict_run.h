#pragma once

#include <map>
#include <string>

#include "harness/predict/predict_optimizer.h"

namespace fp8lab::closed_form {

/// The account of a full training run on one rank.
class RunAccount {
 public:
  /// All outlive it.
  RunAccount(const CellConfig& cell, const Scenario& scenario, const LayerAccount& layer,
             const OptimizerNumbers& optimizer);

  /// By metric name. Marks are the last step's.
  std::map<std::string, Bytes> figures() const;

 private:
  /// A step between its inputs and their end, by phase.
  struct Step {
    Schedule forward, backward, update;
  };
  Step step(bool is_first) const;

  Bytes retained() const { return keep_loss_ ? layers_ * layer_.retained : 0; }
  Bytes results() const;
  Bytes before_last_update() const;
  Bytes end_of_forward() const;
  Bytes end_of_backward() const;
  Bytes end_of_step() const;

  const Scenario& scenario_;
  const LayerAccount& layer_;
  const OptimizerNumbers& optimizer_;
  std::int64_t layers_, steps_;
  bool keep_loss_;
  Bytes stream_;
  Bytes kept_;      ///< parameters
  Bytes standing_;  ///< parameters, recipe state and an average of the weights
  Bytes inputs_;    ///< x, and the target where the loss has one
};

}  // namespace fp8lab::closed_form
