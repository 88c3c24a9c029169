#include "harness/eager/mixture.h"

namespace fp8lab::eager {

Mixture::Mixture(const Numbers& numbers, Heap& heap, std::vector<Parameter>& parameters, KeptResults& kept)
    : numbers_(numbers), heap_(heap), parameters_(parameters), kept_(kept), keeps_logits_(kept.keeps_next_product()) {
  const Numbers& n = numbers;
  router_ = weight(n.experts, n.hidden, false);
  if (n.clamps) {
    router_biases_ = weight(n.experts, 1, false);
    make_clamped();
    return;
  }
  experts_ = gated(choices(), n.expert_ffn, true);
  if (n.shared_ffn > 0) shared_ = gated(n.tokens, n.shared_ffn, false);
}

std::size_t Mixture::weight(Bytes rows, Bytes columns, bool is_of_experts) {
  // With more shards than experts, torchtitan divides the rows of every expert.
  const bool divides = is_of_experts && numbers_.in_titan() && numbers_.shards > numbers_.experts;
  parameters_.push_back({.rows = rows, .columns = columns, .is_of_experts = is_of_experts, .divides_experts = divides});
  return parameters_.size() - 1;
}

Mixture::Gated Mixture::gated(Bytes rows, Bytes width, bool are_experts) {
  const Numbers& n = numbers_;
  Gated out;
  out.rows = rows;
  out.width = width;
  const auto add = [&](Bytes outputs, Bytes inputs) {
    return are_experts ? weight(n.own_experts(), outputs * inputs, true) : weight(outputs, inputs, false);
  };
  for (int i = 0; i < (n.in_titan() ? 2 : 1); ++i) out.first.push_back(add(n.in_titan() ? width : 2 * width, n.hidden));
  out.last = add(n.hidden, width);
  // Selective recomputation keeps no grouped product.
  for (std::size_t i = 0; i < out.first.size() + 1; ++i)
    out.is_kept.push_back(!are_experts && kept_.keeps_next_product());
  return out;
}

void Mixture::make() {
  if (!numbers_.has_router_biases) return;
  for (int i = 0; i < 2; ++i) heap_.allocate(numbers_.experts * kF32, Owner::kParameters);
}

void Mixture::choose() {
  const Numbers& n = numbers_;
  Block biased = n.has_router_biases ? temporary(scores()) : 0;
  if (n.expert_groups > 0) {
    const Bytes groups = n.tokens * n.expert_groups, largest = n.tokens * n.top_groups;
    Block values = temporary(2 * groups * kF32), indices = temporary(2 * groups * kIndex);
    Block sums = temporary(groups * kF32);
    heap_.free(values);
    values = temporary(largest * kF32);
    Block chosen = temporary(largest * kIndex);
    heap_.free(values);
    Block left_out = temporary(groups);
    Block limited = temporary(scores());
    for (Block* block : {&indices, &sums, &chosen, &biased}) heap_.free(*block);
    biased = limited;
    Block values_of_choice = temporary(choices() * kF32);
    chosen_ = allocate(choices() * kIndex);
    heap_.free(values_of_choice);
    heap_.free(left_out);  // masked_fill saved it
  } else {
    Block values = temporary(choices() * kF32);
    chosen_ = allocate(choices() * kIndex);
    heap_.free(values);
  }
  heap_.free(biased);
  best_ = allocate(choices() * kF32);
}

void Mixture::route(bool keeps) {
  const Numbers& n = numbers_;
  Block logits = n.clamps ? wide_logits(keeps) : kept_.make(keeps_logits_, n.tokens * n.experts * n.element);
  heap_.begin_product();
  if (n.element != kF32 && !n.clamps) {
    Block converted = temporary(scores());
    kept_.drop(logits);
    logits = converted;
  }
  scores_ = allocate(scores());
  if (n.has_router_biases || n.expert_groups > 0) {
    choose();
  } else {
    best_ = allocate(choices() * kF32);
    chosen_ = allocate(choices() * kIndex);
  }
  Block sums = temporary(n.tokens * kF32);
  sums_ = allocate(n.tokens * kF32);
  heap_.free(sums);
  Block shares = temporary(choices() * kF32);
  Block weights = temporary(choices() * kF32);
  heap_.free(shares);
  done(sums_, keeps);
  done(best_, keeps);
  done(scores_, keeps);
  kept_.drop(logits);
  Block numbers = temporary(choices() * kF32);
  counts_ = allocate(n.experts * kF32);
  heap_.free(numbers);
  Block sorted = temporary(choices() * kIndex);
  order_ = allocate(choices() * kIndex);
  heap_.free(sorted);
  weights_ = allocate(choices() * kF32);
  heap_.free(weights);
  tokens_ = allocate(choices() * kIndex);
}

void Mixture::run_experts(Gated& of, bool keeps) {
  const Bytes all = of.rows * of.width * numbers_.element;
  if (numbers_.in_titan()) {
    of.gate = kept_.make(of.is_kept[0], all);
    of.silu = allocate(all);
    done(of.gate, keeps);
    of.up = kept_.make(of.is_kept[1], all);
    of.activated = allocate(all);
    done(of.up, keeps);
    return;
  }
  of.both = kept_.make(of.is_kept[0], 2 * all);
  of.silu = allocate(all);
  of.activated = allocate(all);
  done(of.silu, keeps);
}

Block Mixture::output_of(Gated& of, bool keeps) {
  const Block out = kept_.make(of.is_kept.back(), of.rows * numbers_.hidden * numbers_.element);
  for (Block* block : {&of.activated, &of.both, &of.silu}) done(*block, keeps);
  return out;
}

void Mixture::dispatch() {
  const Numbers& n = numbers_;
  const Bytes counts = n.experts * kIndex, row_numbers = choices() * kIndex, rows = rows_of_choices();
  Block own = temporary(counts), theirs = temporary(counts);
  heap_.free(own);
  Block arrived = temporary(rows);
  heap_.free(rows_);
  Block begins = temporary(counts), lengths = temporary(counts), repeated = temporary(row_numbers);
  Block segments = temporary(row_numbers);
  heap_.free(repeated);
  Block first = temporary(counts), places = temporary(row_numbers), numbers = temporary(row_numbers);
  arrival_order_ = allocate(row_numbers);
  heap_.free(places);
  heap_.free(numbers);
  ends_ = allocate(n.own_experts() * 4);
  for (Block* block : {&begins, &lengths, &segments, &first}) heap_.free(*block);
  rows_ = allocate(rows);
  heap_.free(arrived);
  heap_.free(theirs);
}

Block Mixture::moved_back(Block& outputs) {
  const Bytes rows = rows_of_choices();
  Block sent = temporary(rows);
  heap_.free(outputs);
  const Block out = allocate(rows);
  heap_.free(sent);
  return out;
}

void Mixture::dispatch_backward(Block& of_outputs) {
  const Bytes rows = rows_of_choices();
  Block arrived = temporary(rows);
  heap_.free(of_outputs);
  of_outputs = temporary(rows);
  heap_.free(arrived);
}

Block Mixture::moved_back_backward(Block& of_rows) {
  const Bytes rows = rows_of_choices();
  Block of_arrived = scattered(rows);
  heap_.free(of_rows);
  heap_.free(arrival_order_);
  const Block out = temporary(rows);
  heap_.free(of_arrived);
  return out;
}

void Mixture::run(bool keeps) {
  const Numbers& n = numbers_;
  const Bytes all = choices() * n.hidden;
  route(keeps);
  rows_ = allocate(all * n.element);
  if (dispatches())
    dispatch();
  else
    ends_ = allocate(n.experts * 4);
  Block outputs = 0;
  if (n.clamps) {
    outputs = run_clamped(keeps);
  } else {
    run_experts(experts_, keeps);
    outputs = output_of(experts_, keeps);
  }
  done(ends_, keeps);
  if (dispatches()) {
    outputs = moved_back(outputs);
    done(arrival_order_, keeps);
  }
  if (n.shared_ffn > 0) {
    run_experts(shared_, keeps);
    out_ = output_of(shared_, keeps);
  } else {
    out_ = allocate(n.rows(n.hidden));
  }
  if (n.element == kF32) {
    outputs_ = outputs;
    weighted_ = allocate(all * kF32);
    done(outputs_, keeps);
    return;
  }
  outputs_ = allocate(all * kF32);
  Block products = temporary(all * kF32);
  done(outputs_, keeps);
  weighted_ = allocate(all * n.element);
  heap_.free(products);
  heap_.free(outputs);
}

void Mixture::stop() {
  heap_.free(weighted_);
  kept_.drop(out_);
  heap_.free(counts_);
}

Block Mixture::finish(bool keeps) {
  const Block output = allocate(numbers_.rows(numbers_.hidden));
  done(rows_, keeps);
  stop();
  for (Block* block : {&tokens_, &weights_, &order_, &chosen_}) done(*block, keeps);
  return output;
}

Block Mixture::product_backward(std::size_t weight, Bytes bytes_of_input) {
  make_gradient(numbers_, heap_, parameters_[weight]);
  heap_.begin_product();
  return temporary(bytes_of_input);
}

void Mixture::accumulate(Block& sum, Block& more, Bytes bytes) {
  if (numbers_.operators != Operators::kCuda) {
    Block both = temporary(bytes);
    heap_.free(sum);
    sum = both;
  }
  heap_.free(more);
}

Block Mixture::backward_of(Gated& of, Block* input, Block& gradient, bool copies_gradient) {
  const Bytes all = of.rows * of.width * numbers_.element, inputs = of.rows * numbers_.hidden * numbers_.element;
  Block copy = copies_gradient ? temporary(inputs) : 0, none = 0;
  Block of_activated = product_backward(of.last, all);
  heap_.free(copy);
  heap_.free_read(gradient, {&of.activated}, recomputed_);
  heap_.free(parameters_[of.last].added);
  Block of_up = temporary(all), of_silu = temporary(all);
  heap_.free_read(of_activated, {&of.silu, &of.up}, recomputed_);
  if (numbers_.in_titan()) {
    Block sum = product_backward(of.first[1], inputs);
    heap_.free(of_up);
    heap_.free(parameters_[of.first[1]].added);
    Block of_gate = temporary(all);
    heap_.free_read(of_silu, {&of.gate}, recomputed_);
    Block more = product_backward(of.first[0], inputs);
    heap_.free_read(of_gate, {input != nullptr ? input : &none}, recomputed_);
    heap_.free(parameters_[of.first[0]].added);
    accumulate(sum, more, inputs);
    return sum;
  }
  Block of_gate = temporary(all);
  heap_.free_read(of_silu, {&of.both}, recomputed_);
  Block of_both = temporary(2 * all);
  heap_.free(of_gate);
  heap_.free(of_up);
  const Block of_input = product_backward(of.first[0], inputs);
  heap_.free_read(of_both, {input != nullptr ? input : &none}, recomputed_);
  heap_.free(parameters_[of.first[0]].added);
  return of_input;
}

Block Mixture::scattered(Bytes bytes) {
  Block out = temporary(bytes);
  if (numbers_.operators == Operators::kCuda) return out;
  const Block second = temporary(bytes);
  heap_.free(out);
  return second;
}

Block Mixture::route_backward(Block& of_weights) {
  const Numbers& n = numbers_;
  const Bytes all = choices() * kF32;
  Block of_flat = scattered(all);
  heap_.free(of_weights);
  heap_.free(order_);
  Block of_shares = temporary(all);
  heap_.free(of_flat);
  // The division has two gradients: by the weights, and by their sum.
  Block of_best = temporary(all), of_sums = temporary(all);
  heap_.free(of_sums);
  heap_.free(of_shares);
  heap_.free(best_);
  heap_.free(sums_);
  accumulate(of_best, of_sums, all);
  Block of_scores = scattered(scores());
  heap_.free(of_best);
  heap_.free(chosen_);
  Block of_logits = temporary(scores());
  heap_.free(of_scores);
  heap_.free(scores_);
  if (n.element == kF32 || n.clamps) return of_logits;
  const Block out = temporary(n.tokens * n.experts * n.element);
  heap_.free(of_logits);
  return out;
}

Block Mixture::backward(Block& normed, Block& gradient, How how) {
  const Numbers& n = numbers_;
  recomputed_ = how.is_recomputed;
  const Bytes all = choices() * n.hidden;
  Block of_rows = temporary(all * n.element);
  if (n.shared_ffn == 0) heap_.free(gradient);
  if (n.element != kF32) {
    Block converted = temporary(all * kF32);
    heap_.free(of_rows);
    of_rows = converted;
  }
  Block products = temporary(all * kF32), of_outputs = temporary(all * kF32);  // the second factor's gradient first
  const auto free_saved = [&] {
    heap_.free(outputs_);
    heap_.free(weights_);
  };
  if (how.is_recomputed) free_saved();
  // Autograd sums the products up after the operation.
  Block of_weights = temporary(choices() * kF32);
  heap_.free(products);
  heap_.free(of_rows);
  free_saved();
  if (n.element != kF32) {
    Block converted = temporary(all * n.element);
    heap_.free(of_outputs);
    of_outputs = converted;
  }
  Block of_normed = n.shared_ffn > 0 ? backward_of(shared_, nullptr, gradient, how.copies_gradient) : 0;
  if (dispatches()) dispatch_backward(of_outputs);
  Block of_gathered = n.clamps ? clamped_backward(of_outputs) : backward_of(experts_, &rows_, of_outputs, false);
  heap_.free(ends_);
  if (dispatches()) of_gathered = moved_back_backward(of_gathered);
  Block more = scattered(n.rows(n.hidden));
  heap_.free(of_gathered);
  heap_.free(tokens_);
  if (of_normed == 0)
    of_normed = more;
  else
    accumulate(of_normed, more, n.rows(n.hidden));
  Block of_logits = route_backward(of_weights);
  if (n.clamps) {
    more = wide_router_backward(of_logits);
  } else {
    more = product_backward(router_, n.rows(n.hidden));
    heap_.free_read(of_logits, {&normed}, recomputed_);
    heap_.free(parameters_[router_].added);
  }
  accumulate(of_normed, more, n.rows(n.hidden));
  return of_normed;
}

}  // namespace fp8lab::eager
