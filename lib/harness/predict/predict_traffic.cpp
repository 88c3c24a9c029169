#include "harness/predict/predict_traffic.h"

#include <algorithm>

namespace fp8lab::closed_form {
namespace {

constexpr Bytes kF32 = 4;

/// The all-reduces of which rank 0 is a member.
struct Reductions {
  std::int64_t calls = 0;
  Bytes bytes = 0;

  void add(std::int64_t times, Bytes each) {
    calls += times;
    bytes += times * each;
  }
};

}  // namespace

std::map<std::string, std::int64_t> traffic(const CellConfig& config, const CellNumbers& cell,
                                            const LayerAccount& layer, const EndsAccount& ends,
                                            const OptimizerNumbers& optimizer) {
  if (!cell.sharding.sharded) return {};
  const std::int64_t layers = config.model.layers;
  const std::int64_t passes = layers * config.training.micro_batches;  // forwards of a layer, and as many backwards
  const std::int64_t gathers = cell.sharding.reshards ? 2 : 1;
  const Bytes payload = passes * (layer.forward_gather.payload + layer.backward_gather.payload) +
                        config.training.micro_batches * (ends.forward_gather.payload + ends.backward_gather.payload);
  const Bytes scales = passes * (layer.forward_gather.scales + layer.backward_gather.scales);

  Reductions reductions;
  if (cell.sharding.replicas > 1) {
    reductions.add(passes, layer.gradients);
    if (ends.groups > 0) reductions.add(config.training.micro_batches, ends.gradients);
    reductions.calls += config.training.micro_batches * std::max<std::int64_t>(0, ends.groups - 1);
  }
  for (const std::int64_t amaxes : {layers * layer.forward_amaxes, layers * layer.backward_amaxes})
    if (amaxes > 0) reductions.add(config.training.micro_batches, kF32 * amaxes);
  reductions.add(optimizer.amax_reductions, kF32 * optimizer.amaxes);
  if (optimizer.reduces_norm) reductions.add(1, kF32);

  return {{"traffic.all_gather_bytes", payload + scales},
          {"traffic.all_gather_payload_bytes", payload},
          {"traffic.all_gather_scale_bytes", scales},
          {"traffic.reduce_scatter_bytes",
           passes * layer.unsharded_gradients + config.training.micro_batches * ends.unsharded_gradients},
          {"traffic.all_reduce_bytes", reductions.bytes},
          // A layer has one all-gather per gathering pass and one reduce-scatter per backward, each for all its
          // parameters.
          {"traffic.collectives",
           (passes + config.training.micro_batches * ends.groups) * (gathers + 1) + reductions.calls}};
}

}  // namespace fp8lab::closed_form
