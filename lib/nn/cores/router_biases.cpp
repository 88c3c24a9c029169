#include "nn/cores/router_biases.h"

#include <vector>

#include "comm/process_group.h"
#include "ops/elementwise.h"

namespace fp8lab {

RouterBiases::RouterBiases(Build& build, const std::string& router, std::int64_t experts, float rate)
    : name_(router), rate_(rate) {
  Device& device = build.runtime.device;
  const TensorSpec spec{Shape{experts}, DType::kF32};
  biases_ = device.allocate(spec, device.holder(HolderKind::kParameter, router, "biases"));
  counts_ = device.allocate(spec, device.holder(HolderKind::kRecipeState, router, "counts of tokens"));
  fill(device, biases_, 0.0f);
  fill(device, counts_, 0.0f);
  build.registry.router_biases.push_back(this);
}

RouterBalance RouterBiases::balance(const Runtime& runtime) const {
  const bool counts = runtime.mode != Runtime::Mode::kRecomputing && runtime.differentiates();
  return {.biases = biases_, .counts = counts ? counts_ : Tensor()};
}

void update_biases(Runtime& runtime, std::span<RouterBiases* const> biases, ProcessGroup* ranks) {
  if (ranks != nullptr && !biases.empty()) {
    std::vector<ReducePart> parts;
    parts.reserve(biases.size());
    for (const RouterBiases* of : biases)
      parts.push_back({.data = of->counts_.view().data, .elems = of->counts_.numel(), .dtype = DType::kF32});
    ranks->all_reduce(ReduceOp::kSum, parts, "tokens of experts");
  }
  for (RouterBiases* of : biases)
    balance_experts(runtime.device, {.biases = of->biases_, .counts = of->counts_}, of->rate_);
}

}  // namespace fp8lab
