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

/// The scales of each quantized role of a module. Formats with a history share one DelayedScales; the others need no
/// state. A forward runs between begin_forward() and end_forward(). In a checkpointed region begin_forward() stashes
/// the scales (first forward) or uses the stashed ones (second forward), and end_forward() releases those. Amaxes of a
/// recomputed forward are not recorded.
class RoleScales {
 public:
  /// `forward`: listed among the registry's forward scales, otherwise among its backward scales.
  RoleScales(Build& build, const std::string& owner, std::vector<QuantFormat> roles, const DelayedScaling& options,
             bool forward);

  void begin_forward(Runtime& runtime);
  void end_forward();
  /// Gives the histories the recipe's number of rows, if they were made with another number. Returns true if it did:
  /// quantizers that were made before must then be made again, or they record into the old ones.
  bool resize_histories(Device& device);

  /// The quantizer of role `role`.
  Quantizer quantizer(int role, Orientations orientations, HolderId holder) const;
  /// The role in the form that attention kernels read; only for formats with a history.
  AttentionRole kernel_role(int role) const;
  /// The scale that is in use for `role`, f32 [1].
  Tensor scale(int role) const;
  /// A copy of it, which the update at the end of forward leaves as it is; absent for a format without a history.
  Tensor copy_scale(Device& device, int role, HolderId holder) const;

  const std::optional<DelayedScales>& delayed() const { return delayed_; }
  /// The format of each role. Those with a history have the scales of delayed(), in this order.
  const std::vector<QuantFormat>& roles() const { return roles_; }

 private:
  friend void update_scales(Runtime&, std::span<RoleScales* const>, ProcessGroup*);

  std::vector<QuantFormat> roles_;
  std::int64_t history_length_;  ///< length in the recipe
  std::vector<int> slots_;       // index into delayed_, -1 for formats without a history
  std::optional<DelayedScales> delayed_;
  Tensor stashed_;  // the scales in use while a region is recomputed, otherwise absent
};

/// Computes the scales of the next pass from the amaxes that a pass recorded; once per micro-batch. With a group, the
/// largest amaxes over its ranks are used, found in one reduction. Without a group, ranks that see different data get
/// different scales.
void update_scales(Runtime& runtime, std::span<RoleScales* const> scales, ProcessGroup* amax_group);

}  // namespace fp8lab
