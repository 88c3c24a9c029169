#include <algorithm>
#include <optional>

#include "harness/predict/predict_parts.h"
#include "harness/predict/predict_product.h"

namespace fp8lab::closed_form {
namespace {

constexpr Bytes kI32 = 4;

/// The experts of a rank.
std::int64_t own_experts(const CellNumbers& cell) { return cell.shape.experts / cell.shape.expert_ranks; }

/// The most choices that go to the experts of one rank. A token's experts are different ones.
std::int64_t most_choices(const CellNumbers& cell) {
  return cell.shape.expert_ranks * cell.shape.tokens * std::min(cell.shape.top_k, own_experts(cell));
}

/// Rows of these choices if each expert with tokens wastes the most rows that padding can.
std::int64_t rows_of_choices(const CellNumbers& cell) {
  const std::int64_t all = most_choices(cell);
  const std::int64_t in_16_bits = cell.decisions.pad_only_eight_bits ? 1 : 8;
  const std::int64_t in_8_bits = cell.decisions.pad_groups_to_blocks ? cell.casts.recipe.group_rows : 1;
  const std::int64_t multiple = cell.casts.operands ? in_8_bits : in_16_bits;
  const std::int64_t wasted = std::min(own_experts(cell), all) * (multiple - 1);
  return (all + wasted) / multiple * multiple;
}

/// The numbers of the products of experts: over rows of choices, with the parameters of the own experts,
/// which the ranks with the same experts shard.
CellNumbers of_choices(const CellNumbers& cell) {
  CellNumbers out = cell;
  out.shape.tokens = rows_of_choices(cell);
  out.shape.matrices = own_experts(cell);
  out.sharding.shards = cell.sharding.shards / cell.shape.expert_ranks;
  out.sharding.of_part = cell.shape.expert_ranks > 1;
  return out;
}

CellNumbers with_rows(CellNumbers cell, std::int64_t rows) {
  cell.shape.tokens = rows;
  return cell;
}

/// Rows of choices that travel between ranks, under expert parallelism. What is sent and what is received are both
/// alive while they do, and so are what is received and what is grouped by expert while the one becomes the other. On
/// the way to experts rows may be in eight bits.
struct Travel {
  explicit Travel(const CellNumbers& cell)
      : travels(cell.shape.expert_ranks > 1),
        eight_bits(cell.shape.fp8_dispatch && cell.casts.operands),
        row(cell.shape.hidden * cell.shape.element),
        row_scales(eight_bits && cell.casts.recipe.sent_scales ? cell.casts.recipe.sent_scales(cell.shape.hidden) : 0),
        row_there(eight_bits ? cell.shape.hidden + row_scales : row),
        choices(cell.shape.tokens * cell.shape.top_k),
        most(most_choices(cell)),
        all_ranks(cell.shape.expert_ranks * choices),
        counts(cell.shape.expert_ranks * cell.shape.experts * kI32),
        sent(choices * row),
        scale(eight_bits && cell.casts.recipe.per_tensor ? kF32 : 0),
        cast_tokens(cell.cast_rowwise(cell.shape.hidden).both),
        cast_choices(with_rows(cell, choices).cast_rowwise(cell.shape.hidden).both) {}

  /// From the rows sent to those `grouped` by expert. A scale of the full tensor, which stays, is in place already.
  Schedule there(Bytes grouped) const {
    if (!travels) return {};
    return allocate(most * row_there) + release(choices * row_there) + allocate(grouped - scale) +
           release(most * row_there);
  }
  /// Tokens in eight bits, a row for each choice.
  Schedule sent_tokens() const {
    return allocate(cast_tokens) + allocate(choices * row_there) + release(cast_tokens - scale);
  }
  /// The cast of gradients of choices, of which scales of blocks are copied without padding.
  Schedule sent_gradients() const {
    const Bytes data = choices * (row_there - row_scales);
    return allocate(cast_choices) + release(sent) + allocate(choices * row_scales) +
           release(cast_choices - data - scale);
  }
  Schedule back(Bytes grouped) const {
    if (!travels) return {};
    return allocate(most * row) + release(grouped) + allocate(sent) + release(most * row);
  }
  /// The bytes of all own choices in a row each, which are `grouped` if nothing travels.
  Bytes of_choices(Bytes grouped) const { return travels ? sent : grouped; }
  Exchanges exchanges() const {
    if (!travels) return {};
    return {.calls = 2, .bytes = all_ranks * (row_there + row), .scales = all_ranks * row_scales};
  }

