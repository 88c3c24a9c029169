#include "harness/eager/program.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <optional>

#include "harness/eager/ddp.h"
#include "harness/eager/fsdp2.h"

namespace fp8lab::eager {
namespace {

constexpr Bytes kToken = 8;
constexpr Bytes kCublasWorkspace = Bytes{32} << 20;  // each handle has one, on Hopper and Blackwell

class Training {
 public:
  Training(const CellConfig& cell, Program program, Operators operators)
      : cell_(cell), n_(cell, program, operators), heap_(operators == Operators::kCuda) {
    for (Bytes i = 0; i < n_.layers; ++i) layers_.emplace_back(n_, heap_, i);
    if (n_.vocabulary > 0) {
      embedding_ = {.rows = n_.vocabulary, .columns = n_.hidden};
      head_ = embedding_;
      positions_ = {.rows = n_.seq, .columns = n_.hidden};
      for (Bytes i = 0; i < n_.norm_vectors; ++i) norm_.push_back({.rows = n_.hidden, .columns = 1});
    }
    make_groups();
    if (n_.replicated) buckets_.emplace(heap_, gradients_in_backward(), n_.operators == Operators::kCuda);
  }

  Memory run();

 private:
  bool has_embedding() const { return n_.vocabulary > 0; }
  void make_groups();
  std::vector<Bytes> gradients_in_backward() const;
  /// Elements that this rank holds of each parameter.
  std::vector<Bytes> elements() const;
  /// A tensor of `bytes` an element for each parameter.
  std::vector<Block> list_of(Bytes bytes, Owner owner);
  void free_list(std::vector<Block>& list);
  void make_optimizer_state();
  void pass(std::int64_t step, std::int64_t micro_batch, std::int64_t steps);
  void forward();
  void loss_forward(Block output);
  void backward();
  Block loss_backward();
  Block head_backward(Block of_logits);
  void embedding_backward(Block gradient);
  void update();
  /// The group whose backward follows the backward of `layer`, in the order in which forward ended.
  Group* before(Bytes layer);
  void add_gradient(Parameter& parameter);
  void mark(const char* name) { memory_.figures[name] = heap_.live(); }

  const CellConfig& cell_;
  const Numbers n_;
  Heap heap_;
  Communication shared_;
  std::deque<Layer> layers_;
  Parameter embedding_, head_, positions_;
  std::vector<Parameter> norm_;
  /// Groups of a torchtitan program: `first_` has the embedding, `last_` the norm and the head. The worker's root has
  /// all of them, in `last_`. A tied head is in the embedding's group.
  std::deque<Group> groups_;  ///< the groups of the layers
  std::deque<Group> ends_;
  Group* first_ = nullptr;
  Group* last_ = nullptr;
  std::optional<Buckets> buckets_;  ///< under DistributedDataParallel
  bool reduces_ = false;            ///< the last micro-batch of a step is in backward, which fills them

