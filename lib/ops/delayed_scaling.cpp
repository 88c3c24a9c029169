#include "ops/delayed_scaling.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "ops/elementwise.h"

namespace fp8lab {

DelayedScales::DelayedScales(Device& device, std::vector<float> fp8_max, const DelayedScaling& options,
                             std::string_view owner)
    : fp8_max_(std::move(fp8_max)),
      options_(options),
      history_holder_(device.holder(HolderKind::kRecipeState, owner, "amax history")) {
  check(!fp8_max_.empty(), "delayed scaling: no tensor given; a group has at least one");
  if (options_.history_length < 1)
    fail(fmt::format("delayed scaling: a history of {}; it keeps at least 1 amax", options_.history_length));
  const auto tensors = static_cast<std::int64_t>(fp8_max_.size());
  scales_ = device.allocate({Shape{tensors}, DType::kF32}, device.holder(HolderKind::kRecipeState, owner, "scale"));
  fill(device, scales_, 1.0f);
  history_ = make_history(device, options_.history_length);
}

Tensor DelayedScales::make_history(Device& device, std::int64_t length) const {
  Tensor history = device.allocate({Shape{length, tensors()}, DType::kF32}, history_holder_);
  fill(device, history, 0.0f);
  return history;
}

void DelayedScales::resize_history(Device& device, std::int64_t length) {
  check(length >= 1, "delayed scaling: a history keeps at least 1 amax");
  const std::int64_t kept = std::min(length, options_.history_length);
  Tensor resized = make_history(device, length);
  copy_into(device, history_.row_range(0, kept), resized.row_range(0, kept));
  history_ = std::move(resized);
  options_.history_length = length;
}

Tensor DelayedScales::scale(int tensor) const { return scales_.columns(tensor, 1).reshaped(Shape{1}); }

Tensor DelayedScales::amax(int tensor) const { return history_.row_range(0, 1).columns(tensor, 1).reshaped(Shape{1}); }

Tensor DelayedScales::amaxes() const { return history_.row_range(0, 1); }

void DelayedScales::update(Device& device) {
  device.launch(&KernelTable::delayed_update, DelayedUpdateArgs{.history = history_.data<float>(),
                                                                .scale = scales_.data<float>(),
                                                                .length = options_.history_length,
                                                                .tensors = tensors(),
                                                                .fp8_max = fp8_max_,
                                                                .algorithm = options_.algorithm,
                                                                .margin = options_.margin});
}

Tensor DelayedScales::stash_scales(Device& device, HolderId holder) const {
  return cast(device, scales_, DType::kF32, holder);
}

}  // namespace fp8lab
