#include "harness/predict/predict_nodes.h"

#include <fmt/core.h>

#include "core/check.h"

namespace fp8lab::closed_form {
namespace {

constexpr Bytes kF32 = 4;

// Each struct below is one node of the autograd graph: its members are sizes in bytes, its functions return the
// schedule of allocations and releases that the node makes in forward and in backward, in the order in which it makes
// them. Sums of such schedules make up the peak; what forward leaves allocated is what backward finds.

/// Which run of a layer's forward is meant. kSaving saves tensors for backward. With activation checkpointing the layer
/// runs twice: first kRecorded (in the first step) or kRecordedAgain (in later steps), which save nothing, then
/// kSaving, in backward.
enum class Run { kSaving, kRecorded, kRecordedAgain };

/// y = x W^T + b under a recipe: the casts of x, of W and of the gradient of y, and three matrix products.
struct Product {
  Product(const Scenario& scenario, std::int64_t in, std::int64_t out)
      : casts(scenario.casts),
        casts_unstored(scenario.casts_unstored),
        measured_early(scenario.measured_early),
        x(scenario.cast_activation(in)),
        grad_y(scenario.cast_activation(out)),
        plain_x(scenario.plain(in)),
        plain_y(scenario.plain(out)),
        weight(weight_parameter(scenario, out, in)),
        copy(weight.computes_as_kept ? Cast{} : scenario.cast_weight(out, in)),
        bias(scenario.form.bias ? vector_parameter(scenario, out) : ParameterNumbers{}),
        has_bias(scenario.form.bias),
        forward_amaxes(scenario.recipe.histories ? 2 : 0),
        backward_amaxes(scenario.recipe.histories ? 1 : 0),
        stash(forward_amaxes * kF32),
        // With activation checkpointing the second run leaves its quantizer, and the scale stashed for it, with the
        // weight.
        kept_stash(scenario.checkpoint && weight.computes_as_kept && !scenario.decisions.keeps_quantizers ? stash : 0) {
    // Delayed scaling: each quantized tensor has a scale and a history of amaxes.
    weight.state_before = (forward_amaxes + backward_amaxes) * kF32 * (1 + scenario.history_rows);
    // On architectures that need it, the transpose of a gathered weight is made once and lives until the next reshard.
    const bool early = !scenario.decisions.transposes_in_backward;
    const bool reshards = scenario.sharding.reshards, checkpoint = scenario.checkpoint;
    transposed_when_recorded = early ? weight.transpose : 0;
    transposed_in_forward = early && (!checkpoint || reshards) ? weight.transpose : 0;
    transposed_in_backward = !early || (reshards && !checkpoint) ? weight.transpose : 0;
  }

  void add_to(Node& node) const {
    node.parameters.push_back(weight);
    if (has_bias) node.parameters.push_back(bias);
    node.forward_amaxes += forward_amaxes;
    node.backward_amaxes += backward_amaxes;
    node.stash += stash;
    node.kept_stash += kept_stash;
  }
  /// The norm or activation before this product makes its input: in eight bits at once, or in the nominal type, which
  /// make_operand() then casts.
  Schedule make_input() const { return casts_unstored ? allocate(x.both) : made_for(x) + allocate(plain_x); }
  /// The cast of what make_input() made.
  Schedule make_operand() const { return casts && !casts_unstored ? cast_made(x) + release(plain_x) : Schedule{}; }
  /// The activation after this product makes the gradient of this product's output.
  Schedule make_gradient() const { return made_for(grad_y) + allocate(plain_y); }
  /// The product itself, from an operand that is there.
  Schedule multiply(Run run = Run::kSaving) const {
    const Bytes transposed = run == Run::kSaving ? transposed_in_forward : transposed_when_recorded;
    const Schedule replaced = release(run == Run::kRecordedAgain ? kept_stash : 0);
    return allocate(transposed) + replaced + copy.schedule() + allocate(plain_y) + release(x.both - x.kept);
  }
  /// Cast and product, from an input that is there and stays.
  Schedule forward(Run run = Run::kSaving) const { return x.schedule() + multiply(run); }
  /// make_input(), make_operand() and multiply().
  Schedule forward_making(Run run = Run::kSaving) const { return make_input() + make_operand() + multiply(run); }
  /// The bytes that forward_making() leaves for backward, without the copy of the weight.
  Bytes saved_x() const { return casts ? x.kept : plain_x; }
  Schedule backward(bool consuming = true) const { return backward_from(grad_y.schedule(), consuming); }
  /// Backward, where make_gradient() made the gradient of the output.
  Schedule backward_making() const { return backward_from(cast_made(grad_y), true); }

