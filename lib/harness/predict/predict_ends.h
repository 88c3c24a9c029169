#pragma once

#include "harness/predict/predict.h"
#include "harness/predict/predict_parameters.h"

// What a language model has before and after its layers, which the runtime does not run: embedding, last norm, head and
// loss. The sums and schedules here are therefore compared with no run.
namespace fp8lab::closed_form {

/// The embedding is a group of parameters of its own; so are the last norm and the head. All sums are 0, and the output
/// of the layers is the loss's input, without a LanguageModel.
class EndsAccount {
 public:
  EndsAccount(const CellNumbers& cell, const LanguageModel* model);

  /// The construction of the parameters.
  Schedule made() const;
  /// Before the layers: gathers the embedding.
  Schedule enter() const;
  /// From the output of the layers to the loss.
  Schedule leave(bool first_of_step) const;
  /// From the gradient of the loss to the gradient of the layers' output.
  Schedule backward(bool first_of_step) const;
  /// After the layers' backward: the gradient of the embedding.
  Schedule embedding_backward(bool first_of_step) const;

  std::vector<ParameterNumbers> parameters;
  Bytes kept = 0;
  Bytes gradients = 0;  ///< sharded gradients, alive from the step's first backward to the optimizer's step
  Bytes inputs = 0;     ///< token ids and labels
  Bytes held = 0;       ///< alive between the passes
  Bytes unsharded_gradients = 0;
  Gather forward_gather, backward_gather;  ///< of both groups
  std::int64_t groups = 0;                 ///< of parameters

 private:
  struct Group {
    Bytes gradients = 0, unsharded_gradients = 0;
    Gather forward, backward;

    void add(const ParameterNumbers& parameter);
  };
  Schedule gathered(const Gather& gather) const { return sharded_ ? gather.schedule() : Schedule{}; }
  Schedule resharded(const Group& group) const;
  /// Frees the unsharded parameters of a group and reduce-scatters its gradients.
  Schedule reduced(const Group& group, bool first_of_step) const;
  /// Logits and loss of `tokens` tokens, forward and backward; at the end of backward their gradients are alive.
  Schedule loss_forward(std::int64_t tokens) const;
  Schedule loss_backward(std::int64_t tokens) const;
  /// The products of head and logits' gradient.
  Schedule head_backward(std::int64_t tokens, bool first) const;

  bool present_, sharded_, reshards_, adds_;
  std::int64_t tokens_, chunks_, vocabulary_;
  Bytes element_, stream_, statistics_ = 0, table_ = 0, norm_gradients_ = 0;
  Group embedding_, head_;
};

}  // namespace fp8lab::closed_form
