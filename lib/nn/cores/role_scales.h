#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "autograd/runtime.h"
#include "nn/build.h"
#include "ops/delayed_scaling.h"
#include "ops/quantize.h"

namespace fp8lab {

/// How each quantized role of a module gets its scale: formats with a history share one DelayedScales, the others need
/// no state. A forward runs between begin_forward(), which in a checkpointed region stashes the scales (first time) or
/// takes up the stashed ones (second time), and end_forward(), which lets go of those; amaxes of a recomputed forward
/// are not recorded.
class RoleScales {
 public:
  /// `forward`: listed among the registry's forward scales, otherwise among its backward ones.
  RoleScales(Build& build, const std::string& owner, std::vector<QuantFormat> roles, const DelayedScaling& options,
             bool forward);

  void begin_forward(Runtime& runtime);
  void end_forward();

  /// Inputs for quantizing role `role`.
  Quantizer quantizer(int role, Orientations orientations, HolderId holder) const;
  /// The role as an attention kernel takes it; for formats with a history.
  AttentionRole kernel_role(int role) const;
  /// The scale tensor in force for `role`, f32 [1].
  Tensor scale(int role) const;

  const std::optional<DelayedScales>& delayed() const { return delayed_; }

 private:
  friend void update_scales(Runtime&, std::span<RoleScales* const>, ProcessGroup*);

  std::vector<QuantFormat> roles_;
  std::vector<int> slots_;  // index into delayed_, -1 for formats without a history
  std::optional<DelayedScales> delayed_;
  Tensor stashed_;  // in force while a region is recomputed, and absent otherwise
};

/// The scales of the next step from the amaxes that a pass recorded; once per step. With a group the largest amaxes of
/// all its ranks count, found in one reduction: without it, ranks that see different data get different scales.
void update_scales(Runtime& runtime, std::span<RoleScales* const> scales, ProcessGroup* amax_group);

}  // namespace fp8lab
