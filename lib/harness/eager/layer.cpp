#include "harness/eager/layer.h"

#include <algorithm>
#include <utility>

namespace fp8lab::eager {

Layer::Layer(const Numbers& numbers, Heap& heap, Bytes index)
    : numbers_(numbers),
      heap_(heap),
      frozen_(index < numbers.frozen),
      input_takes_gradient_(numbers.frozen == 0 || index > numbers.frozen),
      recomputed_(!frozen_ && numbers.checkpoint_every > 0 && (index + 1) % numbers.checkpoint_every == 0),
      kept_(numbers, heap, recomputed_ && numbers.keeps_results) {
  const Numbers& n = numbers;
  if (n.attends) {
    norm1_ = norm();
    if (n.has_latents) {
      make_latents();
    } else if (n.has_sinks) {
      make_sinks();
    } else if (n.in_titan()) {
      q_ = product(n.hidden, n.query, n.qkv_bias);
      k_ = product(n.hidden, n.kv, n.qkv_bias);
      v_ = product(n.hidden, n.kv, n.qkv_bias);
    } else {
      qkv_ = product(n.hidden, n.query + 2 * n.kv, n.qkv_bias);
    }
    if (n.qk_norm) {
      q_norm_.push_back(vector(n.head_dim));
      k_norm_.push_back(vector(n.head_dim));
    }
    if (!n.has_sinks) proj_ = product(n.attended, n.hidden);
  }
  norm2_ = norm();
  if (n.routes && index >= n.dense_layers) {
    mixture_.emplace(n, heap, parameters, kept_);
  } else {
    if (n.in_titan() && n.gated) {
      gate_ = product(n.hidden, n.ffn);
      up_ = product(n.hidden, n.ffn);
    } else {
      fc1_ = product(n.hidden, n.gated ? 2 * n.ffn : n.ffn);
    }
    fc2_ = product(n.ffn, n.hidden);
  }
  for (Parameter& parameter : parameters) parameter.is_frozen = frozen_;
}

Product Layer::product(Bytes inputs, Bytes outputs, bool has_bias) {
  Product out{{parameters.size()}, inputs, outputs, kept_.keeps_next_product()};
  parameters.push_back({.rows = outputs, .columns = inputs, .is_float8 = numbers_.float8_gathers});
  if (has_bias) {
    out.parameters.push_back(parameters.size());
    parameters.push_back({.rows = outputs, .columns = 1});
  }
  return out;
}

std::vector<std::size_t> Layer::norm() {
  std::vector<std::size_t> out;
  for (Bytes i = 0; i < numbers_.norm_vectors; ++i) out.push_back(vector(numbers_.hidden));
  return out;
}

std::size_t Layer::vector(Bytes rows) {
  parameters.push_back({.rows = rows, .columns = 1});
  return parameters.size() - 1;
}

Block Layer::forward(Block input, bool keeps_input) {
  const Numbers& n = numbers_;
  kept_.begin_forward();
  input_ = input;
  keeps_input_ = keeps_input || frozen_;
  const bool keeps = !recomputed_ && !frozen_;
  run_forward(keeps);
  Block last = mixture_ ? mixture_->finish(keeps) : multiply(fc2_);
  // A variable of a function lives until the function returns.
  done(activated_, keeps);
  done(silu_, keeps);
  done(activation_input_, keeps);
  done(normed2_, keeps && saves_normed());
  if (!n.attends) {
    if (!saves_input() && keeps && !keeps_input_) heap_.free(input_);
    return last;
  }
  const Block output = allocate(n.rows(n.hidden));
  drop(last);
  done(middle_, keeps && saves_stream());
  // Whoever calls the layer holds its input until it returns.
  if (!saves_input() && keeps && !keeps_input_) heap_.free(input_);
  return output;
}

bool Layer::copies_norms_input() const { return numbers_.on_host() && numbers_.element != kF32; }

bool Layer::saves_stream() const { return !(numbers_.gated && copies_norms_input()); }

// A router in FP32 reads a copy.
bool Layer::saves_normed() const { return !mixture_ || !numbers_.clamps; }

bool Layer::saves_input() const {
  return input_takes_gradient_ ? saves_stream() : !(numbers_.gated && numbers_.on_host());
}

void Layer::run_forward(bool keeps) {
  const Numbers& n = numbers_;
  if (n.attends) {
    normed1_ = normalize(saved1_, keeps, input_takes_gradient_);
    Block attended = n.has_latents ? latent_attention(keeps) : n.has_sinks ? sink_attention(keeps) : attention(keeps);
    middle_ = allocate(n.rows(n.hidden));
    drop(attended);
  }
  normed2_ = normalize(saved2_, keeps, n.attends || input_takes_gradient_);
  if (mixture_) {
    mixture_->run(keeps);
    return;
  }
  if (n.gated && n.in_titan()) {
    gate_output_ = multiply(gate_);
    silu_ = allocate(n.rows(n.ffn));
    done(gate_output_, keeps);
    up_output_ = multiply(up_);
    activated_ = allocate(n.rows(n.ffn));
    done(up_output_, keeps);
    return;
  }
  activation_input_ = multiply(fc1_);
  if (!n.in_titan()) done(normed2_, keeps);
  if (n.gated) silu_ = allocate(n.rows(n.ffn));
  activated_ = allocate(n.rows(n.ffn));
  done(n.gated ? silu_ : activation_input_, keeps);
}

Block Layer::rotated(Bytes columns) {
  const Numbers& n = numbers_;
  const Bytes all = n.rows_f32(columns), half = all / 2;
  if (n.in_titan() && n.element == kF32) return allocate(all);  // conversions are the tensor itself
  Block values = temporary(all);
  if (n.in_titan()) {
    Block products = temporary(all);
    const Block out = allocate(n.rows(columns));
    heap_.free(products);
    heap_.free(values);
    return out;
  }
  Block first = temporary(half), second = temporary(half), real = temporary(half);
  heap_.free(first);
  heap_.free(second);
  first = temporary(half);
  second = temporary(half);
  Block imaginary = temporary(half);
  heap_.free(first);
  heap_.free(second);
  Block both = temporary(all);
  heap_.free(imaginary);
  heap_.free(real);
  if (n.element == kF32) {  // the conversion back is the tensor itself
    heap_.free(values);
    heap_.free(both);
    return allocate(n.rows(columns));
  }
  const Block out = allocate(n.rows(columns));
  heap_.free(both);
  heap_.free(values);
  return out;
}

void Layer::make_rotary_tables() {
  const Bytes table = numbers_.seq * (numbers_.rotated / 2) * kF32;
  if (numbers_.operators == Operators::kCuda) {  // computed on the host
    cosines_ = allocate(table);
    sines_ = allocate(table);
    return;
  }
  Block angles = temporary(2 * table);
  Block values = temporary(2 * table);
  cosines_ = allocate(table);
  heap_.free(values);
  values = temporary(2 * table);
  sines_ = allocate(table);
  heap_.free(values);
  heap_.free(angles);
}

Block Layer::attention(bool keeps) {
  const Numbers& n = numbers_;
  if (n.in_titan()) {
    query_ = multiply(q_);
    key_ = multiply(k_);
    value_ = multiply(v_);
  } else {
    packed_ = multiply(qkv_);
    done(normed1_, keeps);
  }
  if (n.qk_norm) norm_heads(keeps);
  if (n.gated) {
    if (!n.in_titan()) make_rotary_tables();
    Block query = query_, key = key_;
    query_ = rotated(n.query);
    key_ = rotated(n.kv);
    drop(key);
    drop(query);
    done(cosines_, keeps);
    done(sines_, keeps);
  }
  attend(keeps);
  const Block out = multiply(proj_);
  done(query_, keeps);
  done(key_, keeps);
  done(value_, keeps);
  done(packed_, keeps);
  done(attended_, keeps);
  done(raw_attended_, keeps);
  if (n.in_titan()) done(normed1_, keeps);
  return out;
}

void Layer::accumulate(Block& sum, Block& more, bool of_products) {
  if (numbers_.operators != Operators::kCuda || of_products) {
    Block both = temporary(numbers_.rows(numbers_.hidden));
    heap_.free(sum);
    sum = both;
  }
  heap_.free(more);
}

void Layer::accumulate(Block& sum, Block& more, Bytes bytes) {
  if (numbers_.operators != Operators::kCuda) {
    Block both = temporary(bytes);
    heap_.free(sum);
    sum = both;
  }
  heap_.free(more);
}

void Layer::rotate_backward(Bytes columns, Block& gradient) {
  const Numbers& n = numbers_;
  const Bytes all = n.rows_f32(columns), half = all / 2;
  Block values = temporary(all);
  heap_.free(gradient);
  if (n.in_titan()) {
    Block conjugates = temporary(n.seq * n.rotated * kF32);  // a conjugate copy of the table
    Block products = temporary(all);
    heap_.free(conjugates);
    heap_.free(values);
    gradient = temporary(n.rows(columns));
    heap_.free(products);
    return;
  }
  // The gradient of each part is the sum of two products; the second sum is made in place.
  Block first = temporary(half), second = temporary(half), by_sine = temporary(half), by_cosine = temporary(half);
  heap_.free(by_sine);
  heap_.free(by_cosine);
  Block negative = temporary(half);
  heap_.free(values);
  heap_.free(negative);
  Block joined = temporary(all);
  heap_.free(first);
  heap_.free(second);
  gradient = temporary(n.rows(columns));
  heap_.free(joined);
}

Block Layer::attention_backward(Block& gradient) {
  const Numbers& n = numbers_;
  // Flash attention saves its output too.
  Block of_attended = multiply_backward(proj_, attended_, gradient, raw_attended_ != 0);
  auto [of_query, of_key, of_value] = attend_backward(of_attended);
  if (!n.qk_norm || copies_norms_input()) heap_.free(packed_);
  if (n.gated) {
    rotate_backward(n.kv, of_key);
    rotate_backward(n.query, of_query);
    heap_.free(cosines_);
    heap_.free(sines_);
  }
  if (n.qk_norm) norm_heads_backward(of_query, of_key);
  if (!n.in_titan()) {
    Block of_packed = temporary(n.rows(n.query + 2 * n.kv));
    heap_.free(of_query);
    heap_.free(of_key);
    heap_.free(of_value);
    return multiply_backward(qkv_, normed1_, of_packed);
  }
  Block sum = multiply_backward(v_, normed1_, of_value, false);
  Block more = multiply_backward(k_, normed1_, of_key, false);
  accumulate(sum, more, true);
  more = multiply_backward(q_, normed1_, of_query);
  accumulate(sum, more);
  return sum;
}

Block Layer::backward(Block gradient) {
  const Numbers& n = numbers_;
  if (recomputed_) {
    kept_.begin_recomputation();
    run_forward(true);  // stops at the last tensor that backward needs
    if (mixture_) mixture_->stop();
    if (!saves_normed()) heap_.free(normed2_);
    if (n.float8) {  // which an autograd function saves after it has computed
      Block last = product_of(fc2_);
      heap_.free(last);
    }
    if (!saves_stream()) heap_.free(middle_);
  }
  // The residual's gradient; the last product's is the same tensor, which outlives it.
  Block kept = n.attends ? gradient : 0;
  Block of_product = n.attends ? 0 : gradient;
  // CUDA's products copy a number that is expanded to a matrix.
  const bool copies = gradient == 0 && n.operators == Operators::kCuda;
  Block of_normed = 0;
  if (mixture_) {
    of_normed = mixture_->backward(normed2_, of_product, {.copies_gradient = copies, .is_recomputed = recomputed_});
  } else {
    Block expanded = copies ? temporary(n.rows(n.hidden)) : 0;
    Block of_activated = multiply_backward(fc2_, activated_, of_product);
    heap_.free(expanded);
    of_normed = activation_backward(of_activated);
  }
  Block more = normalize_backward(saved2_, n.attends ? middle_ : input_, of_normed, norm2_);
  if (!n.attends) {
    if (!keeps_input_) heap_.free(input_);
    return more;
  }
  if (kept == 0)
    kept = temporary(n.rows(n.hidden));  // the sum of one number expanded and a tensor
  else
    accumulate(kept, more);
  heap_.free(more);
  Block of_stream = kept;
  // The product's gradient is the residual's tensor, which outlives it if the input takes a gradient.
  Block none = 0;
  Block& of_projected = input_takes_gradient_ ? none : of_stream;
  Block of_normed1 = n.has_latents ? latent_attention_backward(of_projected)
                     : n.has_sinks ? sink_attention_backward(of_projected)
                                   : attention_backward(of_projected);
  more = normalize_backward(saved1_, input_, of_normed1, norm1_);
  kept_.end_backward();
  if (!keeps_input_) heap_.free(input_);
  if (input_takes_gradient_) accumulate(of_stream, more);
  return of_stream;
}

Block Layer::activation_backward(Block& of_activated) {
  const Numbers& n = numbers_;
  Block of_fc1 = 0, of_normed = 0;
  if (n.gated) {
    // Autograd computes the gradient of a product's second factor first.
    Block of_up = temporary(n.rows(n.ffn)), of_silu = temporary(n.rows(n.ffn));
    heap_.free_read(of_activated, {&silu_, &up_output_}, recomputed_);
    if (n.in_titan()) {
      of_normed = multiply_backward(up_, normed2_, of_up, false);
      Block of_gate = temporary(n.rows(n.ffn));
      heap_.free_read(of_silu, {&gate_output_}, recomputed_);
      Block more = multiply_backward(gate_, normed2_, of_gate);
      accumulate(of_normed, more, true);
    } else {
      Block of_gate = temporary(n.rows(n.ffn));
      heap_.free_read(of_silu, {&activation_input_}, recomputed_);
      of_fc1 = temporary(n.rows(2 * n.ffn));
      heap_.free(of_gate);
      heap_.free(of_up);
      of_normed = multiply_backward(fc1_, normed2_, of_fc1);
    }
  } else {
    of_fc1 = temporary(n.rows(n.ffn));
    heap_.free_read(of_activated, {&activation_input_}, recomputed_);
    of_normed = multiply_backward(fc1_, normed2_, of_fc1);
  }
  return of_normed;
}

}  // namespace fp8lab::eager
