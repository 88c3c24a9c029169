#include "harness/train/batches.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core/check.h"
#include "harness/cell/sharding_keys.h"
#include "harness/train/options.h"
#include "harness/train/stress_data.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"

namespace fp8lab {

Batches::Batches(const CellConfig& cell, Runtime& runtime, int rank, std::int64_t joined)
    : cell_(cell),
      runtime_(runtime),
      reader_(rank / cell.context_parallel),
      readers_(data_parallel_ranks(cell)),
      joined_(joined),
      split_(runtime.context_group, seq_of_rank(cell)) {
  if (!runtime.device.computes()) return;
  if (cell.training.data == Data::kTeacher)
    teacher_.emplace(runtime.seed, cell.model.hidden, cell.model.layer == "transformer_layer");
  if (cell.training.data != Data::kText) return;
  text_ = text_of(cell.training);
  if (const std::string broken = broken_text_rule(*text_, cell.model); !broken.empty())
    fail("training.corpus: " + broken);
}

Batch Batches::training(std::int64_t index) {
  return make({.x = "x", .target = "target", .step = runtime_.step},
              (reader_ * cell_.training.micro_batches + index) * cell_.model.batch);
}

Batch Batches::validation(std::int64_t index) {
  return make({.x = "validation x", .target = "validation target", .validates = true},
              (reader_ * cell_.training.validation_batches + index) * cell_.model.batch);
}

/// `first_sequence`: global index of the batch's first sequence, in its step or in the validation.
Batch Batches::make(const Use& use, std::int64_t first_sequence) {
  runtime_.row_offset = first_sequence * cell_.model.seq;
  if (!is_language_model(cell_)) {
    Batch batch{.x = make_activations(use.x, use.step), .target = {}};
    if (cell_.training.loss == Loss::kMse) batch.target = make_target(use, batch.x);
    return batch;
  }
  Device& device = runtime_.device;
  TokenBatch batch;
  if (device.computes()) batch = read_tokens(use, first_sequence);
  const auto on_device = [&](const std::vector<std::int32_t>& all, std::string_view name) {
    const HolderId holder = device.holder(HolderKind::kInput, "", name);
    // A device of shapes only has no use for values, of which a large model has more than the host can hold.
    if (!device.computes())
      return device.allocate({Shape{seq_of_rank(cell_) * cell_.model.batch}, DType::kI32}, holder);
    std::vector<std::int32_t> own;
    for (const SequenceChunk& chunk : split_.chunks()) {
      const auto first = all.begin() + chunk.position * cell_.model.batch;
      own.insert(own.end(), first, first + chunk.length * cell_.model.batch);
    }
    return make_tokens(device, own, cell_.model.vocabulary, holder);
  };
  return {.x = on_device(batch.tokens, use.x), .target = on_device(batch.targets, use.target)};
}

void Batches::fill_activations(Tensor& tensor, const RandomStream& stream, std::int64_t first_row,
                               std::int64_t sequences, bool is_target) {
  Device& device = runtime_.device;
  for (const SequenceChunk& chunk : split_.chunks())
    random_fill(device, tensor.row_range(chunk.begin * sequences, chunk.length * sequences),
                {.seed = stream.seed, .stream = stream.stream, .row_offset = first_row + chunk.position * sequences});
  if (cell_.training.data != Data::kStress || !device.computes()) return;
  std::vector<float> values = device.read(tensor);
  stress(values, cell_.model.hidden, is_target ? kStressedTarget : kStressedInput);
  device.write(tensor, values);
}

Tensor Batches::make_activations(std::string_view name, std::int64_t step) {
  const ModelConfig& model = cell_.model;
  Device& device = runtime_.device;
  const std::int64_t seq = seq_of_rank(cell_), sequences = model.batch / joined_;
  const RandomStream stream{.seed = runtime_.seed, .stream = stream_of(name) + static_cast<std::uint64_t>(step)};
  const bool is_target = name.ends_with("target");
  const HolderId holder = device.holder(HolderKind::kInput, "", name);
  Tensor tensor = device.allocate({Shape{seq * model.batch, model.hidden}, training_dtype(cell_)}, holder);
  if (joined_ == 1) {
    fill_activations(tensor, stream, runtime_.row_offset, sequences, is_target);
    return tensor;
  }
  // Row (position p, sequence s of all) of the joined batch is row (p, s mod `sequences`) of a batch.
  std::vector<float> values(static_cast<std::size_t>(seq * model.batch * model.hidden));
  Tensor part = device.allocate({Shape{seq * sequences, model.hidden}, training_dtype(cell_)}, holder);
  const std::int64_t run = sequences * model.hidden;
  for (std::int64_t batch = 0; batch < joined_; ++batch) {
    fill_activations(part, stream, runtime_.row_offset + batch * seq * sequences, sequences, is_target);
    const std::vector<float> of_part = device.read(part);
    for (std::int64_t position = 0; position < seq; ++position)
      std::copy_n(of_part.begin() + position * run, run, values.begin() + (position * joined_ + batch) * run);
  }
  device.write(tensor, values);
  return tensor;
}

Tensor Batches::make_target(const Use& use, const Tensor& x) {
  if (!teacher_) return make_activations(use.target, use.step);
  Device& device = runtime_.device;
  Tensor target = device.allocate({x.shape(), x.dtype()}, device.holder(HolderKind::kInput, "", use.target));
  device.write(target, teacher_->targets_of(device.read(x)));
  return target;
}

TokenBatch Batches::read_tokens(const Use& use, std::int64_t first_sequence) const {
  const TrainingConfig& training = cell_.training;
  const ModelConfig& model = cell_.model;
  const SequenceRange sequences{.first = first_sequence, .count = model.batch};
  if (text_ == nullptr)
    return random_tokens(model.vocabulary, model.seq,
                         {.seed = runtime_.seed, .stream = stream_of(use.x) + static_cast<std::uint64_t>(use.step)},
                         sequences);
  if (use.validates)
    return spread_windows(text_->held_out(), model.seq, readers_ * training.validation_batches * model.batch,
                          sequences);
  const std::int64_t of_a_step = readers_ * training.micro_batches * model.batch;
  return random_windows(text_->training(), model.seq, runtime_.seed,
                        {.first = use.step * of_a_step + first_sequence, .count = model.batch});
}

}  // namespace fp8lab
