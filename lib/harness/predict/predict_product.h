#pragma once

#include "harness/predict/predict_nodes.h"

// Parts of nodes: products and norms, each with the sizes of its tensors and the schedule of its passes.
namespace fp8lab::closed_form {

/// Which run of a layer's forward is meant. kSaving saves tensors for backward. With activation checkpointing the layer
/// runs twice: first kRecorded (in the first step) or kRecordedAgain (in later steps), which save nothing, then
/// kSaving, in backward.
enum class Run { kSaving, kRecorded, kRecordedAgain };

/// Which tensors of a product are exchanged in eight bits, row-wise: x and the gradient of y come so, and y and the
/// gradient of x are cast as they are made.
struct Exchanged {
  bool x = false, y = false, grad_x = false, grad_y = false;
};

/// y = x W^T + b under a recipe: the casts of x, of W and of the gradient of y, and three matrix products.
struct Product {
  /// `keeps_copy`: backward reads forward's copy of the weight, sharded or not.
  Product(const CellNumbers& cell, std::int64_t in, std::int64_t out, bool keeps_copy = false, Exchanged exchanged = {})
      : casts(cell.casts.operands),
        casts_unstored(cell.casts_unstored()),
        measured_early(cell.casts.measured_early),
        x(exchanged.x ? Cast{} : cell.cast_activation(in)),
        grad_y(exchanged.grad_y ? cell.cast_rowwise(out) : cell.cast_activation(out)),
        grad_y_comes_cast(exchanged.grad_y),
        plain_x(cell.plain(in)),
        plain_y(cell.plain(out)),
        exchanged_x(exchanged.x ? cell.cast_rowwise(in).both : 0),
        lost_x(exchanged.x && !cell.decisions.differentiate_quantized_inputs
                   ? allocate(plain_x) + release(exchanged.grad_x ? cell.cast_rowwise(in).both : plain_x)
                   : Schedule{}),
        y(made(cell, exchanged.y, out)),
        grad_x(made(cell, exchanged.grad_x, in)),
        completed(cell.casts.any_orientation
                      ? 0
                      : cell.shape.tokens * ((exchanged.grad_y ? out : 0) + (exchanged.x ? in : 0))),
        weight(weight_parameter(cell, cell.shape.matrices * out, in)),
        quantizes_again(cell.casts.operands && cell.sharding.sharded && cell.decisions.requantize_in_backward &&
                        !weight.computes_as_kept && !keeps_copy),
        copy(weight.computes_as_kept ? Cast{} : cell.cast_weight(cell.shape.matrices * out, in)),
        rows_copy(quantizes_again ? cell.cast_weight_rowwise(cell.shape.matrices * out, in) : Cast{}),
        cached(keeps_copy || weight.computes_as_kept ? Cached::kNever : cell.phase.cached),
        checkpoint(cell.shape.checkpoint),
        kept(cell.shape.keeps_product),
        saved_copy(quantizes_again || cached != Cached::kNever ? 0 : copy.both),
        saved_scale(quantizes_again && cell.casts.recipe.histories ? kF32 : 0),
        bias(cell.shape.form.bias ? vector_parameter(cell, cell.shape.matrices * out) : ParameterNumbers{}),
        has_bias(cell.shape.form.bias),
        added_weight(cell.phase.adds_gradients ? weight.unsharded : 0),
        added_bias(cell.phase.adds_gradients ? bias.unsharded : 0),
        forward_amaxes(cell.casts.recipe.histories ? 2 + exchanged.y : 0),
        backward_amaxes(cell.casts.recipe.histories ? 1 + exchanged.grad_x : 0),
        stash(cell.phase.evaluates ? 0 : forward_amaxes * kF32) {
    if (cached == Cached::kWidened) widen(cell, cell.shape.matrices * out, in);
    // Delayed scaling: each quantized tensor has a scale and a history of amaxes.
    weight.state_before = (forward_amaxes + backward_amaxes) * kF32 * (1 + cell.casts.built_history_rows);
    resized = cell.resized_histories(backward_amaxes, false) +
              cell.resized_histories(forward_amaxes, weight.eight_bits && !cell.decisions.rebind_amax_on_resize);
    if (cell.phase.resizes) begun = resized;
    // On architectures that need it, the transpose of a gathered weight lives until the gradient of x is computed. The
    // gather makes it, or forward, which then finds it when it is recomputed.
    const bool demanded = !cell.decisions.validate_usage_by_pass && !weight.transposes_early && !cell.phase.evaluates;
    transposed_when_recorded = demanded ? weight.transpose : 0;
    transposed_in_forward = demanded && !checkpoint ? weight.transpose : 0;
    cleared = cell.decisions.clear_gathered_transposes ? weight.transpose : 0;
  }

