#include "harness/predict/predict_nodes.h"

#include <fmt/core.h>

#include "core/check.h"
#include "harness/predict/predict_parts.h"
#include "harness/predict/predict_product.h"

namespace fp8lab::closed_form {
namespace {

// Each struct below is one node of the autograd graph: its members are sizes in bytes, its functions return the
// schedule of allocations and releases that the node makes in forward and in backward, in the order in which it makes
// them. Sums of such schedules make up the peak; what forward leaves allocated is what backward finds.

// A tensor that is exchanged in eight bits counts among what its consumer saves, and not as the producer's output.

Node linear(const CellNumbers& cell, std::int64_t in, std::int64_t out, Exchanged exchanged = {}) {
  const Product product(cell, in, out, false, exchanged);
  Node node;
  node.out = product.plain_y;
  node.kept = product.kept_y();
  node.keeps_result = product.kept;
  node.keeps_input = !cell.casts.operands;
  node.saved = product.x.kept + product.saved_weight();
  product.add_to(node);
  node.forward = product.begin(Run::kSaving) + product.forward();
  node.backward = product.backward();
  node.backward_beside_residual = product.backward(false);
  set_recorded(node, cell.decisions.module_shells, product.saved_copy, node.saved + product.exchanged_x,
               [&](Run run) { return product.begin(run) + product.forward(run); });
  return node;
}

Node norm_linear(const CellNumbers& cell, std::int64_t out, Exchanged exchanged = {}) {
  const Norm norm(cell);
  const Product product(cell, cell.shape.hidden, out, false, exchanged);
  Node node;
  node.out = exchanged.y ? 0 : product.plain_y;
  node.kept = product.kept_y();
  node.keeps_result = product.kept;
  node.keeps_input = true;
  node.saved = norm.statistics + product.saved_x() + product.saved_weight();
  node.parameters = norm.parameters;
  product.add_to(node);
  node.forward = product.begin(Run::kSaving) + norm.forward() + product.forward_making();
  node.backward = product.backward() + norm.backward();
  set_recorded(node, cell.decisions.module_shells, product.saved_copy, node.saved,
               [&](Run run) { return product.begin(run) + norm.forward() + product.forward_making(run); });
  return node;
}

/// A norm as a layer: of its input it saves the statistics, and backward reads the input.
Node norm_layer(CellNumbers cell, std::int64_t parameters, std::int64_t statistics) {
  cell.shape.form.norm_parameters = parameters;
  cell.shape.form.norm_statistics = statistics;
  const Norm norm(cell);
  Node node;
  node.out = norm.y;
  node.keeps_input = true;
  node.saved = norm.statistics;
  node.parameters = norm.parameters;
  node.forward = norm.forward() + allocate(norm.y);
  node.backward = norm.backward();
  set_recorded(node, Shells::kEmpty, 0, node.saved, [&](Run) { return node.forward; });
  return node;
}

/// The rows of each expert's group. Even: equal shares of the tokens. Uneven: multiples of gcd(tokens, 128); the first
/// expert has one share for each expert, each later one has one less, but the second one has none.
std::vector<std::int64_t> group_rows(const CellNumbers& cell) {
  std::int64_t unit = 1;
  while (cell.shape.uneven_split && unit < 128 && cell.shape.tokens % (2 * unit) == 0) unit *= 2;
  const auto shares = [&](std::int64_t expert) -> std::int64_t {
    if (!cell.shape.uneven_split) return 1;
    return expert == 1 ? 0 : cell.shape.experts - expert;
  };
  std::int64_t all = 0;
  for (std::int64_t i = 0; i < cell.shape.experts; ++i) all += shares(i);
  std::vector<std::int64_t> rows;
  std::int64_t so_far = 0, given = 0;
  for (std::int64_t i = 0; i < cell.shape.experts; ++i) {
    so_far += shares(i);
    rows.push_back(cell.shape.tokens / unit * so_far / all * unit - given);
    given += rows.back();
  }
  return rows;
}

/// A product for each expert. Each step of a pass runs for all experts before the next. Copies of weights are kept for
/// backward even if weights are sharded, unless modules cache them. Backward clears the data of the inputs, not their
/// scales per tensor.
Node grouped_linear(const CellNumbers& cell) {
  std::vector<Product> products;
  for (const std::int64_t rows : group_rows(cell)) {
    CellNumbers group = cell;
    group.shape.tokens = rows;
    products.emplace_back(group, cell.shape.hidden, cell.shape.hidden, cell.phase.cached == Cached::kNever);
  }
  Node node;
  node.out = cell.plain(cell.shape.hidden);
  node.keeps_input = !cell.casts.operands;
  Bytes shelled = 0;
  for (const Product& product : products) {
    product.add_to(node);
    node.saved += product.x.kept + product.saved_weight();
    shelled += product.saved_copy + (cell.casts.recipe.per_tensor ? kF32 : 0);
  }
  const auto forward = [&](Run run) {
    Schedule begun, inputs, weights, dropped;
    for (const Product& product : products) {
      begun += product.begin(run);
      const Bytes transposed = run == Run::kSaving ? product.transposed_in_forward : product.transposed_when_recorded;
      inputs += product.x.schedule();
      weights += allocate(transposed, Owner::kGathered) + product.cast_for_both(run);
      dropped += release(product.x.both - product.x.kept);
    }
    return begun + inputs + weights + allocate(node.out) + dropped;
  };
  const auto backward = [&](bool consuming) {
    const Schedule gradient_released = release(consuming ? node.out : 0);
    Schedule casts, cleared, gradients, casts_released;
    for (const Product& product : products) {
      const Schedule bias = product.has_bias ? allocate(product.bias.unsharded, Owner::kGradients) +
                                                   release(product.added_bias, Owner::kGradients)
                                             : Schedule{};
      casts += bias + product.grad_y.schedule();
      cleared += release(product.cleared, Owner::kGathered);
      gradients +=
          allocate(product.weight.unsharded, Owner::kGradients) + release(product.added_weight, Owner::kGradients);
      casts_released += release(product.grad_y.both);
    }
    const Schedule products_made = allocate(node.out) + cleared + gradients;
    if (!cell.casts.operands) return casts + products_made + gradient_released;
    return casts + gradient_released + products_made + casts_released;
  };
  node.forward = forward(Run::kSaving);
  node.backward = backward(true);
  node.backward_beside_residual = backward(false);
  set_recorded(node, cell.decisions.grouped_shells, shelled, node.saved, forward);
  return node;
}

struct Mlp {
  explicit Mlp(const CellNumbers& cell, bool keeps_copies = false)
      : norm(cell),
        fc1(cell.of_mlp_product(0), cell.shape.hidden, cell.shape.activated, keeps_copies),
        fc2(cell.of_mlp_product(1), cell.shape.ffn, cell.shape.hidden, keeps_copies) {}

