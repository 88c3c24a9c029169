#pragma once

#include <string_view>
#include <vector>

#include "backend/device.h"
#include "recipe/recipe.h"

namespace fp8lab {

/// The amax histories and scales of a group of tensors that are updated together: a module's forward roles, or its
/// backward ones. Held as recipe state.
///
/// State: scale is f32 [n], all 1 at first. History is f32 [length, n], all 0 at first; row 0 is the live row, into
/// which casts max-accumulate.
///
/// update(), per tensor: last = row 0. If it is 0, nothing was cast, and history and scale stay. Otherwise the history
/// rotates (row i gets row i + 1, row length - 1 gets `last`, row 0 becomes 0), and amax is the maximum over all rows
/// *before* the oldest one is dropped (kMax, NaN ignored) or `last` (kMostRecent). scale = fp8_max * 2^-margin / amax
/// if amax is finite and positive, else unchanged; an infinite quotient becomes FLT_MAX. Consequently, with kMax an
/// infinite amax freezes the scale until it leaves the window.
class DelayedScales {
 public:
  /// `fp8_max`: one entry per tensor of the group.
  DelayedScales(Device& device, std::vector<float> fp8_max, const DelayedScaling& options, std::string_view owner);

  int tensors() const { return static_cast<int>(fp8_max_.size()); }
  Tensor scale(int tensor) const;  ///< f32 [1], a view
  Tensor amax(int tensor) const;   ///< f32 [1], a view of the tensor's element of the live row
  Tensor amaxes() const;           ///< f32 [1, tensors], a view of the live row
  const Tensor& scales() const { return scales_; }
  const Tensor& history() const { return history_; }

  void update(Device& device);
  /// Gives the history `length` rows: the first ones stay, further ones are 0. Views of the live row that were handed
  /// out before keep the old history alive, and what is recorded there is lost.
  void resize_history(Device& device, std::int64_t length);

  /// A copy of the current scales, f32 [n], which a recomputed forward must use.
  Tensor stash_scales(Device& device, HolderId holder) const;

 private:
  Tensor make_history(Device& device, std::int64_t length) const;

  std::vector<float> fp8_max_;
  DelayedScaling options_;
  HolderId history_holder_;
  Tensor scales_;
  Tensor history_;
};

}  // namespace fp8lab
