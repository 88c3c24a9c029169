#include "harness/eager/layer.h"

// Attention with sinks: SinkAttention of recording/gpt_oss_model.py. One product makes queries, keys and values, which
// are copied out of it. Attention's output is multiplied by sigmoid(LSE - sink) of its row and head.
namespace fp8lab::eager {

void Layer::make_sinks() {
  const Numbers& n = numbers_;
  sinks_ = vector(n.heads);
  qkv_ = product(n.hidden, n.query + 2 * n.kv, n.qkv_bias);
  proj_ = product(n.attended, n.hidden);
}

Bytes Layer::angles_of(Bytes tokens) const { return tokens * 2 * numbers_.head_dim * kF32; }

Block Layer::turned(Bytes columns) {
  const Bytes all = numbers_.rows_f32(columns);
  Block by_cosine = temporary(all), negative = temporary(all / 2), joined = temporary(all);
  heap_.free(negative);
  Block by_sine = temporary(all);
  heap_.free(joined);
  const Block out = temporary(all);
  heap_.free(by_cosine);
  heap_.free(by_sine);
  return out;
}

Block Layer::turned_backward(Bytes columns, Block& gradient) {
  const Numbers& n = numbers_;
  const Bytes all = n.rows_f32(columns);
  Block of_joined = temporary(all), negative = temporary(all / 2);
  Block sum = temporary(all);  // columns of one part, and zeros
  heap_.free(negative);
  Block other = temporary(all);
  heap_.free(of_joined);
  accumulate(sum, other, all);
  Block by_cosine = temporary(all);
  heap_.free(gradient);
  accumulate(sum, by_cosine, all);
  return sum;
}

Block Layer::sink_attention(bool keeps) {
  const Numbers& n = numbers_;
  const Bytes sums = n.tokens * n.heads * kF32;
  packed_ = multiply(qkv_);
  Block query = temporary(n.rows(n.query)), key = temporary(n.rows(n.kv));
  value_ = allocate(n.rows(n.kv));
  drop(packed_);
  angles_ = allocate(angles_of(n.tokens));
  Block wide_query = temporary(n.rows_f32(n.query)), wide_key = temporary(n.rows_f32(n.kv));
  Block turned_query = turned(n.query), turned_key = turned(n.kv);
  query_ = allocate(n.rows(n.query));
  key_ = allocate(n.rows(n.kv));
  for (Block* block : {&turned_query, &turned_key, &wide_query, &wide_key}) heap_.free(*block);
  done(angles_, keeps);
  heap_.free(query);
  heap_.free(key);
  raw_attended_ = result(kept_.keeps(), n.rows(n.query));
  sums_ = result(kept_.keeps(), sums);
  if (!n.on_host()) seed_ = result(kept_.keeps(), kStateOfKernel);
  done(seed_, keeps);
  Block differences = temporary(sums);
  shares_ = allocate(sums);
  heap_.free(differences);
  narrow_shares_ = allocate(n.tokens * n.heads * n.element);
  attended_ = allocate(n.rows(n.query));
  for (Block* block : {&narrow_shares_, &shares_, &raw_attended_, &sums_}) done(*block, keeps);
  const Block out = multiply(proj_);
  for (Block* block : {&query_, &key_, &value_, &attended_, &normed1_}) done(*block, keeps);
  return out;
}

// The kernel returns no gradient of its LSE.
Block Layer::sinks_backward(Block& of_attended) {
  const Numbers& n = numbers_;
  const Bytes sums = n.tokens * n.heads * kF32;
  Block products = temporary(n.rows(n.query));  // the second factor's gradient first
  const Block out = temporary(n.rows(n.query));
  if (recomputed_) heap_.free(narrow_shares_);
  Block of_narrow = temporary(n.tokens * n.heads * n.element);  // summed up after the operation
  heap_.free(products);
  heap_.free(of_attended);
  heap_.free(narrow_shares_);
  Block of_shares = temporary(sums);
  heap_.free(of_narrow);
  Block of_differences = temporary(sums);
  heap_.free_read(of_shares, {&shares_}, recomputed_);
  Block negative = temporary(sums);
  Block of_sinks = temporary(n.heads * kF32);
  heap_.free(negative);
  make_gradient(sinks_);
  heap_.free(of_sinks);
  heap_.free(of_differences);
  add_gradients({sinks_});
  return out;
}

Block Layer::sink_attention_backward(Block& gradient) {
  const Numbers& n = numbers_;
  Block of_attended = multiply_backward(proj_, attended_, gradient);
  Block of_raw = sinks_backward(of_attended);
  // Autograd makes zeros for the results of the kernel that have no gradient.
  Block of_sums = n.on_host() ? 0 : temporary(n.tokens * n.heads * kF32);
  Block of_state = n.on_host() ? 0 : temporary(kStateOfKernel);
  Block of_query = temporary(n.rows(n.query)), of_key = temporary(n.rows(n.kv)), of_value = temporary(n.rows(n.kv));
  Block workspace = flash_backward_workspace(n.tokens, n.tokens);
  heap_.free(workspace);
  heap_.free(of_sums);
  heap_.free(of_state);
  heap_.free_read(of_raw, {&query_, &key_, &value_, &raw_attended_, &sums_, &seed_}, recomputed_);
  Block wide_key = temporary(n.rows_f32(n.kv));
  heap_.free(of_key);
  Block wide_query = temporary(n.rows_f32(n.query));
  heap_.free(of_query);
  wide_key = turned_backward(n.kv, wide_key);
  wide_query = turned_backward(n.query, wide_query);
  heap_.free(angles_);
  of_key = temporary(n.rows(n.kv));
  heap_.free(wide_key);
  of_query = temporary(n.rows(n.query));
  heap_.free(wide_query);
  Block of_packed = temporary(n.rows(n.query + 2 * n.kv));
  for (Block* block : {&of_query, &of_key, &of_value}) heap_.free(*block);
  return multiply_backward(qkv_, normed1_, of_packed);
}

}  // namespace fp8lab::eager
