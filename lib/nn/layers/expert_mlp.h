#pragma once

#include <memory>
#include <string>

#include "nn/cores/activation_core.h"
#include "nn/cores/experts_core.h"
#include "nn/cores/norm_core.h"
#include "nn/cores/router_biases.h"
#include "nn/layer_config.h"
#include "nn/layers/shared_experts.h"
#include "nn/module.h"
#include "ops/experts/dispatch.h"
#include "ops/experts/routing.h"

namespace fp8lab {

/// A mixture of experts as one node: y(t) = sum over the top_k experts e of token t of w(t, e) W2_e act(W1_e n(t)) with
/// n = norm(x). No token is dropped. If the model has shared experts, their output, in the layer's type, is added to
/// this sum, in the layer's type.
///
/// If the form has biases, the router's logits have one, and so have all products of experts.
///
/// The router's weight [experts, hidden] has the build's type under every recipe. Its product reads 16 bits, which n
/// has anyway, and writes logits in FP32, so that the choice and the softmax see no rounding of the sum. RouteArgs
/// (backend/expert_kernels.h) defines the choice, ties and the weights w. Biases of the choice are RouterBiases.
/// An auxiliary loss (RouterRule::aux_loss) is one of this rank's tokens of a micro-batch. Only its gradient is
/// computed; it saves the logits and the counts of choices.
///
/// n is copied to a matrix with a row for each choice, sorted by expert. Under a quantizing recipe each expert's rows
/// are padded with zeros to the least number of rows that both products accept: 16 for scales per tensor, 128 and 32
/// for blocks (row_multiple(), which reverted fixes change). The matrix has the rows that suffice for every routing
/// (rows_of_choices()), whatever the counts of this batch are; rows that no expert has are zeros and are not
/// multiplied.
///
/// Under expert parallelism (Runtime::expert_group) this rank has one part of the experts. Rows of choices are then
/// sorted without padding and travel in high precision to the ranks that have their experts. There they are grouped and
/// padded, and outputs of experts travel back. In backward gradients travel likewise. Only rows that have arrived are
/// cast to eight bits: the tokens of all ranks of the group, in the order of ranks, as if one rank had all of them. But
/// a scale per tensor that follows from its own amax covers the experts of one rank. The gradient of an expert's weight
/// is the sum over all of these tokens.
///
/// With fp8_dispatch tokens, and in backward the gradients of outputs times their weights, are cast before they travel,
/// as DeepSeek-V3 does: each token once, each gradient once for each choice. Casts along rows have the same bits before
/// and after the way (see EightBitRows), so forward and the gradients of inputs do not change. The gradients of
/// weights read casts along columns. Of blocks the receiver makes these from the rows that came, which rounds twice
/// (LinearCore::received_input()); under scales that are powers of two this changes only values that are subnormal in
/// one of both casts. Outputs and the gradients of inputs travel back in the layer's type. A recipe whose scales follow
/// from a tensor's own amax is refused: a product reads one scale, and each sender has another.
///
/// Saves x, the row statistics, n, the routing and the grouping (under expert
/// parallelism all ranks' counts and the grouping of what arrived too), the first product's input, the copy of W1, the
/// activation's input in 16 bits, its output, the copy of W2 and the experts' outputs, of which the gradients of w are
/// products with dy. Shared experts save the same five of their products.
class ExpertMlp final : public Module {
 public:
  ExpertMlp(Build& build, const std::string& name, const LayerConfig& config);
  Variable forward(Runtime& runtime, const Variable& x) override;

 private:
  friend class ExpertMlpNode;

  /// The rows of this rank's choices, and of what it receives under expert parallelism.
  struct Rows {
    GroupedRows chosen;
    ExchangedRows exchanged{};

    bool travel() const { return static_cast<bool>(exchanged.counts); }
  };
  /// True if rows are cast before they travel.
  bool sends_eight_bits(const Runtime& runtime) const { return fp8_dispatch_ && runtime.expert_group != nullptr; }
  /// A collective under expert parallelism, as the next ones are.
  Rows group(Runtime& runtime, const Routing& routing, HolderId holder) const;
  /// The rows of own experts: of tokens `n`, and of the gradients of their outputs, a row for each choice.
  Operand tokens_to_experts(Runtime& runtime, const Rows& rows, const Tensor& n, HolderId holder) const;
  Operand gradients_to_experts(Runtime& runtime, const Rows& rows, Tensor of_choices, HolderId holder) const;
  QuantizedTensor send(Runtime& runtime, const Rows& rows, EightBitRows of_choices, HolderId holder) const;
  Tensor to_experts(Runtime& runtime, const Rows& rows, Tensor of_choices, HolderId holder) const;
  /// The way back to rows of choices.
  Tensor from_experts(Runtime& runtime, const Rows& rows, Tensor of_experts, HolderId holder) const;
  /// Reads the rows of each expert, for the passes of both products: waits for the device.
  void set_groups(Runtime& runtime, const Rows& rows);

  std::string name_;
  std::int64_t experts_;
  RouterRule rule_;
  std::int64_t row_multiple_;
  std::int64_t needed_multiple_;  ///< rows of a group that products accept
  bool fp8_dispatch_;
  std::unique_ptr<RouterBiases> biases_;  ///< null if the model has none
  ActivationCore activation_;
  NormCore norm_;
  std::unique_ptr<Parameter> router_;
  std::unique_ptr<Parameter> router_bias_;  ///< null if the model has no biases
  ExpertsCore fc1_;
  ExpertsCore fc2_;
  std::unique_ptr<SharedExperts> shared_;  ///< null if the model has none
};

}  // namespace fp8lab
