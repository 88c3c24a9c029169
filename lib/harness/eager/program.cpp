#include "harness/eager/program.h"

#include <algorithm>
#include <numeric>

#include "harness/eager/training.h"

namespace fp8lab::eager {

Training::Training(const CellConfig& cell, Program program, Operators operators, std::int64_t most_passes,
                   Bytes ring_rank, const Engine& engine)
    : cell_(cell),
      n_(cell, program, operators, ring_rank),
      heap_(operators == Operators::kCuda),
      passes_(std::min(cell.training.micro_batches, most_passes)),
      engine_(engine) {
  for (Bytes i = 0; i < n_.layers; ++i)
    layers_.push_back(engine_.make_layer ? engine_.make_layer(n_, heap_, i) : std::make_unique<Layer>(n_, heap_, i));
  if (n_.vocabulary > 0) {
    embedding_ = {.rows = n_.vocabulary, .columns = n_.hidden};
    head_ = embedding_;
    positions_ = {.rows = n_.seq, .columns = n_.hidden};
    embedding_.is_frozen = positions_.is_frozen = n_.frozen > 0;
    for (Bytes i = 0; i < n_.norm_vectors; ++i) norm_.push_back({.rows = n_.hidden, .columns = 1});
  }
  make_modules();
  if (n_.replicated) buckets_.emplace(heap_, gradients_in_backward(), n_.operators == Operators::kCuda);
}

void Training::make_modules() {
  for (const auto& layer : layers_) {
    std::vector<Parameter*> parameters;
    for (Parameter& parameter : layer->parameters) parameters.push_back(&parameter);
    modules_.emplace_back(n_, heap_, shared_, parameters, n_.reshards);
  }
  if (!has_embedding()) return;
  std::vector<Parameter*> first{&embedding_}, last;
  if (n_.learned_positions) first.push_back(&positions_);
  for (Parameter& vector : norm_) last.push_back(&vector);
  if (!n_.tied) last.push_back(&head_);
  const bool is_one = !n_.in_titan() || n_.tied || n_.learned_positions;
  if (is_one) {
    first.insert(first.end(), last.begin(), last.end());
    last_ = &ends_.emplace_back(n_, heap_, shared_, first, false);
    return;
  }
  first_ = &ends_.emplace_back(n_, heap_, shared_, first, n_.reshards);
  last_ = &ends_.emplace_back(n_, heap_, shared_, last, false);
}

std::vector<Bytes> Training::gradients_in_backward() const {
  std::vector<const Parameter*> parameters{&embedding_};
  if (n_.learned_positions) parameters.push_back(&positions_);
  for (const auto& layer : layers_)
    for (const Parameter& parameter : layer->parameters) parameters.push_back(&parameter);
  for (const Parameter& vector : norm_) parameters.push_back(&vector);
  if (!n_.tied) parameters.push_back(&head_);
  std::vector<Bytes> out;  // 0 for what a model without a vocabulary lacks
  for (auto parameter = parameters.rbegin(); parameter != parameters.rend(); ++parameter)
    if (!(*parameter)->is_frozen) out.push_back((*parameter)->elements() * n_.element);
  return out;
}

Module* Training::before(Bytes layer) { return layer > 0 ? &modules_[static_cast<std::size_t>(layer) - 1] : first_; }

Module* Training::after(Bytes layer) {
  if (n_.expert_parallel == 1) return nullptr;
  const auto next = static_cast<std::size_t>(layer) + 1;
  if (next < modules_.size()) return &modules_[next];
  return first_ != nullptr ? last_ : nullptr;
}

void Training::add_gradient(Parameter& parameter) {
  make_gradient(n_, heap_, parameter);
  heap_.free(parameter.added);
}

std::vector<Group*> Training::in_order() {
  std::vector<Group*> out;
  const auto add = [&](Module& module) {
    for (Group& group : module.groups()) out.push_back(&group);
  };
  if (!ends_.empty()) add(ends_.front());
  for (Module& module : modules_) add(module);
  if (ends_.size() > 1) add(ends_.back());
  return out;
}

std::vector<Bytes> Training::elements(bool only_trained) {
  std::vector<Bytes> out;
  for (const Group* group : in_order()) {
    const std::vector<Bytes> own = group->shard_elements(only_trained);
    out.insert(out.end(), own.begin(), own.end());
  }
  return out;
}

// torchtitan's program has a table of complex numbers, made of their parts.
void Training::make_rotary_table() {
  if (!n_.in_titan() || !n_.gated) return;
  if (n_.has_sinks) {  // layers have tables; the model has positions of tokens, and beginnings of sequences
    heap_.allocate(n_.tokens * 8, Owner::kParameters);
    heap_.allocate((n_.batch + 1) * 4, Owner::kParameters);
    return;
  }
  const Bytes part = n_.seq * n_.rotated / 2 * kF32;
  Block real = heap_.allocate(part, Owner::kTemporaries), imaginary = heap_.allocate(part, Owner::kTemporaries);
  heap_.allocate(2 * part, Owner::kParameters);
  heap_.free(imaginary);
  heap_.free(real);
}

std::vector<Block> Training::list_of(Bytes bytes, Owner owner) {
  std::vector<Block> out;
  for (const Bytes count : elements(true)) out.push_back(heap_.allocate(count * bytes, owner));
  return out;
}

void Training::free_list(std::vector<Block>& list) {
  for (Block& block : list) heap_.free(block);
  list.clear();
}

void Training::make_optimizer_state() {
  const Bytes moment = !masters_.empty() || cell_.training.moments == Moments::kF32 ? kF32 : 2;
  for (const Bytes count : elements(true)) {
    state_.push_back(heap_.allocate(kF32, Owner::kOptimizer));  // the count of steps
    for (int i = 0; i < 2; ++i) state_.push_back(heap_.allocate(count * moment, Owner::kOptimizer));
  }
}

void Training::make_state_of_engine() {
  const TrainingConfig& training = cell_.training;
  const Bytes moment = training.moments == Moments::kF32 ? kF32 : 2;
  const Bytes master = training.master_weights == Master::kF32         ? kF32
                       : training.master_weights == Master::kRemainder ? 2
                                                                       : 0;
  for (const Bytes count : elements(true)) {
    for (const Bytes bytes : {moment, moment, master})
      state_.push_back(heap_.allocate(count * bytes, Owner::kOptimizer));
    if (master < kF32) continue;
    // What the master is copied out of, and its source.
    Block clone = heap_.allocate(count * n_.stored, Owner::kTemporaries);
    Block in_f32 = heap_.allocate(count * kF32, Owner::kTemporaries);
    heap_.free(in_f32);
    heap_.free(clone);
  }
}

void Training::update() {
  const TrainingConfig& training = cell_.training;
  heap_.enter(Phase::kOptimizer);
  if (n_.program == Program::kEngine) {
    if (state_.empty()) make_state_of_engine();
    Block temporaries = heap_.allocate(engine_.temporaries_of_optimizer, Owner::kTemporaries);
    heap_.free(temporaries);
    return;
  }
  // FP32 copies of the gradients for the masters.
  std::vector<Block> copies;
  if (!masters_.empty()) copies = list_of(kF32, Owner::kTemporaries);
  if (training.clip_norm > 0) {  // scaled in place, by the norms of all gradients and their stack
    Block norms = heap_.allocate(2 * static_cast<Bytes>(elements(true).size()) * kF32, Owner::kTemporaries);
    heap_.free(norms);
  }
  if (state_.empty() && training.optimizer != Optimizer::kSgd) make_optimizer_state();
  if (training.optimizer == Optimizer::kSgd && training.weight_decay != 0.0) {
    std::vector<Block> decayed = list_of(n_.stored, Owner::kTemporaries);
    free_list(decayed);
  }
  if (training.optimizer == Optimizer::kForeachAdam) {
    std::vector<Block> roots = list_of(masters_.empty() ? n_.stored : kF32, Owner::kTemporaries);
    free_list(roots);
  }
  free_list(copies);
}

Bytes Training::moved_tokens() const {
  constexpr Bytes kCount = 8;
  const Bytes rows = n_.tokens * n_.top_k * n_.hidden * n_.element;
  Bytes of_rank = 0;
  for (Bytes layer = n_.dense_layers; layer < n_.layers; ++layer) {
    const bool is_frozen = layer < n_.frozen;
    const bool is_recomputed = !is_frozen && n_.checkpoint_every > 0 && (layer + 1) % n_.checkpoint_every == 0;
    of_rank += (is_recomputed ? 2 : 1) * (n_.experts * kCount + 2 * rows) + (is_frozen ? 0 : 2 * rows);
  }
  return cell_.training.micro_batches * n_.expert_parallel * of_rank;
}

Bytes Training::attentions(bool in_backward) const {
  Bytes out = 0;
  for (Bytes layer = 0; layer < n_.layers; ++layer) {
    const bool is_frozen = layer < n_.frozen;
    const bool is_recomputed = !is_frozen && n_.checkpoint_every > 0 && (layer + 1) % n_.checkpoint_every == 0;
    out += in_backward ? !is_frozen : 1 + is_recomputed;
  }
  return cell_.training.micro_batches * out;
}

void Training::add_ring_traffic() {
  const Bytes ranks = n_.context_parallel;
  const Bytes of_rank = (attentions(false) + attentions(true)) * 2 * n_.rows(n_.kv);
  memory_.figures["traffic.all_gather_bytes"] += ranks * of_rank;
  memory_.received += (ranks - 1) * of_rank;
  // The gradients of a rank's keys and values pass all ranks and return.
  memory_.figures["traffic.ring_exchange_bytes"] = ranks * ranks * attentions(true) * 2 * n_.rows_f32(n_.kv);
}

void Training::add_traffic() {
  Bytes all_reduced = shared_.moved.all_reduced;
  if (n_.replicated) {
    const std::vector<Bytes> gradients = gradients_in_backward();
    all_reduced = std::accumulate(gradients.begin(), gradients.end(), Bytes{0});
  }
  if (n_.has_router_biases)  // each expert's tokens
    all_reduced += (cell_.model.layers - cell_.model.dense_layers) * n_.experts * kF32;
  // Each gradient's norm, in the type of the gradients. FP32 masters have norms of their own, which are one number.
  if (n_.sharded && cell_.training.clip_norm > 0 && masters_.empty())
    for (const Group* group : in_order())
      if (group->shards() > 1) all_reduced += static_cast<Bytes>(group->shard_elements(true).size()) * n_.stored;
  if (n_.expert_parallel > 1) memory_.figures["traffic.all_to_all_bytes"] = moved_tokens();
  if (n_.sharded) {
    memory_.figures["traffic.all_gather_bytes"] = shared_.moved.gathered;
    memory_.figures["traffic.reduce_scatter_bytes"] = shared_.moved.reduced;
    memory_.received = shared_.moved.received;
    memory_.sent = shared_.moved.sent;
  }
  if (n_.context_parallel > 1) add_ring_traffic();
  // torchao all-reduces amaxes too, which no figure has.
  if ((n_.sharded || n_.replicated) && !n_.float8) memory_.figures["traffic.all_reduce_bytes"] = all_reduced;
}

Memory Training::run() {
  for (Group* group : in_order()) group->make();
  for (const auto& layer : layers_) layer->make_buffers();
  heap_.allocate(engine_.scratch, Owner::kLibraries);
  make_rotary_table();
  const std::vector<Bytes> shards = elements(false);
  memory_.figures["memory.weight_bytes"] = std::accumulate(shards.begin(), shards.end(), Bytes{0}) * n_.stored;
  const TrainingConfig& training = cell_.training;
  const bool optimizes = training.optimizer != Optimizer::kNone;
  if (optimizes && training.master_weights == Master::kF32 && n_.stored != kF32 && n_.program != Program::kEngine)
    masters_ = list_of(kF32, Owner::kOptimizer);
  const std::int64_t steps = std::min<std::int64_t>(training.steps, kStepsThatReserve);
  for (std::int64_t step = 0; step < steps; ++step) {
    shared_.moved = {};
    Moved before_last;
    for (std::int64_t i = 0; i < passes_; ++i) {
      before_last = shared_.moved;
      pass(step, i, steps);
    }
    shared_.moved.repeat_since(before_last, training.micro_batches - passes_);
    if (optimizes) update();
    heap_.enter(Phase::kForward);
    for (Group* group : in_order()) group->drop_gradients();
    mark("memory.end_of_step_bytes");
  }
  memory_.figures["memory.retained_bytes"] = 0;
  if (steps > 0) add_traffic();
  Bytes highest = 0;
  for (const Phase phase : {Phase::kSetup, Phase::kForward, Phase::kBackward, Phase::kOptimizer}) {
    if (heap_.peak(phase) <= highest) continue;
    highest = heap_.peak(phase);
    memory_.peak_phase = phase;
    memory_.at_peak = heap_.at_peak(phase);
  }
  memory_.figures["memory.peak_bytes"] = highest;
  if (n_.operators == Operators::kCuda) memory_.figures["memory.reserved_peak_bytes"] = heap_.reserved();
  memory_.figures["memory.forward_peak_bytes"] = heap_.peak(Phase::kForward);
  memory_.figures["memory.optimizer_peak_bytes"] = heap_.peak(Phase::kOptimizer);
  return std::move(memory_);
}

Memory memory_of(const CellConfig& cell, const Engine& engine) {
  Memory out = Training(cell, Program::kEngine, Operators::kCuda, kPassesThatDiffer, 0, engine).run();
  out.figures.erase("memory.reserved_peak_bytes");
  return out;
}

Memory memory_of(const CellConfig& cell, Program program, Operators operators, std::int64_t most_passes) {
  const auto of = [&](Bytes ring_rank) { return Training(cell, program, operators, most_passes, ring_rank).run(); };
  const Bytes ranks = cell.context_parallel;
  Memory out = of(ranks - 1);
  if (ranks == 1) return out;
  // The last rank attends with all its queries in each call. The one before it has one call with half of them too, and
  // of more than two ranks no other has other calls.
  Memory other = of(ranks - 2);
  if (other.figures.at("memory.peak_bytes") > out.figures.at("memory.peak_bytes")) std::swap(out, other);
  for (auto& [name, bytes] : out.figures) bytes = std::max(bytes, other.figures.at(name));
  return out;
}

}  // namespace fp8lab::eager