  void add_to(Node& node) const {
    node.parameters.push_back(weight);
    if (has_bias) node.parameters.push_back(bias);
    node.forward_amaxes += forward_amaxes;
    node.backward_amaxes += backward_amaxes;
    node.stash += stash;
    node.resized += resized.net;
    if (cached != Cached::kNever) node.cached += copy.both;
  }
  /// The beginning of a forward, before its input is made.
  Schedule begin(Run run) const {
    if (run == Run::kSaving) return checkpoint ? Schedule{} : begun;
    return (run == Run::kRecorded ? begun : Schedule{}) + allocate(stash);
  }
  /// The norm or activation before this product makes its input, either in eight bits or in the nominal type, which
  /// make_operand() then casts.
  Schedule make_input() const { return casts_unstored ? allocate(x.both) : made_for(x) + allocate(plain_x); }
  /// The cast of what make_input() made.
  Schedule make_operand() const { return casts && !casts_unstored ? cast_made(x) + release(plain_x) : Schedule{}; }
  /// The activation after this product makes the gradient of this product's output.
  Schedule make_gradient() const { return made_for(grad_y) + allocate(plain_y); }
  /// The product itself, from an operand that is already cast.
  Schedule multiply(Run run = Run::kSaving) const {
    const Bytes transposed = run == Run::kSaving ? transposed_in_forward : transposed_when_recorded;
    // A second forward finds a result that the first one kept.
    const bool found = kept && run == Run::kSaving;
    const Schedule rows = found ? Schedule{} : rows_copy.schedule();
    const Schedule cast = quantizes_again ? rows : cast_for_both(run);
    return allocate(transposed, Owner::kGathered) + cast + (found ? Schedule{} : y) +
           release(found ? 0 : rows_copy.both) + allocate(saved_scale) + release(x.both - x.kept);
  }
  /// The cast of the weight, for forward and backward. A cached copy that the same pass made is cast again when forward
  /// is recomputed.
  Schedule cast_for_both(Run run) const {
    const bool recomputed = run == Run::kSaving && checkpoint;
    switch (cached) {
      case Cached::kNever: return copy.schedule();
      case Cached::kMade: return recomputed ? recast() : owned_by(Owner::kCachedCopies, copy.schedule());
      case Cached::kWidened: return recomputed ? recast() : owned_by(Owner::kCachedCopies, widened);
      case Cached::kAgain: return recast();
      case Cached::kRead: return {};
    }
    return {};
  }
  /// Cast and product, from an input that stays alive.
  Schedule forward(Run run = Run::kSaving) const { return x.schedule() + multiply(run); }
  /// make_input(), make_operand() and multiply().
  Schedule forward_making(Run run = Run::kSaving) const { return make_input() + make_operand() + multiply(run); }
  /// The bytes that forward_making() leaves for backward, without the copy of the weight.
  Bytes saved_x() const { return casts ? x.kept : plain_x; }
  /// The bytes that multiply() leaves for backward of the weight.
  Bytes saved_weight() const { return saved_copy + saved_scale; }
  Schedule backward(bool consuming = true) const {
    return backward_from(grad_y.schedule(), consuming, grad_y_comes_cast);
  }
  /// Backward, if the gradient of the output comes in eight bits, in all orientations.
  Schedule backward_received() const { return backward_from({}, false, true); }
  /// Backward, if make_gradient() made the gradient of the output.
  Schedule backward_making() const { return backward_from(cast_made(grad_y), true, grad_y_comes_cast); }

  bool casts, casts_unstored, measured_early;
  Cast x, grad_y;
  bool grad_y_comes_cast;
  /// The bytes of the result that a recomputed layer keeps.
  Bytes kept_y() const { return kept ? plain_y : 0; }
  Bytes plain_x, plain_y;
  Bytes exchanged_x;   ///< x, if it comes in eight bits
  Schedule lost_x;     ///< zeros replace the gradient of x
  Schedule y, grad_x;  ///< schedules of the results of products, whichever type they have
  Bytes completed;     ///< transposes of what came in eight bits, made for the gradient of the weight
  ParameterNumbers weight;
  bool quantizes_again;  ///< forward's copy of the weight lives only for its product, and backward makes another
  Cast copy;             ///< the cast copy of the weight, for one pass or for both
  Cast rows_copy;        ///< forward's, if backward makes another
  Cached cached;
  Schedule widened{};  ///< schedule of the cached copy that evaluation made
  bool checkpoint;
  bool kept;  ///< a recomputed layer keeps the result
  Bytes saved_copy, saved_scale;
  ParameterNumbers bias;
  bool has_bias;
  Bytes added_weight, added_bias;  ///< gradients that are freed once they are added to earlier micro-batches' gradients
  std::int64_t forward_amaxes, backward_amaxes;
  Bytes stash;
  Schedule resized{};  ///< schedule of the histories in the first forward of the run
  Schedule begun{};    ///< the same if this forward is the first
  Bytes transposed_when_recorded, transposed_in_forward;
  Bytes cleared;  ///< the transpose that is freed once the gradient of x is computed

