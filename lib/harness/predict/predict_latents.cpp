#include "harness/predict/predict_parts.h"
#include "harness/predict/predict_product.h"

namespace fp8lab::closed_form {
namespace {

/// Two products with a norm between them. Both latents are made from the same input, which stays.
struct Latent {
  /// `index`: the number of the first product in the layer.
  Latent(const CellNumbers& cell, int index, std::int64_t rank, std::int64_t columns)
      : down(cell.of_product(index), cell.shape.hidden, rank),
        norm(cell, rank),
        up(cell.of_product(index + 1), rank, columns) {}

  void add_to(Node& node) const {
    down.add_to(node);
    node.parameters.insert(node.parameters.end(), norm.parameters.begin(), norm.parameters.end());
    up.add_to(node);
  }
  Bytes saved() const {
    return (down.casts ? down.x.kept : 0) + down.saved_weight() + down.plain_y + norm.statistics + up.saved_x() +
           up.saved_weight();
  }
  Bytes saved_copies() const { return down.saved_copy + up.saved_copy; }
  Schedule forward(Run run) const {
    return down.begin(run) + down.forward(run) + up.begin(run) + norm.forward() + up.forward_making(run);
  }
  /// Leaves a gradient of the input.
  Schedule backward() const { return up.backward() + norm.backward() + down.backward(); }

  Product down;
  Norm norm;
  Product up;
};

}  // namespace

Node latent_projections(const CellNumbers& cell) {
  const ShapeNumbers& shape = cell.shape;
  const Norm norm(cell);
  const Latent q(cell, 0, shape.q_rank, shape.heads * (shape.head_dim + shape.rope_dim));
  const Latent kv(cell, 2, shape.kv_rank, shape.heads * (shape.head_dim + shape.value_dim));
  const ParameterNumbers rope = table_parameter(cell, shape.rope_dim, shape.hidden);
  const Bytes n = cell.plain(shape.hidden), k_rope = cell.plain(shape.rope_dim);
  const Bytes parts = q.up.plain_y + kv.up.plain_y + k_rope;
  Node node;
  node.out = cell.plain(shape.packed);
  const Bytes kept_latents = q.down.kept_y() + kv.down.kept_y(), kept_parts = q.up.kept_y() + kv.up.kept_y();
  node.kept = kept_latents + kept_parts;
  node.keeps_input = true;
  node.parameters = norm.parameters;
  q.add_to(node);
  kv.add_to(node);
  node.parameters.push_back(rope);
  node.saved = norm.statistics + n + q.saved() + kv.saved();
  const auto forward = [&](Run run) {
    return norm.forward() + allocate(n) + q.forward(run) + kv.forward(run) + allocate(k_rope) + allocate(node.out) +
           release(run == Run::kSaving ? parts : parts - kept_parts);
  };
  node.forward = forward(Run::kSaving);
  const Schedule of_rope = allocate(n) + release(n) + allocate(rope.unsharded, Owner::kGradients) +
                           release(cell.phase.adds_gradients ? rope.unsharded : 0, Owner::kGradients) + release(k_rope);
  node.backward =
      allocate(parts) + release(node.out) + q.backward() + kv.backward() + release(n) + of_rope + norm.backward();
  set_recorded(node, cell.decisions.module_shells, q.saved_copies() + kv.saved_copies(), node.saved - kept_latents,
               forward);
  return node;
}

}  // namespace fp8lab::closed_form