  Node node() const {
    Node node;
    node.out = fc2.plain_y;
    node.kept = fc1.kept_y() + fc2.kept_y();
    node.keeps_result = fc2.kept;
    node.keeps_input = true;
    node.parameters = norm.parameters;
    fc1.add_to(node);
    fc2.add_to(node);
    node.backward = backward(true);
    node.backward_beside_residual = backward(false);
    return node;
  }
  Schedule backward(bool consuming) const {
    return fc2.backward(consuming) + fc1.make_gradient() + release(fc2.plain_x) + fc1.backward_making() +
           norm.backward();
  }

  Norm norm;
  Product fc1, fc2;
};

Node norm_mlp(const CellNumbers& cell) {
  const Mlp mlp(cell);
  const Product &fc1 = mlp.fc1, &fc2 = mlp.fc2;
  Node node = mlp.node();
  node.saved =
      mlp.norm.statistics + fc1.saved_x() + fc1.saved_weight() + fc1.plain_y + fc2.saved_x() + fc2.saved_weight();
  const auto forward = [&](Run run) {
    return fc1.begin(run) + mlp.norm.forward() + fc1.forward_making(run) + fc2.begin(run) + fc2.forward_making(run);
  };
  node.forward = forward(Run::kSaving);
  set_recorded(node, cell.decisions.module_shells, fc1.saved_copy + fc2.saved_copy, node.saved - fc1.kept_y(), forward);
  return node;
}

/// The MLP as a chain of operations (operation fuser). Each operation frees the orientation of its weight's copy that
/// backward does not read, and saves its tensors as soon as it is done; so if nothing is to be saved, no tensor
/// outlives its operation. Sharded weights are no exception: their copies are saved.
Node fused_mlp(const CellNumbers& cell) {
  const Mlp mlp(cell, true);
  const Product &fc1 = mlp.fc1, &fc2 = mlp.fc2;
  const auto product = [](const Product& of, Run run) {
    return of.make_operand() + of.multiply(run) + release(of.copy.both - of.copy.kept);
  };
  const auto forgotten = [](const Product& of) { return release(of.saved_x() + of.copy.kept); };
  Node node = mlp.node();
  node.saved = mlp.norm.statistics + fc1.saved_x() + fc1.copy.kept + fc1.plain_y + fc2.saved_x() + fc2.copy.kept;
  node.forward = fc1.begin(Run::kSaving) + mlp.norm.forward() + fc1.make_input() + product(fc1, Run::kSaving) +
                 fc2.begin(Run::kSaving) + fc2.make_input() + product(fc2, Run::kSaving);
  set_recorded(node, cell.decisions.fuser_shells, fc1.copy.kept + fc2.copy.kept, 0, [&](Run run) {
    return fc1.begin(run) + mlp.norm.forward() + fc1.make_input() + release(mlp.norm.statistics) + product(fc1, run) +
           forgotten(fc1) + fc2.begin(run) + fc2.make_input() + release(fc1.plain_y - fc1.kept_y()) +
           product(fc2, run) + forgotten(fc2);
  });
  return node;
}

Node mlp(const CellNumbers& cell) {
  if (cell.shape.top_k > 0) return expert_mlp(cell);
  return cell.shape.fused_mlp ? fused_mlp(cell) : norm_mlp(cell);
}

/// The bytes that a norm of Q and K, or their rotation, makes: a packed projection with a copy of V.
Bytes rewritten(const CellNumbers& cell) { return cell.plain(cell.shape.packed); }

/// The norm of Q, then of K; each reads a copy whose rows are heads, and its result is copied back.
Node qk_norm(const CellNumbers& cell) {
  Node node;
  node.out = rewritten(cell);
  node.keeps_input = true;
  const ParameterNumbers gamma = vector_parameter(cell, cell.shape.head_dim);
  node.forward = node.recorded = node.backward = allocate(node.out);
  for (const std::int64_t heads : {cell.shape.heads, cell.shape.kv_heads}) {
    const Bytes part = cell.plain(heads * cell.shape.head_dim);
    const Bytes statistics = cell.shape.tokens * heads * kF32;
    node.parameters.push_back(gamma);
    node.saved += statistics;
    node.forward += allocate(2 * part + statistics) + release(2 * part);
    node.recorded += allocate(2 * part + statistics) + release(2 * part + statistics);
    node.backward += allocate(3 * part) + allocate(gamma.unsharded, Owner::kGradients) +
                     release(cell.phase.adds_gradients ? gamma.unsharded : 0, Owner::kGradients) + release(3 * part);
  }
  node.recorded_again = node.recorded;
  node.backward += release(node.out);
  return node;
}

Node rotary(const CellNumbers& cell) {
  Node node;
  node.out = rewritten(cell);
  node.forward = node.recorded = node.recorded_again = allocate(node.out);
  node.backward = allocate(node.out) + release(node.out);
  return node;
}

Node plain_attention(const CellNumbers& cell) {
  const Bytes lse = cell.shape.tokens * cell.shape.heads * kF32;
  Node node;
  node.out = cell.plain(cell.shape.attended);
  node.keeps_input = node.keeps_output = true;
  node.saved = lse;
  const bool keeps = node.keeps_result = cell.keeps_attention();
  node.kept = keeps ? node.out + lse : 0;
  node.recorded = node.recorded_again = allocate(node.out + lse) + release(keeps ? 0 : lse);
  if (!keeps) node.forward = allocate(node.out + lse);
  node.backward = allocate(cell.plain(cell.shape.packed));
  if (cell.shape.attention_sinks) {
    const ParameterNumbers sinks = vector_parameter(cell, cell.shape.heads);
    node.parameters.push_back(sinks);
    node.backward += allocate(sinks.unsharded, Owner::kGradients) +
                     release(cell.phase.adds_gradients ? sinks.unsharded : 0, Owner::kGradients);
  }
  node.backward += release(node.out);
  return node;
}

Node cast_attention(const CellNumbers& cell) {
  const AttentionNumbers& numbers = cell.casts.recipe.attention;
  const std::int64_t history_rows = numbers.history_rows == 0 ? cell.casts.built_history_rows : numbers.history_rows;
  const Cast qkv = cell.cast_rowwise(cell.shape.packed);
  const Cast grad_o = cell.cast_rowwise(cell.shape.attended);
  const Cast o = numbers.casts_output ? cell.cast_rowwise(cell.shape.attended) : Cast{};
  const Cast grad_qkv = numbers.casts_output ? qkv : Cast{};
  const Bytes plain_o = cell.plain(cell.shape.attended), plain_qkv = cell.plain(cell.shape.packed);
  const Bytes lse = cell.shape.tokens * cell.shape.heads * kF32;
  const Bytes s_scale = kF32;
  // The tensor is cast to eight bits and back: the copy in high precision is freed and made again, unless the next node
  // reads the eight bits.
  const bool exchanges = cell.casts.exchanges_eight_bits, comes_cast = exchanges && !cell.shape.rewrites_qkv;
  const auto rounded = [&](Bytes plain, bool goes_cast) {
    return numbers.casts_output ? release(plain) + allocate(goes_cast ? 0 : plain) : Schedule{};
  };

  // With a backward in 16 bits all that forward cast is freed, and the node saves the same as a node without casts.
  const bool back = cell.casts.attention_backward;
  Node node;
  node.out = exchanges ? 0 : plain_o;
  node.keeps_input = !back;
  node.keeps_output = !back || !numbers.casts_output;
  node.saved = back ? qkv.both + lse + s_scale + o.both : lse;
  node.recipe_state = (back ? 2 : 1) * numbers.histories * kF32 * (1 + history_rows);
  node.forward_amaxes = numbers.histories;
  node.backward_amaxes = back ? numbers.histories : 0;
  node.stash = cell.phase.evaluates ? 0 : numbers.histories * kF32;
  const Schedule histories = cell.resized_histories(numbers.histories, false);
  const Schedule resized = back ? histories + histories : histories;
  node.resized = resized.net;
  // A checkpointed region resizes when it runs for the first time, not when it is recomputed.
  const Schedule begun = cell.phase.resizes ? resized : Schedule{};
  const Schedule begun_saving = cell.shape.checkpoint ? Schedule{} : begun;
  const Schedule kernel = (comes_cast ? Schedule{} : qkv.schedule()) + allocate(plain_o + lse);
  if (!back) {
    const Schedule forward = kernel + o.schedule() + rounded(plain_o, false) + release(qkv.both + o.both);
    node.forward = begun_saving + forward;
    node.recorded_again = allocate(node.stash) + forward + release(lse);
    node.recorded = begun + node.recorded_again;
    node.backward = allocate(plain_qkv) + release(plain_o);
    return node;
  }
  const Schedule forward = kernel + o.schedule() + rounded(plain_o, exchanges) + allocate(s_scale);
  const Schedule recorded =
      allocate(node.stash) + forward + release(qkv.both + s_scale + (exchanges ? 0 : o.both) + lse);
  node.forward = begun_saving + forward;
  const bool grad_comes_cast = exchanges && cell.decisions.differentiate_quantized_inputs;
  node.backward = (grad_comes_cast ? Schedule{} : grad_o.schedule() + release(plain_o)) + allocate(plain_qkv) +
                  grad_qkv.schedule() + rounded(plain_qkv, comes_cast) +
                  release((comes_cast ? 0 : grad_qkv.both) + grad_o.both);
  const bool has_shells = numbers.has_shells && !comes_cast;
  set_recorded(node, has_shells ? cell.decisions.attention_shells : Shells::kEmpty, qkv.both, 0,
               [&](Run run) { return (run == Run::kRecorded ? begun : Schedule{}) + recorded; });
  return node;
}

Node attention_itself(const CellNumbers& cell) {
  if (cell.shape.context_ranks > 1)
    return cell.casts.attention ? cast_ring_attention(cell) : plain_ring_attention(cell);
  return cell.casts.attention ? cast_attention(cell) : plain_attention(cell);
}

std::vector<Node> attention(const CellNumbers& cell) {
  const bool exchanges = cell.casts.exchanges_eight_bits, qkv_too = exchanges && !cell.shape.rewrites_qkv;
  CellNumbers qkv = cell.of_product(0);
  qkv.shape.form.bias = cell.shape.qkv_bias;
  const bool has_latents = cell.shape.kv_rank > 0;
  std::vector<Node> nodes{has_latents ? latent_projections(cell)
                                      : norm_linear(qkv, cell.shape.packed, {.y = qkv_too, .grad_y = qkv_too})};
  if (cell.shape.qk_norm) nodes.push_back(qk_norm(cell));
  if (cell.shape.form.rotary && !has_latents) nodes.push_back(rotary(cell));
  nodes.push_back(attention_itself(cell));
  nodes.push_back(linear(cell.of_product(cell.products_before_attention()), cell.shape.attended, cell.shape.hidden,
                         {.x = exchanges, .grad_x = exchanges}));
  return nodes;
}

struct LayerNumbers {
  std::string_view name;
  Layer (*make)(const CellNumbers&);
};
constexpr LayerNumbers kLayers[] = {
    {"layernorm", [](const CellNumbers& cell) { return Layer{{{norm_layer(cell, cell.shape.form.bias ? 2 : 1, 2)}}}; }},
    {"rmsnorm", [](const CellNumbers& cell) { return Layer{{{norm_layer(cell, 1, 1)}}}; }},
    {"linear", [](const CellNumbers& cell) { return Layer{{{linear(cell, cell.shape.hidden, cell.shape.hidden)}}}; }},
    {"grouped_linear", [](const CellNumbers& cell) { return Layer{{{grouped_linear(cell)}}}; }},
    {"layernorm_linear", [](const CellNumbers& cell) { return Layer{{{norm_linear(cell, cell.shape.hidden)}}}; }},
    {"layernorm_mlp", [](const CellNumbers& cell) { return Layer{{{mlp(cell)}}}; }},
    {"multihead_attention", [](const CellNumbers& cell) { return Layer{{attention(cell)}}; }},
    {"transformer_layer", [](const CellNumbers& cell) { return Layer{{attention(cell), {mlp(cell)}}, true}; }},
};

}  // namespace

Layer make_layer(const CellNumbers& cell, std::string_view name) {
  for (const LayerNumbers& row : kLayers)
    if (row.name == name) return row.make(cell);
  fail(fmt::format("predict: layer '{}' has no closed form; add a row to the table in predict_nodes.cpp", name));
}

}  // namespace fp8lab::closed_form
