#include "harness/predict/predict_experts.h"

#include <algorithm>

#include "harness/predict/predict_product.h"

namespace fp8lab::closed_form {
namespace {

constexpr Bytes kI32 = 4;

/// Rows of all choices if each expert with tokens wastes the most rows that padding can.
std::int64_t rows_of_choices(const CellNumbers& cell) {
  const std::int64_t all = cell.shape.tokens * cell.shape.top_k, multiple = cell.casts.recipe.group_rows;
  const std::int64_t wasted = std::min(cell.shape.experts, all) * (multiple - 1);
  return (all + wasted) / multiple * multiple;
}

/// The numbers of the products of experts: over rows of choices, without biases.
CellNumbers of_choices(const CellNumbers& cell) {
  CellNumbers out = cell;
  out.shape.tokens = rows_of_choices(cell);
  out.shape.matrices = cell.shape.experts;
  out.shape.form.bias = false;
  return out;
}

struct Experts {
  explicit Experts(const CellNumbers& cell)
      : norm(cell),
        n(cell.plain(cell.shape.hidden)),
        router(table_parameter(cell, cell.shape.experts, cell.shape.hidden)),
        added_router(cell.phase.adds_gradients ? router.unsharded : 0),
        logits(cell.shape.tokens * cell.shape.experts * kF32),
        grad_logits(cell.shape.tokens * cell.shape.experts * cell.shape.element),
        weights(cell.shape.tokens * cell.shape.top_k * kF32),
        chosen(cell.shape.tokens * cell.shape.top_k * kI32),
        grouping(chosen + (rows_of_choices(cell) + cell.shape.experts + 1) * kI32),
        fc1(of_choices(cell), cell.shape.hidden, cell.shape.activated),
        fc2(of_choices(cell), cell.shape.ffn, cell.shape.hidden) {}

  Bytes saved() const {
    return norm.statistics + n + chosen + weights + grouping + fc1.saved_x() + fc1.saved_weight() + fc1.plain_y +
           fc2.saved_x() + fc2.saved_weight() + fc2.plain_y;
  }
  Schedule forward(Run run) const {
    const Schedule routed = allocate(n) + norm.forward() + allocate(logits) + allocate(chosen + weights) +
                            release(logits) + allocate(grouping);
    const Schedule first =
        allocate(fc1.plain_x) + (fc1.casts ? fc1.x.schedule() + release(fc1.plain_x) : Schedule{}) + fc1.multiply(run);
    return fc1.begin(run) + routed + first + fc2.begin(run) + fc2.forward_making(run) + allocate(n);
  }
  Schedule backward(bool consuming) const {
    const Schedule permuted = allocate(fc2.plain_y) + allocate(weights) + release(consuming ? n : 0);
    const Schedule experts = fc2.backward() + fc1.make_gradient() + release(fc2.plain_x) + fc1.backward_making() +
                             allocate(n) + release(fc1.plain_x);
    const Schedule of_router = allocate(grad_logits) + release(weights) + allocate(n) + release(n) +
                               allocate(router.unsharded, Owner::kGradients) +
                               release(added_router, Owner::kGradients) + release(grad_logits);
    return permuted + experts + of_router + norm.backward();
  }

  Norm norm;
  Bytes n;  ///< the norm's output, as large as the layer's
  ParameterNumbers router;
  Bytes added_router;
  Bytes logits, grad_logits;
  Bytes weights;   ///< bytes of the choices' weights; their gradient has the same number
  Bytes chosen;    ///< numbers of experts
  Bytes grouping;  ///< the row of each choice, the choice of each row, and the first row of each expert
  Product fc1, fc2;
};

}  // namespace

Node expert_mlp(const CellNumbers& cell) {
  const Experts experts(cell);
  Node node;
  node.out = experts.n;
  node.keeps_input = true;
  node.parameters = experts.norm.parameters;
  node.parameters.push_back(experts.router);
  experts.fc1.add_to(node);
  experts.fc2.add_to(node);
  node.saved = experts.saved();
  node.forward = experts.forward(Run::kSaving);
  node.backward = experts.backward(true);
  node.backward_beside_residual = experts.backward(false);
  set_recorded(node, cell.decisions.module_shells, experts.fc1.saved_copy + experts.fc2.saved_copy, node.saved,
               [&](Run run) { return experts.forward(run); });
  return node;
}

}  // namespace fp8lab::closed_form
