#pragma once

#include <cstdint>
#include <vector>

#include "backend/device.h"
#include "ops/experts/grouped_gemm.h"

// The way of tokens through a mixture of experts: which experts a token goes to, in which row, and back. The rules are
// with the kernels (backend/expert_kernels.h).
namespace fp8lab {

/// How logits become a choice of experts and their weights.
struct RouterRule {
  std::int64_t choices = 1;
  bool sigmoid = false;         ///< in proportion to sigmoids of logits, not to exponentials
  float scale = 1.0f;           ///< what the weights of a token add up to
  std::int64_t groups = 1;      ///< runs of experts of equal length
  std::int64_t top_groups = 1;  ///< groups whose experts can be chosen
  float aux_loss = 0.0f;        ///< coefficient of the auxiliary loss; 0: there is none
};

/// What balances the choice of experts; both f32 [experts].
struct RouterBalance {
  Tensor biases;    ///< added to the sigmoids of logits for the choice only; absent: no balance
  Tensor counts{};  ///< choices of each expert are added to it; absent: nothing is counted
};

/// The experts that each token chose, and their weights.
struct Routing {
  Tensor experts;   ///< i32 [tokens, choices]
  Tensor weights;   ///< f32 [tokens, choices]
  Tensor slopes{};  ///< f32 [tokens, choices], for backward; absent unless the rule has sigmoids
  Tensor logits{};  ///< with an auxiliary loss, for backward: as route() got them
  Tensor counts{};  ///< likewise, f32 [experts]: choices of each expert
};
/// `logits`: f32 [tokens, experts].
Routing route(Device& device, const Tensor& logits, const RouterRule& rule, HolderId holder,
              const RouterBalance& balance = {});
/// The gradient of the logits in `dtype`; `grad_weights`: f32 [tokens, choices].
///
/// With an auxiliary loss its gradient is added, times `share`, what the loss of these tokens counts in the loss of the
/// step. The loss is aux_loss times the number of experts, times the sum over experts of the share of all choices that
/// are the expert's, times the mean over tokens of its probability (RouteBackwardArgs). It is `aux_loss` if every
/// expert has the same number of tokens. Shares are constants for the gradient (Switch Transformer, Megatron-LM).
Tensor route_backward(Device& device, const Routing& routing, const RouterRule& rule, const Tensor& grad_weights,
                      const TensorSpec& spec, HolderId holder, double share = 1.0);

/// Moves the biases by `rate` towards equal counts, and sets the counts to 0 (BalanceExpertsArgs).
void balance_experts(Device& device, const RouterBalance& balance, float rate);

/// Rows of the matrix of all choices that are enough for every routing: each expert's rows are padded to a multiple of
/// `multiple`. Memory depends on no count this way, so that nothing waits for counts to allocate, and sizes are known
/// before any token is; with `multiple` 1 it is choices * tokens.
std::int64_t rows_of_choices(std::int64_t tokens, std::int64_t choices, std::int64_t experts, std::int64_t multiple);

/// Rows of choices, sorted by expert.
struct GroupedRows {
  Tensor rows;     ///< i32 [tokens, choices]: the row of each choice
  Tensor sources;  ///< i32 [rows, 1]: the choice of each row; -1 for padding
  Tensor begins;   ///< i32 [experts + 1, 1]
};
GroupedRows group_rows(Device& device, const Tensor& experts, std::int64_t count, std::int64_t multiple,
                       HolderId holder);
/// The groups of all experts, read from `begins`: waits for the device. Without values (meta), groups of nearly one
/// size.
std::vector<RowGroup> read_groups(Device& device, const GroupedRows& grouped, std::int64_t multiple);

/// The tokens of `x` in the rows of their choices, times the weights if given; rows of padding are 0. Without weights
/// `x` may have any type: its elements are moved.
Tensor permute(Device& device, const Tensor& x, const GroupedRows& grouped, const Tensor& weights, HolderId holder);
/// The same without weights, into `out`: a row for each source, any strides, and the type of `x`.
void permute_into(Device& device, const Tensor& x, const GroupedRows& grouped, const Tensor& out);
/// The sum of each token's rows, times the weights if given.
Tensor unpermute(Device& device, const Tensor& x, const GroupedRows& grouped, const Tensor& weights, HolderId holder);
/// The gradient of the weights of unpermute(), f32 [tokens, choices].
Tensor unpermute_weights(Device& device, const Tensor& x, const GroupedRows& grouped, const Tensor& grad_out,
                         HolderId holder);

}  // namespace fp8lab