 private:
  /// A result of `cols` columns: stored, or cast as it is made or from a copy in FP32.
  static Schedule made(const CellNumbers& cell, bool is_cast, std::int64_t cols) {
    if (!is_cast) return allocate(cell.plain(cols));
    const Bytes copy = cell.casts_unstored() ? 0 : cell.shape.tokens * cols * kF32;
    return allocate(copy) + allocate(cell.cast_rowwise(cols).both) + release(copy);
  }
  /// An incomplete copy is freed and made again, except for blocks, whose other orientation is made from the first.
  void widen(const CellNumbers& cell, std::int64_t out, std::int64_t in) {
    const Bytes rowwise = cell.cast_weight_rowwise(out, in).both;
    if (copy.both == rowwise) {
      widened = recast();
    } else if (cell.casts.recipe.per_tensor || cell.casts.recipe.orientations_differ) {
      widened = release(rowwise) + copy.schedule();
      weight.stops =
          weight.stops || (cell.casts.recipe.orientations_differ && !cell.decisions.reset_incomplete_workspaces);
    } else {
      widened = allocate(copy.both - rowwise);
    }
  }
  Schedule recast() const { return allocate(copy.scratch) + release(copy.scratch); }
  /// An amax that is measured while the tensor is made lives from before the tensor to the end of its cast.
  Schedule made_for(const Cast& cast) const { return allocate(measured_early ? cast.scratch : 0); }
  Schedule cast_made(const Cast& cast) const { return measured_early ? cast.finish() : cast.schedule(); }
  Schedule backward_from(const Schedule& cast_gradient, bool consuming, bool comes_cast) const {
    const Schedule gradient_released = release(consuming ? plain_y : 0);
    const Schedule cast_weight = quantizes_again ? copy.schedule() : Schedule{};
    const Schedule products = cast_weight + grad_x + release(quantizes_again ? copy.both : 0) +
                              release(cleared, Owner::kGathered) + lost_x + allocate(completed) +
                              allocate(weight.unsharded, Owner::kGradients) + release(added_weight, Owner::kGradients);
    const Schedule bias_gradient = allocate(bias.unsharded, Owner::kGradients) + release(added_bias, Owner::kGradients);
    if (!casts) return bias_gradient + products + gradient_released;
    const Schedule casts_released = release(grad_y.both + completed);
    if (!comes_cast) return bias_gradient + cast_gradient + gradient_released + products + casts_released;
    const Bytes decoded = has_bias ? plain_y : 0;
    return allocate(decoded) + bias_gradient + release(decoded) + products + casts_released;
  }
};

struct Norm {
  explicit Norm(const CellNumbers& cell) : Norm(cell, cell.shape.hidden) {}
  Norm(const CellNumbers& cell, std::int64_t columns)
      : y(cell.plain(columns)),
        parameters(static_cast<std::size_t>(cell.shape.form.norm_parameters), vector_parameter(cell, columns)),
        gradients(cell.shape.form.norm_parameters * columns * cell.shape.element),
        added(cell.phase.adds_gradients ? gradients : 0),
        statistics(cell.shape.form.norm_statistics * cell.shape.tokens * kF32) {}

  /// The schedule without the output.
  Schedule forward() const { return allocate(statistics); }
  Schedule backward() const {
    return allocate(y) + allocate(gradients, Owner::kGradients) + release(added, Owner::kGradients) + release(y);
  }

  Bytes y;
  std::vector<ParameterNumbers> parameters;
  Bytes gradients;
  Bytes added;  ///< gradients that are freed once they are added to earlier micro-batches' gradients
  Bytes statistics;
};

/// Sets the node's `retained` and `unemptied` from `shelled`, the saved bytes that are in shells; and its recorded
/// forwards from `recorded`, at whose end `left` of the saved bytes are still alive.
template <class Recorded>
void set_recorded(Node& node, Shells shells, Bytes shelled, Bytes left, const Recorded& recorded) {
  node.retained = shells == Shells::kEmpty ? 0 : shelled;
  node.unemptied = shells == Shells::kNeverEmptied ? shelled : 0;
  node.recorded = recorded(Run::kRecorded) + release(left - node.unemptied);
  node.recorded_again = recorded(Run::kRecordedAgain) + release(left - node.unemptied);
}

}  // namespace fp8lab::closed_form
