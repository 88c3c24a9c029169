#include "harness/train/batches.h"

#include <string>
#include <vector>

#include "core/check.h"
#include "harness/cell/sharding_keys.h"
#include "harness/train/options.h"
#include "harness/train/stress_data.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"

namespace fp8lab {

Batches::Batches(const CellConfig& cell, Runtime& runtime, int rank)
    : cell_(cell),
      runtime_(runtime),
      reader_(rank / cell.context_parallel),
      readers_(data_parallel_ranks(cell)),
      split_(runtime.context_group, seq_of_rank(cell)) {
  if (cell.training.data != Data::kText || !runtime.device.computes()) return;
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
    if (cell_.training.loss == Loss::kMse) batch.target = make_activations(use.target, use.step);
    return batch;
  }
  Device& device = runtime_.device;
  TokenBatch batch;
  if (device.computes()) batch = read_tokens(use, first_sequence);
  const auto on_device = [&](const std::vector<std::int32_t>& all, std::string_view name) {
    const HolderId holder = device.holder(HolderKind::kInput, "", name);
    // A device of shapes alone has no use for values, of which a large model has more than the host can hold.
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

Tensor Batches::make_activations(std::string_view name, std::int64_t step) {
  const ModelConfig& model = cell_.model;
  Device& device = runtime_.device;
  const Shape shape{seq_of_rank(cell_) * model.batch, model.hidden};
  Tensor tensor = device.allocate({shape, training_dtype(cell_)}, device.holder(HolderKind::kInput, "", name));
  for (const SequenceChunk& chunk : split_.chunks())
    random_fill(device, tensor.row_range(chunk.begin * model.batch, chunk.length * model.batch),
                {.seed = runtime_.seed,
                 .stream = stream_of(name) + static_cast<std::uint64_t>(step),
                 .row_offset = runtime_.row_offset + chunk.position * model.batch});
  if (cell_.training.data == Data::kStress && device.computes()) {
    std::vector<float> values = device.read(tensor);
    stress(values, model.hidden, name.ends_with("target") ? kStressedTarget : kStressedInput);
    device.write(tensor, values);
  }
  return tensor;
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
