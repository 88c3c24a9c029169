#pragma once

#include <string_view>
#include <vector>

#include "backend/device.h"
#include "recipe/recipe.h"

namespace fp8lab {

/// The amax histories and scales of a group of tensors that are updated together: a module's forward roles, or its
/// backward ones. Held as recipe state.
///
/// State: scale f32 [n], all 1 at first; history f32 [length, n], all 0 at first; row 0 is the live slot that casts
/// max-accumulate into. update(), per tensor: last = row 0; where it is 0, nothing was cast, and history and scale
/// stay. Otherwise the history rotates (row i takes row i + 1, row length - 1 takes `last`, row 0 becomes 0), and amax
/// = the maximum over all rows *before* the oldest one drops (kMax, NaN ignored) or `last` (kMostRecent). scale =
/// fp8_max * 2^-margin / amax if amax is finite and positive, else unchanged; an infinite quotient becomes FLT_MAX. So
/// +inf freezes kMax until it leaves the window.
class DelayedScales {
 public:
  /// `fp8_max`: one entry per tensor of the group.
  DelayedScales(Device& device, std::vector<float> fp8_max, const DelayedScaling& options, std::string_view owner);

  int tensors() const { return static_cast<int>(fp8_max_.size()); }
  Tensor scale(int tensor) const;  ///< f32 [1], a view
  Tensor amax(int tensor) const;   ///< f32 [1], a view of the live slot
  Tensor amaxes() const;           ///< f32 [1, tensors], a view of all live slots
  const Tensor& scales() const { return scales_; }
  const Tensor& history() const { return history_; }

  void update(Device& device);

  /// A copy of the scales as they are, f32 [n]; what a recomputed forward has to use.
  Tensor stash_scales(Device& device, HolderId holder) const;

 private:
  std::vector<float> fp8_max_;
  DelayedScaling options_;
  Tensor scales_;
  Tensor history_;
};

}  // namespace fp8lab
