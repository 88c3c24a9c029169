#include <utility>

#include "harness/eager/mixture.h"

// Experts with biases and clamped SwiGLU, and their router, which computes in FP32: ClampedMixture of
// recording/gpt_oss_model.py.
namespace fp8lab::eager {

void Mixture::make_clamped() {
  const Numbers& n = numbers_;
  const auto add = [&](Bytes outputs, Bytes inputs) {
    return Biased{.weight = weight(n.own_experts(), outputs * inputs, true),
                  .biases = weight(n.own_experts(), outputs, true),
                  .columns = outputs};
  };
  fc1_ = add(2 * n.expert_ffn, n.hidden);
  fc2_ = add(n.hidden, n.expert_ffn);
}

Block Mixture::biases_of_rows(Biased& of, Block& padded, bool keeps) {
  const Bytes row = of.columns * numbers_.element;
  Block zeros = temporary(row);
  padded = temporary((numbers_.own_experts() + 1) * row);
  heap_.free(zeros);
  of.row_numbers = allocate(choices() * kIndex);
  const Block out = temporary(choices() * row);
  done(of.row_numbers, keeps);
  return out;
}

// The gradient is a part of a tensor that has a row more, which lives as long.
void Mixture::biases_backward(Biased& of) {
  const Bytes bytes = (numbers_.own_experts() + 1) * of.columns * numbers_.element;
  Block zeros = numbers_.operators == Operators::kCuda ? 0 : temporary(bytes);
  Block sum = heap_.allocate(bytes, Owner::kGradients);
  heap_.free(zeros);
  heap_.free(of.row_numbers);
  Parameter& biases = parameters_[of.biases];
  if (biases.gradient == 0)
    biases.gradient = sum;
  else
    heap_.free(sum);
}

Block Mixture::run_clamped(bool keeps) {
  const Numbers& n = numbers_;
  const Bytes narrow = choices() * n.expert_ffn * n.element;
  Block lengths = temporary((n.own_experts() + 1) * kIndex);
  Block product = temporary(2 * narrow), first = 0, second = 0;
  Block first_of_rows = biases_of_rows(fc1_, first, keeps);
  both_ = allocate(2 * narrow);
  heap_.free(product);
  gate_ = allocate(narrow);
  up_ = allocate(narrow);
  Block scaled = temporary(narrow);
  sigmoid_ = allocate(narrow);
  heap_.free(scaled);
  gated_ = allocate(narrow);
  done(sigmoid_, keeps);
  activated_ = allocate(narrow);
  for (Block* block : {&gate_, &up_, &gated_}) done(*block, keeps);
  product = temporary(rows_of_choices());
  Block second_of_rows = biases_of_rows(fc2_, second, keeps);
  const Block out = allocate(rows_of_choices());
  for (Block* block : {&lengths, &first, &first_of_rows, &product, &second, &second_of_rows}) heap_.free(*block);
  done(both_, keeps);
  done(activated_, keeps);
  return out;
}

Block Mixture::clamped_backward(Block& gradient) {
  const Numbers& n = numbers_;
  const Bytes elements = choices() * n.expert_ffn, narrow = elements * n.element;
  biases_backward(fc2_);
  Block of_gated = product_backward(fc2_.weight, narrow);
  heap_.free_read(gradient, {&activated_}, recomputed_);
  heap_.free(parameters_[fc2_.weight].added);
  // addcmul() copies each factor, times 1. Its gradient is the gradient of the sum's first term too.
  Block copy = temporary(narrow), more = temporary(narrow);
  heap_.free(copy);
  copy = temporary(narrow);
  Block of_up = temporary(narrow);
  heap_.free(copy);
  heap_.free(gated_);
  heap_.free(up_);
  accumulate(of_gated, more, narrow);
  Block of_sigmoid = temporary(narrow), of_gate = temporary(narrow);
  heap_.free_read(of_gated, {&gate_}, recomputed_);
  Block of_scaled = temporary(narrow);
  heap_.free_read(of_sigmoid, {&sigmoid_}, recomputed_);
  more = temporary(narrow);
  heap_.free(of_scaled);
  accumulate(of_gate, more, narrow);
  const auto unclamp = [&](Block& of, int limits) {
    Block zero = temporary(n.element), mask = temporary(elements), other = limits == 2 ? temporary(elements) : 0;
    Block out = temporary(narrow);
    for (Block* block : {&zero, &mask, &other, &of}) heap_.free(*block);
    of = out;
  };
  unclamp(of_up, 2);
  unclamp(of_gate, 1);
  heap_.free(both_);
  Block of_both = temporary(2 * narrow);
  heap_.free(of_up);
  more = temporary(2 * narrow);
  heap_.free(of_gate);
  accumulate(of_both, more, 2 * narrow);
  biases_backward(fc1_);
  const Block of_rows = product_backward(fc1_.weight, rows_of_choices());
  heap_.free_read(of_both, {&rows_}, recomputed_);
  heap_.free(parameters_[fc1_.weight].added);
  return of_rows;
}

Block Mixture::wide_logits(bool keeps) {
  const Numbers& n = numbers_;
  wide_input_ = allocate(n.rows_f32(n.hidden));
  wide_weight_ = allocate(n.experts * n.hidden * kF32);
  Block wide_biases = temporary(n.experts * kF32);
  const Block logits = kept_.make(keeps_logits_, scores());
  heap_.begin_product();
  heap_.free(wide_biases);
  done(wide_input_, keeps);
  done(wide_weight_, keeps);
  return logits;
}

Block Mixture::wide_router_backward(Block& of_logits) {
  const Numbers& n = numbers_;
  Block of_input = temporary(n.rows_f32(n.hidden));
  heap_.begin_product();
  Block of_weight = temporary(n.experts * n.hidden * kF32), of_biases = temporary(n.experts * kF32);
  heap_.free_read(of_logits, {&wide_input_, &wide_weight_}, recomputed_);
  for (auto [parameter, of] : {std::pair(router_biases_, &of_biases), std::pair(router_, &of_weight)}) {
    make_gradient(n, heap_, parameters_[parameter]);
    heap_.free(*of);
    heap_.free(parameters_[parameter].added);
  }
  const Block out = temporary(n.rows(n.hidden));
  heap_.free(of_input);
  return out;
}

}  // namespace fp8lab::eager
