#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

#include "fsdp/sharded_run.h"

/// The padding of shards, as tests look at it and fill it with NaN.
namespace fp8lab::fsdp_test {

/// Weights of matrix products have multiples of 16 rows, which 3, 5 and 7 ranks cannot share evenly; no number of ranks
/// can share the 43 rows of the embedding.
inline RunConfig uneven(std::string_view recipe) {
  RunConfig config;
  config.recipe = recipe;
  config.layer = "layernorm_mlp";
  const std::int64_t unit = std::max<std::int64_t>(make_recipe(recipe).cols_multiple, 16);
  config.config = small_block(unit);
  config.config.ffn = 4 * unit;
  config.config.seq = std::max<std::int64_t>(make_recipe(recipe).rows_multiple, 32);
  config.config.batch = 1;
  config.vocabulary = 43;
  return config;
}

/// The arrays of a shard that are gathered, except for scales.
inline std::vector<const Tensor*> travelling_arrays(const Parameter& shard) {
  if (!shard.in_eight_bits()) return {&shard.value};
  std::vector<const Tensor*> arrays = {&shard.quantized.rowwise().data};
  if (!shard.quantizer->format.columnwise_is_transpose()) arrays.push_back(&shard.quantized.columnwise().data);
  return arrays;
}

/// The elements of `tensor`'s storage after its own, as one row; empty if it has none.
inline Tensor padding_of(const Tensor& tensor) {
  const auto width = static_cast<std::int64_t>(size_bytes(tensor.dtype()));
  const std::int64_t rest = (tensor.buffer().bytes() - tensor.bytes()) / width;
  if (rest == 0) return {};
  return Tensor(tensor.buffer(), {Shape{1, tensor.numel() + rest}, tensor.dtype()}).columns(tensor.numel(), rest);
}

/// Fills the padding of `tensor` with 0xFF, which is NaN in every format. True if it has any.
inline bool poison(Device& device, const Tensor& tensor) {
  const Tensor padding = padding_of(tensor);
  if (!padding) return false;
  const std::vector<std::byte> nans(static_cast<std::size_t>(padding.bytes()), std::byte{0xFF});
  if (device.computes()) device.write_bytes(padding, nans);
  return true;
}

/// Fills the padding of every shard, and of its gradient, with NaN; returns how many arrays have some.
inline int poison(ModelRun& run) {
  int poisoned = 0;
  for (const Parameter* parameter : run.model().parameters()) {
    const Parameter& shard = *parameter->local;
    for (const Tensor* array : travelling_arrays(shard)) poisoned += poison(run.device(), *array) ? 1 : 0;
    if (shard.grad) poison(run.device(), shard.grad);
  }
  return poisoned;
}

}  // namespace fp8lab::fsdp_test
