#include "harness/predict/predict_parts.h"
#include "harness/predict/predict_product.h"

namespace fp8lab::closed_form {
namespace {

/// Sizes of one rank's part of a sequence, and the schedules of both passes around the ring. `element`: bytes of a key
/// or value as it travels; `scale`: of the scale that travels with them.
struct Ring {
  Ring(const CellNumbers& cell, Bytes element, Bytes scale)
      : ranks(cell.shape.context_ranks),
        lse(cell.shape.tokens * cell.shape.heads * kF32),
        o(cell.shape.tokens * cell.shape.attended * kF32),
        kv_columns(cell.shape.packed - cell.shape.attended),
        kv_data(cell.shape.tokens * kv_columns * element),
        kv(kv_data + scale),
        grad_q(o),
        grad_kv(cell.shape.tokens * kv_columns * kF32),
        scale_bytes(scale) {}

  /// From this rank's keys and values alive to O, its lse and the keys and values of another rank alive, all in FP32
  /// but those. `sent`: bytes that are freed once this rank's keys and values have been sent.
  Schedule forward(Bytes sent) const {
    const Schedule part = allocate((o + lse) / 2), merged = part + release((o + lse) / 2);
    const auto exchange = [&](Bytes released) { return allocate(kv) + release(released) + merged + merged; };
    return part + part + merged + exchange(sent) + repeat(ranks - 2, exchange(kv));
  }
  /// To the gradients of Q and of this rank's keys and values alive, in FP32. The keys and values with which it begins
  /// stay alive.
  Schedule backward() const {
    const Schedule pair = allocate((grad_q + grad_kv) / 2) + release((grad_q + grad_kv) / 2);
    const auto exchange = [&](Bytes released) {
      return allocate(kv + grad_kv) + release(released + grad_kv) + pair + pair;
    };
    // The last exchange is for this rank's own keys, which have one more pair; the order of pairs does not matter.
    return allocate(grad_q + grad_kv) + pair + pair + exchange(0) + repeat(ranks - 2, exchange(kv)) + release(kv);
  }
  Exchanges forward_exchanges() const {
    const Bytes each = ranks * kv_data, scales = ranks * scale_bytes;
    return {.calls = ranks - 1, .bytes = (ranks - 1) * (each + scales)};
  }
  Exchanges backward_exchanges() const {
    const Bytes each = ranks * (kv_data + grad_kv), scales = ranks * scale_bytes;
    return {.calls = ranks - 1, .bytes = (ranks - 1) * (each + scales)};
  }

  std::int64_t ranks;
  Bytes lse;  ///< log-sum-exp of both chunks
  Bytes o;    ///< output of both chunks, in FP32
  std::int64_t kv_columns;
  Bytes kv_data, kv;
  Bytes grad_q, grad_kv;
  Bytes scale_bytes;
};

}  // namespace

Node plain_ring_attention(const CellNumbers& cell) {
  const Ring ring(cell, cell.shape.element, 0);
  Node node;
  node.out = cell.plain(cell.shape.attended);
  node.keeps_input = node.keeps_output = true;
  node.saved = ring.lse + ring.kv;
  node.forward = allocate(ring.kv) + ring.forward(ring.kv) + allocate(node.out) + release(ring.o);
  node.recorded = node.recorded_again = node.forward + release(node.saved);
  node.backward =
      ring.backward() + allocate(cell.plain(cell.shape.packed)) + release(ring.grad_q + ring.grad_kv + node.out);
  node.forward_ring = ring.forward_exchanges();
  node.backward_ring = ring.backward_exchanges();
  return node;
}

Node cast_ring_attention(const CellNumbers& cell) {
  const AttentionNumbers& numbers = cell.casts.recipe.attention;
  const std::int64_t history_rows = numbers.history_rows == 0 ? cell.casts.built_history_rows : numbers.history_rows;
  const Ring ring(cell, 1, kF32);
  const Cast qkv = cell.cast_rowwise(cell.shape.packed);
  const Cast grad_o = cell.cast_rowwise(cell.shape.attended);
  const Cast o = numbers.casts_output ? cell.cast_rowwise(cell.shape.attended) : Cast{};
  const Cast grad_qkv = numbers.casts_output ? qkv : Cast{};
  const Bytes plain_o = cell.plain(cell.shape.attended), plain_qkv = cell.plain(cell.shape.packed);
  const Bytes s_scale = kF32;
  const auto rounded = [&](Bytes plain) {
    return numbers.casts_output ? release(plain) + allocate(plain) : Schedule{};
  };
  // Q and its scale stay when this rank's keys and values, which share that scale, are sent away.
  const Bytes q = qkv.both - ring.kv_data, shelled = q + ring.kv;

  const bool back = cell.casts.attention_backward;
  Node node;
  node.out = plain_o;
  node.keeps_input = !back;
  node.keeps_output = !back || !numbers.casts_output;
  node.recipe_state = (back ? 2 : 1) * numbers.histories * kF32 * (1 + history_rows);
  node.forward_amaxes = numbers.histories;
  node.backward_amaxes = back ? numbers.histories : 0;
  node.stash = cell.phase.evaluates ? 0 : numbers.histories * kF32;
  const Schedule histories = cell.resized_histories(numbers.histories, false);
  const Schedule resized = back ? histories + histories : histories;
  node.resized = resized.net;
  const Schedule begun = cell.phase.resizes ? resized : Schedule{};
  const Schedule begun_saving = cell.shape.checkpoint ? Schedule{} : begun;
  const Schedule made = qkv.schedule() + ring.forward(ring.kv_data) + allocate(plain_o) + release(ring.o) +
                        o.schedule() + rounded(plain_o);
  node.forward_ring = ring.forward_exchanges();
  if (!back) {
    // Forward's keys are dequantized for a backward in 16 bits.
    const Ring plain(cell, cell.shape.element, 0);
    const Schedule forward = made + allocate(plain.kv) + release(o.both + shelled);
    node.saved = ring.lse + plain.kv;
    node.forward = begun_saving + forward;
    node.recorded_again = allocate(node.stash) + forward + release(node.saved);
    node.recorded = begun + node.recorded_again;
    node.backward = plain.backward() + allocate(plain_qkv) + release(plain.grad_q + plain.grad_kv + plain_o);
    node.backward_ring = plain.backward_exchanges();
    return node;
  }
  node.saved = shelled + ring.lse + s_scale + o.both;
  node.backward_ring = ring.backward_exchanges();
  const Schedule forward = made + allocate(s_scale);
  const Schedule recorded = allocate(node.stash) + forward + release(node.saved);
  node.forward = begun_saving + forward;
  node.backward = grad_o.schedule() + release(plain_o) + ring.backward() + allocate(plain_qkv) +
                  release(ring.grad_q + ring.grad_kv) + grad_qkv.schedule() + rounded(plain_qkv) +
                  release(grad_qkv.both + grad_o.both);
  set_recorded(node, numbers.has_shells ? cell.decisions.attention_shells : Shells::kEmpty, shelled, 0,
               [&](Run run) { return (run == Run::kRecorded ? begun : Schedule{}) + recorded; });
  return node;
}

}  // namespace fp8lab::closed_form
