#pragma once

#include <vector>

#include "harness/eager/kept_results.h"
#include "harness/eager/parameter.h"

namespace fp8lab::eager {

inline constexpr Bytes kIndex = 8;  ///< bytes of a number of a row, a token or an expert

/// A mixture of experts in eager PyTorch, tensor by tensor (fp8lab_subjects/layers/experts.py, and the modules that
/// call it). Each token has `top_k` rows whatever its experts are, and grouped products write the rows of all experts
/// to one tensor. So no size depends on how even the choice is, unless ranks share the experts.
class Mixture {
 public:
  /// Appends its parameters to `parameters`, a layer's. All four must outlive it.
  Mixture(const Numbers& numbers, Heap& heap, std::vector<Parameter>& parameters, KeptResults& kept);

  struct How {
    bool copies_gradient;  ///< products copy the gradient of the output
    bool is_recomputed;    ///< Heap::free_read()
  };

  /// Biases and counts of the choice, as the model is built.
  void make();
  /// From the norm's output, which the caller owns, up to the rows that are added to tokens. `keeps`: backward follows.
  void run(bool keeps);
  /// Adds the rows to tokens, and frees what backward does not need. Returns the output.
  Block finish(bool keeps);
  /// Ends a recomputation, which stops before rows are added.
  void stop();
  /// From the gradient of the output, 0 if it is one number expanded, to the gradient of the norm's output. Frees
  /// `normed`, and `gradient`, which is 0 too if the residual stream has it.
  Block backward(Block& normed, Block& gradient, How how);

 private:
  /// A gated MLP: one product makes gate and up, or each has its own.
  struct Gated {
    std::vector<std::size_t> first;  ///< parameters of gate and up
    std::size_t last = 0;
    Bytes rows = 0, width = 0;
    std::vector<bool> is_kept;  ///< for `first`, then `last`: a recomputed layer keeps the result
    Block both = 0, gate = 0, silu = 0, up = 0, activated = 0;
  };

  /// The matrices and biases of all own experts.
  struct Biased {
    std::size_t weight = 0, biases = 0;
    Bytes columns = 0;      ///< columns of the rows that they make
    Block row_numbers = 0;  ///< for each row its expert
  };

  std::size_t weight(Bytes rows, Bytes columns, bool is_of_experts);
  Gated gated(Bytes rows, Bytes width, bool are_experts);
  /// Experts with clamped SwiGLU (clamped_experts.cpp).
  void make_clamped();
  /// The biases of each row, and in `padded` the biases of all experts with a row of zeros.
  Block biases_of_rows(Biased& of, Block& padded, bool keeps);
  void biases_backward(Biased& of);
  Block run_clamped(bool keeps);
  /// From the gradient of the outputs, which it frees, to the gradient of rows_.
  Block clamped_backward(Block& gradient);
  Block wide_logits(bool keeps);
  Block wide_router_backward(Block& of_logits);
  void run_experts(Gated& of, bool keeps);
  /// What the last product returns. It frees what backward does not need.
  Block output_of(Gated& of, bool keeps);
  /// True if ranks have the experts between them (fp8lab_subjects/layers/dispatch.py). Then rows_ are the rows of own
  /// experts. Choices are even: equally many rows come and go.
  bool dispatches() const { return numbers_.expert_parallel > 1; }
  void dispatch();
  /// The rows that experts return, on the ranks of their tokens. Frees `outputs`.
  Block moved_back(Block& outputs);
  void dispatch_backward(Block& of_outputs);
  Block moved_back_backward(Block& of_rows);
  void route(bool keeps);
  /// The numbers of each token's experts, if the choice reads other scores than the weights.
  void choose();
  /// Backward of `of`, from the gradient of its output to the gradient of its input. Frees `input` if it is not null.
  Block backward_of(Gated& of, Block* input, Block& gradient, bool copies_gradient);
  /// One product, whose gradient of the weight comes first.
  Block product_backward(std::size_t weight, Bytes bytes_of_input);
  /// Backward from the weights of rows to the gradient of the router's logits.
  Block route_backward(Block& of_weights);
  /// A tensor of zeros to which rows are added: in place, but in a second tensor if a TorchDispatchMode watches.
  Block scattered(Bytes bytes);
  void accumulate(Block& sum, Block& more, Bytes bytes);

  Bytes choices() const { return numbers_.tokens * numbers_.top_k; }
  Bytes rows_of_choices() const { return choices() * numbers_.hidden * numbers_.element; }
  Bytes scores() const { return numbers_.tokens * numbers_.experts * kF32; }
  Block allocate(Bytes bytes) { return heap_.allocate(bytes, Owner::kSaved); }
  Block temporary(Bytes bytes) { return heap_.allocate(bytes, Owner::kTemporaries); }
  void done(Block& block, bool keeps) {
    if (!keeps) kept_.drop(block);
  }

  const Numbers& numbers_;
  Heap& heap_;
  std::vector<Parameter>& parameters_;
  KeptResults& kept_;
  std::size_t router_ = 0, router_biases_ = 0;
  bool keeps_logits_;
  Gated experts_, shared_;
  Biased fc1_, fc2_;

  Block scores_ = 0, best_ = 0, chosen_ = 0, sums_ = 0, order_ = 0, weights_ = 0, tokens_ = 0, rows_ = 0, ends_ = 0;
  Block wide_input_ = 0, wide_weight_ = 0;                                        ///< the FP32 router's
  Block both_ = 0, gate_ = 0, up_ = 0, sigmoid_ = 0, gated_ = 0, activated_ = 0;  ///< clamped SwiGLU's
  Block arrival_order_ = 0;  ///< numbers of the rows that arrived, by expert
  Block outputs_ = 0;        ///< what experts return, in FP32
  bool recomputed_ = false;  ///< how.is_recomputed of the running backward
  Block counts_ = 0, weighted_ = 0, out_ = 0;
};

}  // namespace fp8lab::eager
