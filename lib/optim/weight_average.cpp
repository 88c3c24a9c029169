#include "optim/weight_average.h"

#include <fmt/core.h>

#include <utility>

#include "core/check.h"
#include "ops/elementwise.h"
#include "ops/quantized_storage.h"
#include "optim/shards.h"

namespace fp8lab {

WeightAverage::WeightAverage(Runtime& runtime, std::vector<Parameter*> parameters, double decay)
    : parameters_(std::move(parameters)), decay_(decay) {
  if (!(decay >= 0.0 && decay < 1.0)) fail(fmt::format("WeightAverage: a decay of {}; it lies in [0, 1)", decay));
  Device& device = runtime.device;
  for (const Parameter* parameter : parameters_) {
    const Parameter& shard = local_shard(*parameter);
    const HolderId holder = device.holder(HolderKind::kOptimizerState, shard.name, "average");
    Average& average = averages_.emplace_back();
    if (!shard.in_eight_bits()) {
      average.value = device.allocate({shape_of(shard), DType::kF32}, holder);
      fill(device, average.value, 0.0f);
      continue;
    }
    average.quantized = new_zeros(device, runtime.behaviors, shard.quantized, shard.quantized.rows(), holder);
    average.quantizer = *shard.quantizer;
    average.quantizer.amax = {};
  }
}

void WeightAverage::update(Runtime& runtime) {
  TensorList averages, weights;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& shard = local_shard(*parameters_[i]);
    Average& average = averages_[i];
    weights.push_back(ListMember::of(shard));
    averages.push_back(shard.in_eight_bits() ? ListMember{.value = {},
                                                          .quantized = &average.quantized,
                                                          .quantizer = &average.quantizer,
                                                          .nominal = shard.spec.dtype}
                                             : ListMember::of(average.value));
  }
  foreach_lerp(runtime, averages, weights, std::exchange(empty_, false) ? 1.0 : 1.0 - decay_);
}

}  // namespace fp8lab
