#include "harness/eager/layer.h"

// The norms of a layer: fused on a GPU, composed of FP32 operations on a host.
namespace fp8lab::eager {

Block composed_norm_backward(const Numbers& n, Heap& heap, SavedNorm& saved, Block& gradient, Normed of,
                             bool input_takes_gradient) {
  const Bytes all = n.rows_f32(of.columns);
  const bool copies = n.element != kF32;
  const auto temporary = [&](Bytes bytes) { return heap.allocate(bytes, Owner::kTemporaries); };
  Block f32 = copies ? temporary(all) : 0;
  if (copies) heap.free(gradient);
  Block by_weight = input_takes_gradient ? temporary(all) : 0, scaled = temporary(all),
        row = temporary(of.columns / of.rows * kF32);
  heap.free(by_weight);
  heap.free(row);
  heap.free(copies ? f32 : gradient);
  heap.free(saved.normalized);
  if (!input_takes_gradient) {
    heap.free(scaled);
    return 0;
  }
  Block of_deviation = temporary(all), direct = temporary(all);
  heap.free(of_deviation);
  heap.free(scaled);
  heap.free(saved.deviation);
  Block spread = temporary(all), powers = temporary(all), twice = temporary(all), squares = temporary(all);
  for (Block* block : {&powers, &twice, &spread}) heap.free(*block);
  Block sum = temporary(all);
  heap.free(direct);
  heap.free(squares);
  if (!copies) return sum;
  heap.free(saved.input_f32);
  const Block out = temporary(n.rows(of.columns));
  heap.free(sum);
  return out;
}

Block Layer::normalize(SavedNorm& saved, bool keeps, bool input_takes_gradient) {
  const Numbers& n = numbers_;
  if (n.gated) return rms_norm(saved, {n.hidden}, keeps, input_takes_gradient);
  const Block out = allocate(n.rows(n.hidden));
  // On a host LayerNorm's statistics have the type of its input.
  const Bytes statistic = n.tokens * (n.on_host() ? n.element : kF32);
  saved.mean = allocate(statistic);
  saved.deviation = allocate(statistic);
  done(saved.mean, keeps);
  done(saved.deviation, keeps);
  return out;
}

Block Layer::rms_norm(SavedNorm& saved, Normed of, bool keeps, bool input_takes_gradient) {
  const Numbers& n = numbers_;
  if (!n.on_host()) {
    const Block out = allocate(n.rows(of.columns));
    saved.deviation = allocate(n.rows_f32(of.rows));
    done(saved.deviation, keeps);
    return out;
  }
  const bool copies = n.element != kF32;
  if (copies) saved.input_f32 = allocate(n.rows_f32(of.columns));
  Block squares = temporary(n.rows_f32(of.columns));
  Block means = temporary(n.rows_f32(of.rows));
  saved.deviation = allocate(n.rows_f32(of.rows));
  heap_.free(squares);
  heap_.free(means);
  saved.normalized = allocate(n.rows_f32(of.columns));
  done(saved.deviation, keeps && input_takes_gradient);
  Block scaled = allocate(n.rows_f32(of.columns));
  if (!copies) {
    done(saved.normalized, keeps);
    return scaled;
  }
  const Block out = allocate(n.rows(of.columns));
  heap_.free(scaled);
  done(saved.input_f32, keeps && input_takes_gradient);
  done(saved.normalized, keeps);
  return out;
}

Block Layer::normalize_backward(SavedNorm& saved, Block& input, Block& gradient, const std::vector<std::size_t>& of) {
  const bool is_saved = &input == &input_ ? saves_input() : saves_stream();
  Block none = 0;
  Block& freed = is_saved && (!keeps_input_ || &input != &input_) ? input : none;
  const Block out = rms_norm_backward(saved, {numbers_.hidden}, gradient, of, takes_gradient(input), &freed);
  heap_.free(freed);
  return out;
}

Block Layer::rms_norm_backward(SavedNorm& saved, Normed of, Block& gradient,
                               const std::vector<std::size_t>& parameters_of, bool input_takes_gradient, Block* input) {
  const Numbers& n = numbers_;
  if (saved.normalized == 0) {  // fused, of either norm
    Block out = input_takes_gradient ? temporary(n.rows(of.columns)) : 0;
    for (const std::size_t parameter : parameters_of) make_gradient(parameter);
    add_gradients(parameters_of);
    Block none = 0;
    heap_.free_read(gradient, {input != nullptr ? input : &none, &saved.mean, &saved.deviation}, recomputed_);
    return out;
  }
  for (const std::size_t parameter : parameters_of) make_gradient(parameter);
  add_gradients(parameters_of);
  return composed_norm_backward(n, heap_, saved, gradient, of, input_takes_gradient);
}

Block Layer::contiguous(Normed of) {
  const Numbers& n = numbers_;
  return n.operators == Operators::kCuda && !n.in_titan() ? temporary(n.rows(of.columns)) : 0;
}

void Layer::norm_heads(bool keeps) {
  const Numbers& n = numbers_;
  const Normed queries{n.query, n.heads}, keys{n.kv, n.kv / n.head_dim};
  raw_query_ = query_;
  raw_key_ = key_;
  Block copy = contiguous(queries);
  query_ = rms_norm(saved_q_, queries, keeps);
  heap_.free(copy);
  copy = contiguous(keys);
  key_ = rms_norm(saved_k_, keys, keeps);
  heap_.free(copy);
  done(raw_query_, keeps && !copies_norms_input());
  done(raw_key_, keeps && !copies_norms_input());
}

void Layer::norm_heads_backward(Block& of_query, Block& of_key) {
  const Numbers& n = numbers_;
  const Normed queries{n.query, n.heads}, keys{n.kv, n.kv / n.head_dim};
  Block copy = contiguous(keys);
  of_key = rms_norm_backward(saved_k_, keys, of_key, k_norm_);
  heap_.free(copy);
  heap_.free(raw_key_);
  copy = contiguous(queries);
  of_query = rms_norm_backward(saved_q_, queries, of_query, q_norm_);
  heap_.free(copy);
  heap_.free(raw_query_);
  heap_.free(packed_);
}

}  // namespace fp8lab::eager
