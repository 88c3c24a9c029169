#include "harness/predict/predict_traffic.h"

#include <algorithm>
#include <vector>

namespace fp8lab::closed_form {
namespace {

constexpr Bytes kFirstBucket = Bytes{1} << 20, kOtherBuckets = Bytes{25} << 20;

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

BucketNumbers bucket_numbers(const CellNumbers& cell, const LayersAccount& layers, const EndsAccount& ends) {
  BucketNumbers out;
  if (!cell.sharding.replicated) return out;
  // A bucket is closed by the gradient that makes it as large as its limit. Gradients come from the last layer's to the
  // first one's, then the root's.
  std::vector<Bytes> gradients;
  const auto add = [&](const std::vector<ParameterNumbers>& parameters) {
    for (const ParameterNumbers& parameter : parameters)
      if (!parameter.frozen) gradients.push_back(parameter.unsharded);
  };
  add(ends.parameters);
  layers.visit([&](std::int64_t count, const LayerAccount& layer) {
    for (std::int64_t i = 0; i < count; ++i) add(layer.parameters);
  });
  Bytes open = 0;
  std::ranges::reverse(gradients);
  for (const Bytes gradient : gradients) {
    out.bytes += gradient;
    open += gradient;
    if (open < (out.count == 0 ? kFirstBucket : kOtherBuckets)) continue;
    ++out.count;
    open = 0;
  }
  out.count += open > 0;
  return out;
}

std::map<std::string, std::int64_t> traffic(const CellConfig& config, const CellNumbers& cell,
                                            const LayersAccount& layers, const EndsAccount& ends,
                                            const OptimizerNumbers& optimizer) {
  const bool sharded = cell.sharding.sharded, replicated = cell.sharding.replicated;
  if (!sharded && !replicated) return {};
  const std::int64_t micro_batches = config.training.micro_batches;
  // Forwards of all groups of parameters, and backwards of those that are trained. Replicas gather nothing.
  const std::int64_t forwards = sharded ? layers.sum(&LayerAccount::groups) * micro_batches : 0,
                     backwards = sharded ? layers.sum(&LayerAccount::trained_groups) * micro_batches : 0;
  const std::int64_t collectives_of_backward = cell.sharding.reshards ? 2 : 1;
  const std::int64_t root_passes = sharded ? ends.groups * micro_batches : 0;
  Bytes of_layers = 0, scales = 0, gradients = root_passes * ends.reduced_gradients.moved;
  layers.visit([&](std::int64_t count, const LayerAccount& layer) {
    of_layers += count * (layer.forward_gather.payload + layer.backward_gather.payload);
    if (sharded) gradients += count * micro_batches * layer.reduced_gradients.moved;
    scales += count * micro_batches * (layer.forward_gather.scales + layer.backward_gather.scales);
  });
  const Bytes payload = micro_batches * of_layers + root_passes * ends.gather.payload;

  Reductions reductions;
  if (cell.sharding.replicas > 1) {
    layers.visit([&](std::int64_t count, const LayerAccount& layer) {
      reductions.add(layer.gradients > 0 ? count * micro_batches : 0, cell.in_reduction(layer.gradients));
    });
    reductions.add(root_passes, cell.in_reduction(ends.gradients));
  }
  const BucketNumbers buckets = bucket_numbers(cell, layers, ends);
  reductions.calls += buckets.count;
  reductions.bytes += buckets.bytes;
  for (const std::int64_t amaxes :
       {layers.sum(&LayerAccount::forward_amaxes), layers.sum(&LayerAccount::backward_amaxes)})
    if (amaxes > 0) reductions.add(micro_batches, kF32 * amaxes);
  if (const Bytes counts = layers.sum(&LayerAccount::router_counts); counts > 0) reductions.add(1, counts);
  if (sharded) {
    reductions.add(optimizer.amax_reductions, kF32 * optimizer.amaxes);
    reductions.calls += optimizer.amax_reductions * (optimizer.amax_groups - 1);
  }
  if (sharded && optimizer.reduces_norm) reductions.add(1, kF32);

  const auto exchanges = [&](Exchanges LayerAccount::* forward, Exchanges LayerAccount::* backward) {
    Exchanges sum;
    layers.visit([&](std::int64_t count, const LayerAccount& layer) {
      const Exchanges &of_forward = layer.*forward, of_backward = backward != nullptr ? layer.*backward : Exchanges{};
      const std::int64_t times = count * micro_batches;
      sum += {.calls = times * (layer.forwards * of_forward.calls + of_backward.calls),
              .bytes = times * (layer.forwards * of_forward.bytes + of_backward.bytes),
              .scales = times * (layer.forwards * of_forward.scales + of_backward.scales)};
    });
    return sum;
  };
  const Exchanges ring = exchanges(&LayerAccount::forward_ring, &LayerAccount::backward_ring),
                  to_experts = exchanges(&LayerAccount::forward_to_experts, &LayerAccount::backward_to_experts),
                  counts = exchanges(&LayerAccount::forward_counts, nullptr);

  return {{"traffic.all_gather_bytes", payload + counts.bytes + scales},
          {"traffic.all_gather_payload_bytes", payload + counts.bytes},
          {"traffic.all_gather_scale_bytes", scales},
          {"traffic.reduce_scatter_bytes", cell.in_reduction(gradients)},
          {"traffic.all_reduce_bytes", reductions.bytes},
          {"traffic.ring_exchange_bytes", ring.bytes},
          {"traffic.all_to_all_bytes", to_experts.bytes},
          {"traffic.all_to_all_scale_bytes", to_experts.scales},
          // A group of parameters has one all-gather per gathering pass and one reduce-scatter per backward; the root
          // is one group.
          {"traffic.collectives", forwards + backwards * collectives_of_backward + root_passes * 2 + reductions.calls +
                                      ring.calls + to_experts.calls + counts.calls}};
}

MovedBytes moved_by_rank(const CellConfig& config, const CellNumbers& cell, const LayersAccount& layers,
                         const EndsAccount& ends) {
  const auto of_others = [](const GradientBytes& gradients) { return gradients.moved - gradients.shards; };
  const std::int64_t micro_batches = config.training.micro_batches, root_passes = ends.groups * micro_batches;
  Bytes received = root_passes * ends.gather.of_others(), sent = root_passes * of_others(ends.reduced_gradients);
  layers.visit([&](std::int64_t count, const LayerAccount& layer) {
    received += count * micro_batches * (layer.forward_gather.of_others() + layer.backward_gather.of_others());
    sent += count * micro_batches * of_others(layer.reduced_gradients);
  });
  return {.received = static_cast<double>(received), .sent = static_cast<double>(cell.in_reduction(sent))};
}

}  // namespace fp8lab::closed_form