  Block tokens_ = 0, targets_ = 0, stream_ = 0, normed_ = 0, log_probabilities_ = 0, loss_ = 0, output_ = 0,
        weights_of_loss_ = 0;
  SavedNorm saved_;  ///< tensors of the last norm
  std::vector<Block> state_, masters_;
  bool has_backward_workspace_ = false;  ///< autograd's thread has a cuBLAS handle, and a workspace, of its own
  Memory memory_;
};

void Training::make_groups() {
  for (Layer& layer : layers_) {
    std::vector<Parameter*> parameters;
    for (Parameter& parameter : layer.parameters) parameters.push_back(&parameter);
    groups_.emplace_back(n_, heap_, shared_, std::move(parameters), n_.reshards);
  }
  if (!has_embedding()) return;
  std::vector<Parameter*> first{&embedding_}, last;
  if (n_.learned_positions) first.push_back(&positions_);
  for (Parameter& vector : norm_) last.push_back(&vector);
  if (!n_.tied) last.push_back(&head_);
  const bool is_one = !n_.in_titan() || n_.tied || n_.learned_positions;
  if (is_one) {
    first.insert(first.end(), last.begin(), last.end());
    last_ = &ends_.emplace_back(n_, heap_, shared_, std::move(first), false);
    return;
  }
  first_ = &ends_.emplace_back(n_, heap_, shared_, std::move(first), n_.reshards);
  last_ = &ends_.emplace_back(n_, heap_, shared_, std::move(last), false);
}

std::vector<Bytes> Training::gradients_in_backward() const {
  std::vector<const Parameter*> parameters{&embedding_};
  if (n_.learned_positions) parameters.push_back(&positions_);
  for (const Layer& layer : layers_)
    for (const Parameter& parameter : layer.parameters) parameters.push_back(&parameter);
  for (const Parameter& vector : norm_) parameters.push_back(&vector);
  if (!n_.tied) parameters.push_back(&head_);
  std::vector<Bytes> out;  // 0 for what a model without a vocabulary lacks
  for (auto parameter = parameters.rbegin(); parameter != parameters.rend(); ++parameter)
    out.push_back((*parameter)->elements() * n_.element);
  return out;
}

Group* Training::before(Bytes layer) { return layer > 0 ? &groups_[static_cast<std::size_t>(layer) - 1] : first_; }

void Training::add_gradient(Parameter& parameter) {
  make_gradient(n_, heap_, parameter);
  heap_.free(parameter.added);
}

void Training::forward() {
  if (last_ != nullptr && first_ == nullptr) last_->before_forward();
  Block stream = 0;
  if (has_embedding()) {
    if (first_ != nullptr) first_->before_forward();
    stream = heap_.allocate(n_.rows(n_.hidden), Owner::kSaved);
    if (n_.scales_embeddings) {
      const Block scaled = heap_.allocate(n_.rows(n_.hidden), Owner::kSaved);
      heap_.free(stream);
      stream = scaled;
    }
    if (n_.learned_positions) {
      Block rows = heap_.allocate(n_.rows(n_.hidden), Owner::kTemporaries);
      Block sum = heap_.allocate(n_.rows(n_.hidden), Owner::kSaved);
      heap_.free(rows);
      heap_.free(stream);
      stream = sum;
    }
    if (first_ != nullptr) first_->after_forward();
  }
  for (Bytes i = 0; i < n_.layers; ++i) {
    const auto at = static_cast<std::size_t>(i);
    groups_[at].before_forward();
    const bool is_input = i == 0 && !has_embedding();
    stream = layers_[at].forward(is_input ? tokens_ : stream, is_input);
    groups_[at].after_forward();
  }
  if (!has_embedding()) {
    heap_.free(shared_.gathered);
    loss_forward(stream);
    return;
  }
  if (first_ != nullptr) last_->before_forward();
  const bool composed = n_.on_host() && n_.gated && n_.element != kF32;
  if (composed) saved_.input_f32 = heap_.allocate(n_.rows_f32(n_.hidden), Owner::kSaved);
  if (n_.on_host() && n_.gated) saved_.normalized = heap_.allocate(n_.rows_f32(n_.hidden), Owner::kSaved);
  normed_ = heap_.allocate(n_.rows(n_.hidden), Owner::kSaved);
  const Bytes statistic = n_.tokens * (n_.on_host() && !n_.gated ? n_.element : kF32);
  if (!n_.gated) saved_.mean = heap_.allocate(statistic, Owner::kSaved);
  saved_.deviation = heap_.allocate(statistic, Owner::kSaved);
  if (composed) heap_.free(stream);
  stream_ = stream;
  Block logits = heap_.allocate(n_.rows(n_.vocabulary), Owner::kLogits);
  heap_.free(shared_.gathered);
  loss_forward(logits);
}

void Training::loss_forward(Block output) {
  if (!has_embedding()) {
    const bool is_mse = cell_.training.loss == Loss::kMse;
    // The storage of mse_loss's result has the size of its input, which FakeTensorMode does not show.
    const bool has_all = is_mse && n_.operators != Operators::kCudaOnShapes;
    loss_ = heap_.allocate(has_all ? n_.rows(n_.hidden) : n_.element, Owner::kTemporaries);
    Block squares = is_mse && n_.operators == Operators::kCuda
                        ? heap_.allocate(n_.rows(n_.hidden), Owner::kTemporaries)  // inside of the kernel
                        : 0;
    heap_.free(squares);
    if (is_mse)
      output_ = output;
    else
      heap_.free(output);
    return;
  }
  const Bytes all = n_.rows_f32(n_.vocabulary);
  Block copy = n_.element == kF32 ? 0 : heap_.allocate(all, Owner::kLogits);
  log_probabilities_ = heap_.allocate(all, Owner::kLogits);
  loss_ = heap_.allocate(kF32, Owner::kTemporaries);
  weights_of_loss_ = heap_.allocate(kF32, Owner::kTemporaries);
  heap_.free(copy);
  heap_.free(output);
}

Block Training::loss_backward() {
  if (!has_embedding()) {
    if (cell_.training.loss != Loss::kMse) return 0;
    const Block gradient = heap_.allocate(n_.rows(n_.hidden), Owner::kTemporaries);
    heap_.free(output_);
    return gradient;
  }
  const Bytes all = n_.rows_f32(n_.vocabulary);
  Block of_probabilities = heap_.allocate(all, Owner::kLogits);
  Block of_copy = heap_.allocate(all, Owner::kLogits);
  heap_.free(of_probabilities);
  heap_.free(log_probabilities_);
  heap_.free(weights_of_loss_);
  if (n_.element == kF32) return of_copy;
  const Block of_logits = heap_.allocate(n_.rows(n_.vocabulary), Owner::kLogits);
  heap_.free(of_copy);
  return of_logits;
}

Block Training::head_backward(Block of_logits) {
  Parameter& head = n_.tied ? embedding_ : head_;
  make_gradient(n_, heap_, head);
  Block of_normed = heap_.allocate(n_.rows(n_.hidden), Owner::kTemporaries);
  heap_.free(normed_);
  heap_.free(of_logits);
  heap_.free(head.added);
  for (Parameter& vector : norm_) add_gradient(vector);
  Block of_stream = 0;
  if (saved_.normalized != 0) {
    of_stream = composed_norm_backward(n_, heap_, saved_, of_normed, {n_.hidden});
  } else {
    of_stream = heap_.allocate(n_.rows(n_.hidden), Owner::kTemporaries);
    heap_.free(of_normed);
    heap_.free(saved_.mean);
    heap_.free(saved_.deviation);
  }
  heap_.free(stream_);
  return of_stream;
}

void Training::embedding_backward(Block gradient) {
  if (n_.scales_embeddings) {
    const Block of_rows = heap_.allocate(n_.rows(n_.hidden), Owner::kTemporaries);
    heap_.free(gradient);
    gradient = of_rows;
  }
  add_gradient(embedding_);
  // The worker repeats positions for every sequence. Of one sequence the stream's gradient itself becomes theirs.
  const bool is_theirs = !n_.in_titan() && n_.batch == 1;
  if (is_theirs) heap_.free(gradient);
  if (n_.learned_positions) add_gradient(positions_);
  heap_.free(gradient);
}

void Training::backward() {
  Block gradient = loss_backward();
  if (has_embedding()) {
    last_->before_backward(before(n_.layers));
    gradient = head_backward(gradient);
    if (reduces_ && !n_.tied && buckets_->is_first_gradient_reduced_alone()) buckets_->reduce();
    if (first_ != nullptr) last_->after_backward();
  }
  for (Bytes i = n_.layers; i-- > 0;) {
    const auto at = static_cast<std::size_t>(i);
    groups_[at].before_backward(before(i));
    gradient = layers_[at].backward(gradient);
    groups_[at].after_backward();
    if (reduces_) buckets_->reduce();
  }
  if (has_embedding()) {
    if (first_ != nullptr) first_->before_backward(nullptr);
    embedding_backward(gradient);
    (first_ != nullptr ? first_ : last_)->after_backward();
  } else {
    heap_.free(gradient);
  }
  shared_.finalize_backward(heap_);
}

void Training::pass(std::int64_t step, std::int64_t micro_batch, std::int64_t steps) {
  const bool is_last_of_step = micro_batch + 1 == cell_.training.micro_batches;
  reduces_ = buckets_.has_value() && is_last_of_step;
  heap_.free(loss_);
  heap_.free(weights_of_loss_);
  heap_.free(tokens_);
  heap_.free(targets_);
  const Bytes row = has_embedding() ? n_.tokens * kToken : n_.rows(n_.hidden);
  tokens_ = heap_.allocate(row, Owner::kInputs);
  if (has_embedding() || cell_.training.loss == Loss::kMse) targets_ = heap_.allocate(row, Owner::kInputs);
  heap_.enter(Phase::kForward);
  if (buckets_) buckets_->before_forward(step > 0);
  forward();
  mark("memory.end_of_forward_bytes");
  if (is_last_of_step && step + 1 == steps) memory_.at_end_of_forward = heap_.by_owner();
  heap_.enter(Phase::kBackward);
  Block one = heap_.allocate(kF32, Owner::kTemporaries);
  if (n_.operators == Operators::kCuda && !has_backward_workspace_) {
    has_backward_workspace_ = true;
    heap_.allocate(kCublasWorkspace, Owner::kLibraries);
  }
  backward();
  heap_.free(one);
  mark("memory.end_of_backward_bytes");
}

std::vector<Bytes> Training::elements() const {
  std::vector<Bytes> out;
  for (const std::deque<Group>* groups : {&groups_, &ends_})
    for (const Group& group : *groups) {
      const std::vector<Bytes> own = group.shard_elements();
      out.insert(out.end(), own.begin(), own.end());
    }
  return out;
}

std::vector<Block> Training::list_of(Bytes bytes, Owner owner) {
  std::vector<Block> out;
  for (const Bytes count : elements()) out.push_back(heap_.allocate(count * bytes, owner));
  return out;
}

void Training::free_list(std::vector<Block>& list) {
  for (Block& block : list) heap_.free(block);
  list.clear();
}

void Training::make_optimizer_state() {
  const Bytes moment = !masters_.empty() || cell_.training.moments == Moments::kF32 ? kF32 : 2;
  for (const Bytes count : elements()) {
    state_.push_back(heap_.allocate(kF32, Owner::kOptimizer));  // the count of steps
    for (int i = 0; i < 2; ++i) state_.push_back(heap_.allocate(count * moment, Owner::kOptimizer));
  }
}

void Training::update() {
  const TrainingConfig& training = cell_.training;
  heap_.enter(Phase::kOptimizer);
  // FP32 copies of the gradients for the masters.
  std::vector<Block> copies;
  if (!masters_.empty()) copies = list_of(kF32, Owner::kTemporaries);
  if (training.clip_norm > 0) {  // scaled in place, by the norms of all gradients and their stack
    Block norms = heap_.allocate(2 * static_cast<Bytes>(elements().size()) * kF32, Owner::kTemporaries);
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

Memory Training::run() {
  if (n_.operators == Operators::kCuda) heap_.allocate(kCublasWorkspace, Owner::kLibraries);
  for (std::deque<Group>* groups : {&ends_, &groups_})
    for (Group& group : *groups) group.make();
  if (n_.in_titan() && n_.gated) heap_.allocate(n_.seq * n_.head_dim * kF32, Owner::kParameters);  // rotary table
  const std::vector<Bytes> shards = elements();
  memory_.figures["memory.weight_bytes"] = std::accumulate(shards.begin(), shards.end(), Bytes{0}) * n_.stored;
  const TrainingConfig& training = cell_.training;
  const bool optimizes = training.optimizer != Optimizer::kNone;
  if (optimizes && training.master_weights == Master::kF32 && n_.stored != kF32)
    masters_ = list_of(kF32, Owner::kOptimizer);
  const std::int64_t steps = std::min<std::int64_t>(training.steps, kStepsThatReserve);
  for (std::int64_t step = 0; step < steps; ++step) {
    for (std::int64_t i = 0; i < training.micro_batches; ++i) pass(step, i, steps);
    if (optimizes) update();
    heap_.enter(Phase::kForward);
    for (std::deque<Group>* groups : {&ends_, &groups_})
      for (Group& group : *groups) group.drop_gradients();
    mark("memory.end_of_step_bytes");
  }
  memory_.figures["memory.retained_bytes"] = 0;
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

}  // namespace

Memory memory_of(const CellConfig& cell, Program program, Operators operators) {
  return Training(cell, program, operators).run();
}

}  // namespace fp8lab::eager
