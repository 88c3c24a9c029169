#include "harness/eager/layer.h"

// Scaled dot product attention: by a fused kernel, or as a composition of products.
namespace fp8lab::eager {

Block Layer::flash_backward_workspace(Bytes queries, Bytes keys) {
  const Numbers& n = numbers_;
  if (n.operators != Operators::kCuda) return 0;
  // The query's gradient in FP32, row sums, and for grouped queries the gradients of K and V by query head. Flash
  // attention (mha_bwd()) needs so much; cuDNN, which SDPA calls on Hopper, needs kMore.
  constexpr Bytes kMore = 256;
  const Bytes expanded = n.kv != n.query ? 2 * keys * n.query * n.element : 0;
  return temporary(queries * (n.query + n.heads) * kF32 + expanded + kMore);
}

void Layer::attend(bool keeps) {
  const Numbers& n = numbers_;
  if (n.composes_attention) {
    compose_attention(keeps);
    return;
  }
  if (has_ring()) {
    attend_in_ring(keeps);
    return;
  }
  attended_ = result(kept_.keeps(), n.rows(n.attended));
  sums_ = result(kept_.keeps(), n.tokens * n.heads * kF32);
  if (!n.on_host()) {
    const bool is_flash = n.attended == n.query;  // else it is cuDNN's kernel
    seed_ = result(kept_.keeps(), is_flash ? 16 : 8);
    offset_ = result(kept_.keeps(), 8);
  }
  done(sums_, keeps);
  done(seed_, keeps);
  done(offset_, keeps);
}

Layer::OfAttention Layer::attend_backward(Block& of_attended) {
  const Numbers& n = numbers_;
  if (n.composes_attention) return composed_backward(of_attended);
  if (has_ring()) return ring_backward(of_attended);
  const Bytes values = n.has_latents ? n.attended : n.kv;
  OfAttention out{temporary(n.rows(n.query)), temporary(n.rows(n.kv)), temporary(n.rows(values))};
  Block workspace = flash_backward_workspace(n.tokens, n.tokens);
  heap_.free(workspace);
  if (recomputed_)
    heap_.free_read(of_attended, {&attended_, &value_, &query_, &key_, &sums_, &seed_, &offset_}, true);
  else
    heap_.free_read(of_attended, {&key_, &query_, &value_, &attended_, &sums_, &seed_, &offset_}, false);
  return out;
}

// _scaled_dot_product_attention_math() of PyTorch 2.15. Products of matrices read matrices one after the other in
// memory, so heads that are not are copied.
void Layer::compose_attention(bool keeps) {
  const Numbers& n = numbers_;
  const bool copies = n.element != kF32;
  const Bytes keys = n.rows_f32(n.query), values = n.rows_f32(n.attended), mask = n.seq * n.seq,
              scores = n.batch * n.heads * mask * kF32;
  Block query = copies ? temporary(keys) : 0, key = copies ? temporary(keys) : 0;
  Block value = copies ? allocate(values) : 0;
  scaled_query_ = allocate(keys);
  Block ones = temporary(mask), triangle = temporary(mask);
  heap_.free(ones);
  Block added = temporary(mask * kF32);
  heap_.free(triangle);
  scaled_key_ = allocate(keys);
  Block local = 0;  // the scaled query lives until SDPA returns, if products read a copy of it
  Block scaled_key = 0;
  if (!merges_heads()) {
    local = scaled_query_;
    scaled_key = scaled_key_;
    scaled_query_ = allocate(keys);
    scaled_key_ = allocate(keys);
  }
  Block products = temporary(scores);
  heap_.free(scaled_key);
  done(scaled_key_, keeps);
  Block masked = temporary(scores);
  heap_.free(products);
  scores_ = allocate(scores);
  heap_.free(masked);
  Block narrow = copies ? temporary(scores / 2) : 0;
  if (!merges_heads()) {
    value_f32_ = allocate(values);
  } else {
    value_f32_ = value;
    value = 0;
  }
  Block out = temporary(values);
  raw_attended_ = copies ? temporary(n.rows(n.attended)) : out;
  if (copies) heap_.free(out);
  for (Block* block : {&query, &key, &value, &local, &added, &narrow}) heap_.free(*block);
  for (Block* block : {&scaled_query_, &scores_, &value_f32_}) done(*block, keeps);
  attended_ = allocate(n.rows(n.attended));
  if (n.in_titan()) heap_.free(raw_attended_);
}

Layer::OfAttention Layer::composed_backward(Block& of_attended) {
  const Numbers& n = numbers_;
  const bool copies = n.element != kF32;
  const Bytes keys = n.rows_f32(n.query), values = n.rows_f32(n.attended),
              scores = n.batch * n.heads * n.seq * n.seq * kF32;
  const auto replace = [&](Block& block, Bytes bytes) {
    Block by = temporary(bytes);
    heap_.free(block);
    block = by;
  };
  if (copies) replace(of_attended, values);
  if (!merges_heads()) replace(of_attended, values);
  OfAttention out;
  out.value = temporary(values);
  Block of_scores = temporary(scores);
  heap_.free(value_f32_);
  heap_.free(value_);
  heap_.free(of_attended);
  Block of_products = temporary(scores);
  heap_.free(scores_);
  heap_.free(of_scores);
  out.key = temporary(keys);
  out.query = temporary(keys);
  for (Block* block : {&scaled_query_, &scaled_key_, &of_products}) heap_.free(*block);
  replace(out.key, keys);
  replace(out.query, keys);
  if (!copies) return out;
  replace(out.value, n.rows(n.attended));
  replace(out.key, n.rows(n.query));
  replace(out.query, n.rows(n.query));
  return out;
}

}  // namespace fp8lab::eager