  bool travels, eight_bits;
  Bytes row, row_scales;
  Bytes row_there;  ///< on the way to experts, scales included
  std::int64_t choices, most;
  std::int64_t all_ranks;  ///< rows that all ranks send
  Bytes counts;            ///< the numbers of choices of all ranks, by expert
  Bytes sent;
  Bytes scale;  ///< the one of the full tensor
  Bytes cast_tokens, cast_choices;
};

/// The bytes of the choice of each row and of the first row of each expert. Under expert parallelism rows that
/// are sent have no padding, and the counts of all ranks and the same for received rows, which have it, are added.
Bytes grouping_of(const CellNumbers& cell, const Travel& travel) {
  const Bytes grouped = rows_of_choices(cell) * kI32;
  if (!travel.travels) return grouped + (cell.shape.experts + 1) * kI32;
  return cell.shape.tokens * cell.shape.top_k * kI32 + (cell.shape.experts + 1) * kI32 + travel.counts +
         most_choices(cell) * kI32 + grouped + (own_experts(cell) + 1) * kI32;
}

/// The MLP of shared experts, which reads the norm's output.
struct SharedExperts {
  explicit SharedExperts(const CellNumbers& cell)
      : n(cell.plain(cell.shape.hidden)),
        fc1(cell.of_mlp_product(2), cell.shape.hidden, cell.shape.form.activation_inputs * width(cell)),
        fc2(cell.of_mlp_product(3), width(cell), cell.shape.hidden) {}

  static std::int64_t width(const CellNumbers& cell) { return cell.shape.shared_experts * cell.shape.ffn; }
  Bytes saved() const {
    return (fc1.casts ? fc1.x.kept : 0) + fc1.saved_weight() + fc1.plain_y + fc2.saved_x() + fc2.saved_weight();
  }
  /// The output is added to the output of chosen experts.
  Schedule forward(Run run) const {
    return fc1.begin(run) + fc1.forward(run) + fc2.begin(run) + fc2.forward_making(run) +
           release(run == Run::kSaving ? n : n - fc2.kept_y());
  }
  /// Leaves a gradient of `n`.
  Schedule backward() const {
    return fc2.backward(false) + fc1.make_gradient() + release(fc2.plain_x) + fc1.backward_making();
  }

  Bytes n;
  Product fc1, fc2;
};

struct Experts {
  explicit Experts(const CellNumbers& cell)
      : norm(cell),
        travel(cell),
        n(cell.plain(cell.shape.hidden)),
        router(table_parameter(cell, cell.shape.experts, cell.shape.hidden)),
        added_router(cell.phase.adds_gradients ? router.unsharded : 0),
        router_bias(cell.shape.form.bias ? vector_parameter(cell, cell.shape.experts) : ParameterNumbers{}),
        added_router_bias(cell.phase.adds_gradients ? router_bias.unsharded : 0),
        logits(cell.shape.tokens * cell.shape.experts * kF32),
        grad_logits(cell.shape.tokens * cell.shape.experts * cell.shape.element),
        weights(cell.shape.tokens * cell.shape.top_k * kF32),
        slopes(cell.shape.sigmoid_router ? weights : 0),
        auxiliary(cell.shape.aux_loss ? logits + cell.shape.experts * kF32 : 0),
        chosen(cell.shape.tokens * cell.shape.top_k * kI32),
        grouping(chosen + grouping_of(cell, travel)),
        fc1(of_choices(cell.of_mlp_product(0)), cell.shape.hidden, cell.shape.activated),
        fc2(of_choices(cell.of_mlp_product(1)), cell.shape.ffn, cell.shape.hidden),
        outputs(travel.of_choices(fc2.plain_y)),
        received(travel.there(of_choices(cell).cast_rowwise(cell.shape.hidden).both) +
                 of_choices(cell).cast_columnwise(cell.shape.hidden).schedule()) {
    if (cell.shape.shared_experts > 0) shared.emplace(cell);
  }

