#include "ops/elementwise.h"

#include <fmt/core.h>

#include "core/check.h"
#include "core/float_bits.h"
#include "ops/validate.h"

namespace fp8lab {

void fill(Device& device, const Tensor& out, float value) {
  if (float_bits(value) != 0) check_real("fill", {"out", out});
  device.launch(&KernelTable::fill, FillArgs{.out = out.view(), .value = value});
}

Tensor cast(Device& device, const Tensor& x, DType dtype, HolderId holder) {
  check(static_cast<bool>(x), "cast: x is absent");
  if (x.dtype() != dtype) {
    check_real("cast", {"x", x});
    if (!is_real(dtype)) fail(fmt::format("cast: to {}; only f32, f16 and bf16 need no scale", name(dtype)));
  }
  const Tensor out = device.allocate({x.shape(), dtype}, holder);
  device.launch(&KernelTable::cast, CastArgs{.in = x.view(), .out = out.view()});
  return out;
}

void copy_into(Device& device, const Tensor& from, const Tensor& to) {
  check_same_shape("copy_into", {"from", from}, {"to", to});
  if (from.dtype() != to.dtype()) {
    check_real("copy_into", {"from", from});
    check_real("copy_into", {"to", to});
  }
  device.launch(&KernelTable::cast, CastArgs{.in = from.view(), .out = to.view()});
}

Tensor add(Device& device, const Tensor& a, const Tensor& b, HolderId holder) {
  check_real("add", {"a", a});
  check_real("add", {"b", b});
  check_same_shape("add", {"a", a}, {"b", b});
  const Tensor out = device.allocate(a.spec(), holder);
  device.launch(&KernelTable::add, AddArgs{.a = a.view(), .b = b.view(), .out = out.view()});
  return out;
}

void add_into(Device& device, const Tensor& a, const Tensor& b) {
  check_real("add_into", {"a", a});
  check_real("add_into", {"b", b});
  check_same_shape("add_into", {"a", a}, {"b", b});
  device.launch(&KernelTable::add, AddArgs{.a = a.view(), .b = b.view(), .out = a.view()});
}

void scale_in_place(Device& device, const Tensor& x, float factor) {
  check_real("scale_in_place", {"x", x});
  device.launch(&KernelTable::scale, ScaleArgs{.values = x.view(), .factor = factor});
}

Tensor column_sum(Device& device, const Tensor& x, DType dtype, HolderId holder) {
  if (!is_real(dtype)) fail(fmt::format("column_sum: to {}; the sums are f32, f16 or bf16", name(dtype)));
  Tensor sums = device.allocate({Shape{x.cols()}, dtype}, holder);
  column_sum_into(device, x, sums);
  return sums;
}

void column_sum_into(Device& device, const Tensor& x, const Tensor& sums) {
  check_real("column_sum", {"x", x});
  check_real("column_sum", {"sums", sums});
  check_numel("column_sum", {"sums", sums}, x.cols(), "one for each column");
  device.launch(&KernelTable::column_sum, ColumnSumArgs{.in = x.view(), .out = sums.view()});
}

Tensor rope(Device& device, const RopeInputs& inputs) {
  check_real("rope", {"x", inputs.x});
  const Tensor out = device.allocate(inputs.x.spec(), inputs.holder);
  rope_into(device, inputs, out);
  return out;
}

void rope_into(Device& device, const RopeInputs& inputs, const Tensor& out) {
  check_real("rope", {"x", inputs.x});
  check_real("rope", {"out", out});
  if (inputs.x.rows() != out.rows() || inputs.x.cols() != out.cols())
    fail(fmt::format("rope: {} and {}; both must have one shape", describe({"x", inputs.x}), describe({"out", out})));
  if (inputs.batch < 1 || inputs.x.rows() % inputs.batch != 0)
    fail(fmt::format("rope: {} with batch {}; its rows are positions times sequences", describe({"x", inputs.x}),
                     inputs.batch));
  if (inputs.heads < 1 || inputs.x.cols() % (2 * inputs.heads) != 0)
    fail(fmt::format("rope: {} with {} heads; each head takes an even number of columns", describe({"x", inputs.x}),
                     inputs.heads));
  check(inputs.first_position >= 0, "rope: first_position must not be negative");
  check(inputs.base > 0.0, "rope: the base of the frequencies must be positive");
  device.launch(&KernelTable::rope, RopeArgs{.in = inputs.x.view(),
                                             .out = out.view(),
                                             .batch = inputs.batch,
                                             .heads = inputs.heads,
                                             .base = inputs.base,
                                             .inverse = inputs.inverse,
                                             .first_position = inputs.first_position});
}

Tensor dropout(Device& device, const Tensor& x, const DropoutKey& key, HolderId holder) {
  check_real("dropout", {"x", x});
  if (!(key.probability >= 0.0f && key.probability < 1.0f))
    fail(fmt::format("dropout: probability {}; it must be in [0, 1)", key.probability));
  const Tensor out = device.allocate(x.spec(), holder);
  device.launch(&KernelTable::dropout, DropoutArgs{.in = x.view(),
                                                   .out = out.view(),
                                                   .probability = key.probability,
                                                   .seed = key.seed,
                                                   .stream = key.stream,
                                                   .row_offset = key.row_offset});
  return out;
}

void random_fill(Device& device, const Tensor& out, const RandomInputs& inputs) {
  check_real("random_fill", {"out", out});
  check(inputs.row_offset >= 0, "random_fill: row_offset must not be negative");
  device.launch(&KernelTable::random, RandomArgs{.out = out.view(),
                                                 .seed = inputs.seed,
                                                 .stream = inputs.stream,
                                                 .row_offset = inputs.row_offset,
                                                 .normal = inputs.normal,
                                                 .scale = inputs.scale});
}

}  // namespace fp8lab
