#pragma once

#include <vector>

#include "harness/predict/predict_layer.h"

// What a language model has before and after its layers: embedding, last norm, head and loss.
namespace fp8lab::closed_form {

/// The parameters form one group, the root's, which is gathered once in a micro-batch and freed after backward. Without
/// a vocabulary all sums are 0, and the output of the layers is the loss's input. `cell` must outlive this object.
class EndsAccount {
 public:
  explicit EndsAccount(const CellNumbers& cell);

  /// The construction of the parameters; if sharded, in two stages, of which the second comes after the layers'.
  Schedule made() const { return made_by(&ParameterNumbers::initialized); }
  Schedule declared() const { return made_by(&ParameterNumbers::made_unsharded); }
  Schedule sharded() const { return made(); }

  /// From the input to the first layer's.
  Schedule enter(bool evaluates) const;
  /// From the last layer's output to the model's.
  Schedule leave() const;
  /// What the head frees once the output is there: the norm's, if no gradient of the head's weight needs it.
  Schedule dropped_before_loss() const { return release(head_is_frozen() ? stream_ : 0); }
  /// From the model's output to the loss.
  Schedule loss() const;
  /// From the gradient of the loss, which it frees, to the gradient of the last layer's output.
  Schedule backward(MicroBatch at) const;
  /// From the gradient of the first layer's input to the end of backward. Of a frozen embedding: from the gradient that
  /// the first trained part has left, if any.
  Schedule embedding_backward(MicroBatch at, bool has_gradient) const;
  /// From the last layer's output to the end of a validation batch.
  Schedule validation() const;

  std::vector<ParameterNumbers> parameters;
  Bytes kept = 0;
  Bytes gradients = 0;  ///< gradients of shards, alive from the step's first backward to the optimizer's step
  Bytes inputs = 0;     ///< tokens and targets
  Bytes output = 0;     ///< what the training loop keeps of the model's output until the next forward
  Bytes held = 0;       ///< alive between the passes, without the last layer's output
  GradientBytes reduced_gradients;
  Gather gather;            ///< gather of the group
  std::int64_t groups = 0;  ///< groups of parameters

 private:
  bool head_is_frozen() const { return frozen_ && tied_; }
  Schedule made_by(Schedule ParameterNumbers::* stage) const;

  const CellNumbers& cell_;
  bool present_, sharded_, adds_, tied_, dropout_;
  bool frozen_;                                           ///< the embedding has no gradient
  Bytes stream_;                                          ///< one activation of the residual stream
  Bytes by_token_ = 0;                                    ///< an f32 for each token
  Bytes of_loss_ = 0;                                     ///< what lives from the loss to its backward
  Bytes statistics_ = 0, logits_ = 0;                     ///< statistics of the last norm; logits in parameters' type
  Bytes table_ = 0, positions_ = 0, norm_gradients_ = 0;  ///< gradients of unsharded parameters
};

}  // namespace fp8lab::closed_form