  bool casts, casts_unstored, measured_early;
  Cast x, grad_y;
  Bytes plain_x, plain_y;
  ParameterNumbers weight;
  Cast copy;  ///< of the weight, for one pass
  ParameterNumbers bias;
  bool has_bias;
  std::int64_t forward_amaxes, backward_amaxes;
  Bytes stash, kept_stash;
  Bytes transposed_when_recorded, transposed_in_forward, transposed_in_backward;

 private:
  /// An amax that is measured while the tensor is made lives from before the tensor to the end of its cast.
  Schedule made_for(const Cast& cast) const { return allocate(measured_early ? cast.scratch : 0); }
  Schedule cast_made(const Cast& cast) const { return measured_early ? cast.finish() : cast.schedule(); }
  Schedule backward_from(const Schedule& cast_gradient, bool consuming) const {
    const Schedule gradient_released = release(consuming ? plain_y : 0);
    const Schedule products = allocate(transposed_in_backward) + allocate(plain_x) + allocate(weight.unsharded);
    if (!casts) return allocate(bias.unsharded) + products + gradient_released;
    return allocate(bias.unsharded) + cast_gradient + gradient_released + products + release(grad_y.both);
  }
};

struct Norm {
  explicit Norm(const Scenario& scenario)
      : y(scenario.plain(scenario.hidden)),
        parameters(static_cast<std::size_t>(scenario.form.norm_parameters),
                   vector_parameter(scenario, scenario.hidden)),
        gradients(scenario.form.norm_parameters * scenario.hidden * scenario.element),
        statistics(scenario.form.norm_statistics * scenario.tokens * kF32) {}

  /// Beside its result.
  Schedule forward() const { return allocate(statistics); }
  Schedule backward() const { return allocate(y) + allocate(gradients) + release(y); }

  Bytes y;
  std::vector<ParameterNumbers> parameters;
  Bytes gradients, statistics;
};

/// Says what the node's shells hold, `shelled` bytes of what it saves, and sets its recorded forwards, at whose end
/// `left` bytes of that are still alive.
template <class Recorded>
void set_recorded(Node& node, Shells shells, Bytes shelled, Bytes left, const Recorded& recorded) {
  node.retained = shells == Shells::kEmpty ? 0 : shelled;
  node.unemptied = shells == Shells::kNeverEmptied ? shelled : 0;
  node.recorded = recorded(Run::kRecorded) + release(left - node.unemptied);
  node.recorded_again = recorded(Run::kRecordedAgain) + release(left - node.unemptied);
}

Node linear(const Scenario& scenario, std::int64_t in, std::int64_t out) {
  const Product product(scenario, in, out);
  Node node;
  node.out = product.plain_y;
  node.keeps_input = !scenario.casts;
  node.saved = product.x.kept + product.copy.both;
  product.add_to(node);
  node.forward = product.forward();
  node.backward = product.backward();
  node.backward_beside_residual = product.backward(false);
  set_recorded(node, scenario.decisions.module_shells, product.copy.both, node.saved,
               [&](Run run) { return allocate(product.stash) + product.forward(run); });
  return node;
}

Node norm_linear(const Scenario& scenario, std::int64_t out) {
  const Norm norm(scenario);
  const Product product(scenario, scenario.hidden, out);
  Node node;
  node.out = product.plain_y;
  node.keeps_input = true;
  node.saved = norm.statistics + product.saved_x() + product.copy.both;
  node.parameters = norm.parameters;
  product.add_to(node);
  node.forward = norm.forward() + product.forward_making();
  node.backward = product.backward() + norm.backward();
  set_recorded(node, scenario.decisions.module_shells, product.copy.both, node.saved,
               [&](Run run) { return allocate(product.stash) + norm.forward() + product.forward_making(run); });
  return node;
}

struct Mlp {
  explicit Mlp(const Scenario& scenario)
      : norm(scenario),
        fc1(scenario, scenario.hidden, scenario.activated),
        fc2(scenario, scenario.ffn, scenario.hidden) {}

