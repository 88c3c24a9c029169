#include "fsdp/replication.h"

#include <fmt/core.h>

#include <string>

#include "core/check.h"
#include "ops/elementwise.h"

namespace fp8lab {
namespace {

/// The root's parameters are registered first.
std::vector<Parameter*> as_gradients_are_ready(const Model& model) {
  const std::vector<Parameter*> all = model.trained_parameters();
  return {all.rbegin(), all.rend()};
}

Tensor as_row(const Tensor& tensor) { return tensor.reshaped(Shape{1, tensor.numel()}); }

}  // namespace

Replication::Replication(Runtime& runtime, Model& model, ProcessGroup& ranks, const BucketSizes& sizes)
    : ranks_(ranks) {
  Device& device = runtime.device;
  std::int64_t elements = 0, most = sizes.first_bytes;
  std::vector<Part> parts;
  const auto close = [&] {
    if (parts.empty()) return;
    const TensorSpec spec{Shape{1, elements}, parts.front().parameter->spec.dtype};
    const std::string name = fmt::format("bucket {}", buckets_.size());
    buckets_.push_back({.parts = std::move(parts),
                        .values = device.allocate(spec, device.holder(HolderKind::kGradient, name, "gradients"))});
    parts.clear();
    elements = 0;
    most = sizes.bytes;
  };
  for (Parameter* const parameter : as_gradients_are_ready(model)) {
    check(parts.empty() || parameter->spec.dtype == parts.front().parameter->spec.dtype,
          "replication: gradients of one bucket have one type");
    parts.push_back({.parameter = parameter, .begin = elements});
    elements += parameter->spec.shape.numel();
    if (elements * static_cast<std::int64_t>(size_bytes(parameter->spec.dtype)) >= most) close();
  }
  close();
}

void Replication::reduce_gradients(Runtime& runtime) {
  for (std::size_t i = 0; i < buckets_.size(); ++i) reduce(runtime, buckets_[i], i);
}

void Replication::reduce(Runtime& runtime, Bucket& bucket, std::size_t index) {
  Device& device = runtime.device;
  for (const Part& part : bucket.parts) {
    const Tensor& gradient = part.parameter->grad;
    if (!gradient) fail(fmt::format("replication: backward left {} without a gradient", part.parameter->name));
    copy_into(device, as_row(gradient), bucket.values.columns(part.begin, gradient.numel()));
  }
  scale_in_place(device, bucket.values, 1.0f / static_cast<float>(ranks_.size()));
  const ReducePart sum{.data = bucket.values.view().data,
                       .elems = bucket.values.numel(),
                       .dtype = bucket.values.dtype(),
                       .content = Content::kPayload};
  ranks_.all_reduce(ReduceOp::kSum, {&sum, 1}, fmt::format("bucket {}", index));
  for (const Part& part : bucket.parts)
    copy_into(device, bucket.values.columns(part.begin, part.parameter->grad.numel()), as_row(part.parameter->grad));
}

}  // namespace fp8lab
