#include "nn/cores/role_scales.h"

#include <utility>

#include "autograd/activation_checkpoint.h"
#include "core/float8_format.h"
#include "ops/elementwise.h"

namespace fp8lab {

RoleScales::RoleScales(Build& build, const std::string& owner, std::vector<QuantFormat> roles,
                       const DelayedScaling& options, bool forward)
    : roles_(std::move(roles)), history_length_(options.history_length) {
  if (!build.recipe.quantized) return;
  std::vector<float> fp8_max;
  for (const QuantFormat& format : roles_) {
    const bool history = format.amax_source == AmaxSource::kHistory;
    slots_.push_back(history ? static_cast<int>(fp8_max.size()) : -1);
    if (history) fp8_max.push_back(float8_format(format.dtype).max);
  }
  if (fp8_max.empty()) return;
  DelayedScaling initial = options;
  if (build.initial_history_length > 0) initial.history_length = build.initial_history_length;
  delayed_.emplace(build.runtime.device, std::move(fp8_max), initial, owner);
  (forward ? build.registry.forward_scales : build.registry.backward_scales).push_back(this);
}

void RoleScales::begin_forward(Runtime& runtime) {
  if (!delayed_) return;
  if (runtime.mode == Runtime::Mode::kRecording && runtime.frame->stashes_scales())
    runtime.frame->stash(delayed_->stash_scales(runtime.device, runtime.frame->stash_holder()));
  stashed_ = runtime.mode == Runtime::Mode::kRecomputing ? runtime.frame->next_stashed() : Tensor();
}

bool RoleScales::resize_histories(Device& device) {
  if (!delayed_ || delayed_->history().rows() == history_length_) return false;
  delayed_->resize_history(device, history_length_);
  return true;
}

void RoleScales::end_forward() { stashed_ = {}; }

Tensor RoleScales::scale(int role) const {
  const int slot = slots_[static_cast<std::size_t>(role)];
  if (slot < 0) return {};
  return stashed_ ? stashed_.columns(slot, 1) : delayed_->scale(slot);
}

Tensor RoleScales::copy_scale(Device& device, int role, HolderId holder) const {
  const Tensor in_use = scale(role);
  return in_use ? cast(device, in_use.reshaped(Shape{1}), DType::kF32, holder) : Tensor();
}

Quantizer RoleScales::quantizer(int role, Orientations orientations, HolderId holder) const {
  Quantizer inputs;
  inputs.format = roles_[static_cast<std::size_t>(role)];
  inputs.orientations = orientations;
  inputs.holder = holder;
  const int slot = slots_[static_cast<std::size_t>(role)];
  if (slot < 0) return inputs;
  inputs.scale = scale(role);
  if (!stashed_) inputs.amax = delayed_->amax(slot);
  return inputs;
}

AttentionRole RoleScales::kernel_role(int role) const {
  AttentionRole kernel_role;
  kernel_role.dtype = roles_[static_cast<std::size_t>(role)].dtype;
  kernel_role.scale = scale(role).data<float>();
  if (!stashed_) kernel_role.amax = delayed_->amax(slots_[static_cast<std::size_t>(role)]).data<float>();
  return kernel_role;
}

void update_scales(Runtime& runtime, std::span<RoleScales* const> scales, ProcessGroup* amax_group) {
  if (amax_group != nullptr && !scales.empty()) {
    std::vector<ReducePart> parts;
    parts.reserve(scales.size());
    for (const RoleScales* role_scales : scales) {
      const Tensor amaxes = role_scales->delayed_->amaxes();
      parts.push_back(
          {.data = amaxes.view().data, .elems = amaxes.numel(), .dtype = DType::kF32, .content = Content::kScales});
    }
    amax_group->all_reduce(ReduceOp::kMax, parts, "amax history");
  }
  for (RoleScales* role_scales : scales) role_scales->delayed_->update(runtime.device);
}

}  // namespace fp8lab