  Node node() const {
    Node node;
    node.out = fc2.plain_y;
    node.keeps_input = true;
    node.parameters = norm.parameters;
    fc1.add_to(node);
    fc2.add_to(node);
    node.backward = backward(true);
    node.backward_beside_residual = backward(false);
    return node;
  }
  Schedule backward(bool consuming) const {
    const Schedule activation = fc1.make_gradient() + release(fc2.plain_x);
    return fc2.backward(consuming) + activation + fc1.backward_making() + norm.backward();
  }

  Norm norm;
  Product fc1, fc2;
};

Node norm_mlp(const Scenario& scenario) {
  const Mlp mlp(scenario);
  const Product &fc1 = mlp.fc1, &fc2 = mlp.fc2;
  Node node = mlp.node();
  node.saved = mlp.norm.statistics + fc1.saved_x() + fc1.copy.both + fc1.plain_y + fc2.saved_x() + fc2.copy.both;
  node.forward = mlp.norm.forward() + fc1.forward_making() + fc2.forward_making();
  set_recorded(node, scenario.decisions.module_shells, fc1.copy.both + fc2.copy.both, node.saved, [&](Run run) {
    return allocate(fc1.stash) + mlp.norm.forward() + fc1.forward_making(run) + allocate(fc2.stash) +
           fc2.forward_making(run);
  });
  return node;
}

/// The same as a chain of operations: each drops the orientation of its weight's copy that backward does not read, and
/// saves as it goes, so that nothing outlives its operation where nothing is to be saved.
Node fused_mlp(const Scenario& scenario) {
  const Mlp mlp(scenario);
  const Product &fc1 = mlp.fc1, &fc2 = mlp.fc2;
  const auto product = [](const Product& of, Run run) {
    return of.make_operand() + of.multiply(run) + release(of.copy.both - of.copy.kept);
  };
  const auto forgotten = [](const Product& of) { return release(of.saved_x() + of.copy.kept); };
  Node node = mlp.node();
  node.saved = mlp.norm.statistics + fc1.saved_x() + fc1.copy.kept + fc1.plain_y + fc2.saved_x() + fc2.copy.kept;
  node.forward = mlp.norm.forward() + fc1.make_input() + product(fc1, Run::kSaving) + fc2.make_input() +
                 product(fc2, Run::kSaving);
  set_recorded(node, scenario.decisions.fuser_shells, fc1.copy.kept + fc2.copy.kept, 0, [&](Run run) {
    return allocate(fc1.stash) + mlp.norm.forward() + fc1.make_input() + release(mlp.norm.statistics) +
           product(fc1, run) + forgotten(fc1) + allocate(fc2.stash) + fc2.make_input() + release(fc1.plain_y) +
           product(fc2, run) + forgotten(fc2);
  });
  return node;
}

Node rotary(const Scenario& scenario) {
  Node node;
  node.out = scenario.plain(scenario.packed);
  node.forward = node.recorded = node.recorded_again = allocate(node.out);
  node.backward = allocate(node.out) + release(node.out);
  return node;
}

Node plain_attention(const Scenario& scenario) {
  const Bytes lse = scenario.tokens * scenario.heads * kF32;
  Node node;
  node.out = scenario.plain(scenario.hidden);
  node.keeps_input = node.keeps_output = true;
  node.saved = lse;
  node.forward = allocate(node.out + lse);
  node.recorded = node.recorded_again = node.forward + release(lse);
  node.backward = allocate(scenario.plain(scenario.packed)) + release(node.out);
  return node;
}

Node cast_attention(const Scenario& scenario) {
  const AttentionNumbers& numbers = scenario.recipe.attention;
  const std::int64_t history_rows = numbers.history_rows == 0 ? scenario.history_rows : numbers.history_rows;
  const Cast qkv = scenario.cast_rowwise(scenario.packed);
  const Cast grad_o = scenario.cast_rowwise(scenario.hidden);
  const Cast o = numbers.casts_output ? scenario.cast_rowwise(scenario.hidden) : Cast{};
  const Cast grad_qkv = numbers.casts_output ? qkv : Cast{};
  const Bytes plain_o = scenario.plain(scenario.hidden), plain_qkv = scenario.plain(scenario.packed);
  const Bytes lse = scenario.tokens * scenario.heads * kF32;
  const Bytes s_scale = kF32;
  // There and back again through eight bits.
  const auto rounded = [&](Bytes plain) {
    return numbers.casts_output ? release(plain) + allocate(plain) : Schedule{};
  };

  Node node;
  node.out = plain_o;
  node.keeps_output = !numbers.casts_output;
  node.saved = qkv.both + lse + s_scale + o.both;
  node.recipe_state = 2 * numbers.histories * kF32 * (1 + history_rows);
  node.forward_amaxes = node.backward_amaxes = numbers.histories;
  node.stash = numbers.histories * kF32;
  const Schedule kernel = qkv.schedule() + allocate(plain_o + lse);
  node.forward = kernel + allocate(s_scale) + o.schedule() + rounded(plain_o);
  const Schedule recorded = allocate(node.stash) + kernel + release(qkv.both) + allocate(s_scale) + release(s_scale) +
                            o.schedule() + rounded(plain_o) + release(o.both + lse);
  node.backward = grad_o.schedule() + release(plain_o) + allocate(plain_qkv) + grad_qkv.schedule() +
                  rounded(plain_qkv) + release(grad_qkv.both + grad_o.both);
  set_recorded(node, scenario.decisions.attention_shells, qkv.both, 0, [&](Run) { return recorded; });
  return node;
}

std::vector<Node> attention(const Scenario& scenario) {
  std::vector<Node> nodes{norm_linear(scenario, scenario.packed)};
  if (scenario.form.rotary) nodes.push_back(rotary(scenario));
  nodes.push_back(scenario.casts_attention ? cast_attention(scenario) : plain_attention(scenario));
  nodes.push_back(linear(scenario, scenario.hidden, scenario.hidden));
  return nodes;
}

struct LayerNumbers {
  std::string_view name;
  Layer (*make)(const Scenario&);
};
constexpr LayerNumbers kLayers[] = {
    {"linear", [](const Scenario& s) { return Layer{{{linear(s, s.hidden, s.hidden)}}}; }},
    {"layernorm_linear", [](const Scenario& s) { return Layer{{{norm_linear(s, s.hidden)}}}; }},
    {"layernorm_mlp", [](const Scenario& s) { return Layer{{{norm_mlp(s)}}}; }},
    {"multihead_attention", [](const Scenario& s) { return Layer{{attention(s)}}; }},
    {"transformer_layer",
     [](const Scenario& s) { return Layer{{attention(s), {s.fused_mlp ? fused_mlp(s) : norm_mlp(s)}}, true}; }},
};

}  // namespace

Layer make_layer(const Scenario& scenario, std::string_view name) {
  for (const LayerNumbers& row : kLayers)
    if (row.name == name) return row.make(scenario);
  fail(fmt::format("predict: layer '{}' has no closed form; release the table in predict_nodes.cpp a row", name));
}

}  // namespace fp8lab::closed_form