  Bytes saved() const {
    return norm.statistics + n + chosen + weights + slopes + auxiliary + grouping + fc1.saved_x() + fc1.saved_weight() +
           fc1.plain_y + fc2.saved_x() + fc2.saved_weight() + outputs + (shared ? shared->saved() : 0);
  }
  /// The part of saved() in shells.
  Bytes saved_copies() const {
    return fc1.saved_copy + fc2.saved_copy + (shared ? shared->fc1.saved_copy + shared->fc2.saved_copy : 0);
  }
  /// What a recomputed layer keeps of its first forward, and the part of it that saved() counts too.
  Bytes kept() const {
    return fc1.kept_y() + fc2.kept_y() + (shared ? shared->fc1.kept_y() + shared->fc2.kept_y() : 0);
  }
  Bytes kept_of_saved() const {
    return fc1.kept_y() + (travel.travels ? 0 : fc2.kept_y()) + (shared ? shared->fc1.kept_y() : 0);
  }
  /// The operand of the first product, from tokens.
  Schedule operand() const {
    if (travel.eight_bits) return travel.sent_tokens() + received;
    return allocate(travel.of_choices(fc1.plain_x)) + travel.there(fc1.plain_x) +
           (fc1.casts ? fc1.x.schedule() + release(fc1.plain_x) : Schedule{});
  }
  Schedule forward(Run run) const {
    const Schedule routed = allocate(n) + norm.forward() + allocate(logits) + allocate(chosen + weights + slopes) +
                            (auxiliary > 0 ? allocate(auxiliary - logits) : release(logits)) + allocate(grouping);
    return fc1.begin(run) + routed + operand() + fc1.multiply(run) + fc2.begin(run) + fc2.forward_making(run) +
           travel.back(run == Run::kSaving ? fc2.plain_y : fc2.plain_y - fc2.kept_y()) + allocate(n) +
           (shared ? shared->forward(run) : Schedule{});
  }
  Schedule backward(bool consuming) const {
    const Schedule there = travel.eight_bits ? travel.sent_gradients() + received : travel.there(fc2.plain_y);
    const Schedule permuted = allocate(outputs) + allocate(weights) + release(consuming ? n : 0) + there;
    const Schedule experts = (travel.eight_bits ? fc2.backward_received() : fc2.backward()) + fc1.make_gradient() +
                             release(fc2.plain_x) + fc1.backward_making() + travel.back(fc1.plain_x) + allocate(n) +
                             release(travel.of_choices(fc1.plain_x) + (shared ? n : 0));
    const Schedule of_router =
        allocate(grad_logits) + release(weights) + allocate(router_bias.unsharded, Owner::kGradients) +
        release(added_router_bias, Owner::kGradients) + allocate(n) + release(n) +
        allocate(router.unsharded, Owner::kGradients) + release(added_router, Owner::kGradients) + release(grad_logits);
    return (shared ? shared->backward() : Schedule{}) + permuted + experts + of_router + norm.backward();
  }

  Norm norm;
  Travel travel;
  Bytes n;  ///< the norm's output, as large as the layer's
  ParameterNumbers router;
  Bytes added_router;
  ParameterNumbers router_bias;  ///< empty without biases
  Bytes added_router_bias;
  Bytes logits, grad_logits;
  Bytes weights;    ///< bytes of the choices' weights; their gradient has the same number
  Bytes slopes;     ///< bytes of the slopes of sigmoids
  Bytes auxiliary;  ///< the logits and counts of an auxiliary loss
  Bytes chosen;     ///< numbers of experts
  Bytes grouping;   ///< the row of each choice, and grouping_of()
  Product fc1, fc2;
  Bytes outputs;      ///< the outputs of experts, a row for each choice
  Schedule received;  ///< rows in eight bits come, and get their orientation along columns
  std::optional<SharedExperts> shared;
};

}  // namespace

bool may_lack_blocks(const CellNumbers& cell) {
  if (cell.decisions.pad_groups_to_blocks || !cell.casts.operands || cell.shape.top_k == 0) return false;
  const bool have_all = cell.shape.top_k == cell.shape.experts;  // each expert has all tokens
  return !have_all || cell.shape.expert_ranks * cell.shape.tokens % cell.casts.recipe.group_rows != 0;
}

Node expert_mlp(const CellNumbers& cell) {
  const Experts experts(cell);
  Node node;
  node.out = experts.n;
  node.kept = experts.kept();
  node.keeps_input = true;
  node.forward_to_experts = node.backward_to_experts = experts.travel.exchanges();
  if (experts.travel.travels) node.forward_counts = {.calls = 1, .bytes = experts.travel.counts};
  if (cell.shape.router_biases) node.recipe_state = node.router_biases = cell.shape.experts * kF32;
  node.parameters = experts.norm.parameters;
  node.parameters.push_back(experts.router);
  if (cell.shape.form.bias) node.parameters.push_back(experts.router_bias);
  experts.fc1.add_to(node);
  experts.fc2.add_to(node);
  if (experts.shared) experts.shared->fc1.add_to(node);
  if (experts.shared) experts.shared->fc2.add_to(node);
  node.saved = experts.saved();
  node.forward = experts.forward(Run::kSaving);
  node.backward = experts.backward(true);
  node.backward_beside_residual = experts.backward(false);
  set_recorded(node, cell.decisions.module_shells, experts.saved_copies(), node.saved - experts.kept_of_saved(),
               [&](Run run) { return experts.forward(run); });
  return node;
}

}  // namespace fp8lab::closed_form
