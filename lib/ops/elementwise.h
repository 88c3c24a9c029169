#pragma once

#include <cstdint>

#include "backend/device.h"

namespace fp8lab {

/// Fills f32, f16 and bf16 tensors with `value`; +0 clears tensors of any type to zero bytes.
void fill(Device& device, const Tensor& out, float value);
/// A contiguous copy converted to `dtype`.
Tensor cast(Device& device, const Tensor& x, DType dtype, HolderId holder);
/// Copies `from` into the existing `to` (same shape, any dtypes and strides).
void copy_into(Device& device, const Tensor& from, const Tensor& to);
Tensor add(Device& device, const Tensor& a, const Tensor& b, HolderId holder);
/// a += b
void add_into(Device& device, const Tensor& a, const Tensor& b);
/// x *= factor
void scale_in_place(Device& device, const Tensor& x, float factor);
/// Column sums of [rows, cols] as a tensor [cols] of `dtype`: the gradient of a bias.
Tensor column_sum(Device& device, const Tensor& x, DType dtype, HolderId holder);
/// The same into `sums`, which has an element for each column.
void column_sum_into(Device& device, const Tensor& x, const Tensor& sums);

/// Rotary embedding of [seq * batch, heads * head_dim]; `inverse` is its gradient.
struct RopeInputs {
  Tensor x;
  std::int64_t batch = 1;
  std::int64_t heads = 1;
  double base = 10000.0;
  bool inverse = false;
  HolderId holder = 0;
  std::int64_t first_position = 0;  ///< position of the first row
};
Tensor rope(Device& device, const RopeInputs& inputs);
/// The same into `out`, which may be columns of a larger tensor; `inputs.holder` is unused.
void rope_into(Device& device, const RopeInputs& inputs, const Tensor& out);

/// Key of a dropout mask. The same key gives the same mask, so the gradient of dropout() is dropout() of the gradient
/// with the same key. The mask depends only on the global element index; rows start at global row `row_offset`.
struct DropoutKey {
  float probability = 0.0f;  ///< probability of dropping an element, in
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;
  std::int64_t row_offset = 0;
};
Tensor dropout(Device& device, const Tensor& x, const DropoutKey& key, HolderId holder);

/// Random values, normal(0, scale) or uniform in [0, scale), that depend only on (seed, stream, global element index);
/// rows start at global row `row_offset`.
struct RandomInputs {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;
  std::int64_t row_offset = 0;
  bool normal = true;
  float scale = 1.0f;
};
void random_fill(Device& device, const Tensor& out, const RandomInputs& inputs);

}  // namespace fp8lab
