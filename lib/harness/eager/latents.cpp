#include "harness/eager/layer.h"

// Multi-head latent attention: LatentAttention of fp8lab_subjects/model.py and of recording/published_model.py.
namespace fp8lab::eager {

void Layer::make_latents() {
  const Numbers& n = numbers_;
  q_down_ = product(n.hidden, n.q_rank, false);
  q_norm_.push_back(vector(n.q_rank));
  q_up_ = product(n.q_rank, n.query, false);
  // In the order in which forward computes them. torchtitan makes the rotated part of the keys with their latent.
  if (!n.in_titan()) k_rope_ = product(n.hidden, n.rotated, false);
  kv_down_ = product(n.hidden, n.kv_rank + (n.in_titan() ? n.rotated : 0), false);
  k_norm_.push_back(vector(n.kv_rank));
  kv_up_ = product(n.kv_rank, n.query - n.heads * n.rotated + n.attended, false);
}

Block Layer::latent_attention(bool keeps) {
  const Numbers& n = numbers_;
  const bool keeps_latents = keeps && !copies_norms_input();
  if (!n.in_titan()) make_rotary_tables();
  q_latent_ = multiply(q_down_);
  q_normed_ = rms_norm(saved_q_, {n.q_rank}, keeps);
  if (!n.in_titan()) done(q_latent_, keeps_latents);
  Block raw_query = multiply(q_up_);
  done(q_normed_, keeps);
  if (n.in_titan()) done(q_latent_, keeps_latents);
  Block of_query = rotated(n.heads * n.rotated);
  query_ = allocate(n.rows(n.query));
  if (!n.in_titan()) {
    heap_.free(of_query);
    drop(raw_query);
  }
  Block of_key = 0;
  if (n.in_titan()) {
    kv_latent_ = multiply(kv_down_);
    of_key = rotated(n.rotated);
  } else {
    Block raw = multiply(k_rope_);
    of_key = rotated(n.rotated);
    drop(raw);
    kv_latent_ = multiply(kv_down_);
  }
  // CUDA's RMSNorm copies its input if it is some columns of a matrix.
  Block copy = n.operators == Operators::kCuda && n.in_titan() ? temporary(n.rows(n.kv_rank)) : 0;
  kv_normed_ = rms_norm(saved_k_, {n.kv_rank}, keeps);
  heap_.free(copy);
  if (!n.in_titan()) done(kv_latent_, keeps_latents);
  value_ = multiply(kv_up_);
  done(kv_normed_, keeps);
  if (n.in_titan()) done(kv_latent_, keeps_latents);
  key_ = allocate(n.rows(n.query));
  if (!n.in_titan()) heap_.free(of_key);
  attend(keeps);
  const Block out = multiply(proj_);
  heap_.free(raw_attended_);
  // A composition saves scaled queries and keys, and copies of values unless it can read these.
  const bool is_saved = keeps && !n.composes_attention;
  done(query_, is_saved);
  done(key_, is_saved);
  done(value_, is_saved || (keeps && n.element == kF32 && merges_heads()));
  done(attended_, keeps);
  heap_.free(of_query);
  heap_.free(of_key);
  drop(raw_query);
  done(cosines_, keeps);
  done(sines_, keeps);
  done(normed1_, keeps);
  return out;
}

Block Layer::latent_attention_backward(Block& gradient) {
  const Numbers& n = numbers_;
  // A fused kernel saves its output too.
  Block of_attended = multiply_backward(proj_, attended_, gradient, n.composes_attention);
  auto [of_query, of_key, of_value] = attend_backward(of_attended);
  Block sum = key_latent_backward(of_key, of_value);
  Block more = query_latent_backward(of_query);
  accumulate(sum, more, n.in_titan());
  return sum;
}

Block Layer::key_latent_backward(Block& of_key, Block& of_value) {
  const Numbers& n = numbers_;
  Block of_rotated = temporary(n.rows(n.rotated));  // the sum over heads
  Block of_both = temporary(n.rows(kv_up_.outputs));
  heap_.free(of_key);
  heap_.free(of_value);
  Block of_normed = multiply_backward(kv_up_, kv_normed_, of_both);
  Block copy = n.operators == Operators::kCuda && n.in_titan() ? temporary(n.rows(n.kv_rank)) : 0;
  Block of_latent = rms_norm_backward(saved_k_, {n.kv_rank}, of_normed, k_norm_);
  heap_.free(copy);
  heap_.free(kv_latent_);
  if (n.in_titan()) {
    rotate_backward(n.rotated, of_rotated);
    Block joined = temporary(n.rows(kv_down_.outputs));
    heap_.free(of_latent);
    heap_.free(of_rotated);
    return multiply_backward(kv_down_, normed1_, joined, false);
  }
  Block sum = multiply_backward(kv_down_, normed1_, of_latent, false);
  rotate_backward(n.rotated, of_rotated);
  Block more = multiply_backward(k_rope_, normed1_, of_rotated, false);
  accumulate(sum, more);
  return sum;
}

Block Layer::query_latent_backward(Block& of_query) {
  const Numbers& n = numbers_;
  Block of_rotated = 0;  // some columns of `of_query`
  rotate_backward(n.heads * n.rotated, of_rotated);
  heap_.free(cosines_);
  heap_.free(sines_);
  Block joined = temporary(n.rows(n.query));
  heap_.free(of_query);
  heap_.free(of_rotated);
  Block of_normed = multiply_backward(q_up_, q_normed_, joined);
  Block of_latent = rms_norm_backward(saved_q_, {n.q_rank}, of_normed, q_norm_);
  heap_.free(q_latent_);
  return multiply_backward(q_down_, normed1_, of_latent);
}

}  // namespace fp8lab::eager
