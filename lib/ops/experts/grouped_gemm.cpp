#include "ops/experts/grouped_gemm.h"

#include <fmt/core.h>

#include "core/check.h"
#include "ops/elementwise.h"
#include "ops/validate.h"

namespace fp8lab {
namespace {

/// The groups must follow each other and lie within `rows`.
void check_groups(std::string_view op, std::span<const RowGroup> groups, std::int64_t rows) {
  std::int64_t end = 0;
  for (const RowGroup& group : groups) {
    if (group.begin != end || group.rows < 0)
      fail(fmt::format("{}: a group has {} rows from row {}; groups follow each other, and row {} is next", op,
                       group.rows, group.begin, end));
    end += group.rows;
  }
  if (end > rows) fail(fmt::format("{}: the groups have {} rows; the matrix has {}", op, end, rows));
}

/// Rows of one group's matrix in `rows` of all.
std::int64_t share_of(std::string_view op, std::int64_t rows, std::span<const RowGroup> groups) {
  const std::int64_t count = std::ssize(groups);
  if (count == 0 || rows % count != 0)
    fail(fmt::format("{}: {} rows of matrices for {} groups; each group has a matrix of the same size", op, rows,
                     count));
  return rows / count;
}

void clear_after_groups(Device& device, std::span<const RowGroup> groups, const Tensor& out) {
  const std::int64_t end = groups.back().begin + groups.back().rows;
  if (end < out.rows()) fill(device, out.row_range(end, out.rows() - end), 0.0f);
}

GemmInputs with(const GemmInputs& inputs, const OperandView& a, const OperandView& b) {
  GemmInputs part = inputs;
  part.a = a;
  part.b = b;
  return part;
}

/// The elements of group `e` in a vector that has the same number of elements for each of `groups` groups.
Tensor elements_of(const Tensor& vector, std::int64_t groups, std::size_t e) {
  return vector.reshaped(Shape{groups, vector.numel() / groups}).row_range(static_cast<std::int64_t>(e), 1);
}

/// The product of each group's rows of `a` and the expert's part of `b`; zero in rows behind the groups.
template <class PartOfB>
Tensor multiply_groups(Device& device, const GemmInputs& inputs, std::span<const RowGroup> groups, std::int64_t columns,
                       PartOfB part_of_b) {
  Tensor out = device.allocate({Shape{inputs.a.values.rows, columns}, inputs.out_dtype}, inputs.holder);
  for (std::size_t e = 0; e < groups.size(); ++e) {
    const auto [begin, rows] = groups[e];
    if (rows == 0) continue;
    GemmInputs part = with(inputs, inputs.a.row_range(begin, rows), part_of_b(static_cast<std::int64_t>(e)));
    Tensor bias;
    if (inputs.bias != nullptr) {
      bias = elements_of(*inputs.bias, std::ssize(groups), e);
      part.bias = &bias;
    }
    gemm_into(device, part, out.row_range(begin, rows));
  }
  clear_after_groups(device, groups, out);
  return out;
}

}  // namespace

Tensor grouped_gemm(Device& device, const GemmInputs& inputs, std::span<const RowGroup> groups) {
  constexpr std::string_view kOp = "grouped_gemm";
  check_groups(kOp, groups, inputs.a.values.rows);
  const std::int64_t columns = share_of(kOp, inputs.b.values.rows, groups);
  if (inputs.bias != nullptr) check_numel(kOp, {"bias", *inputs.bias}, inputs.b.values.rows, "one for each row of b");
  return multiply_groups(device, inputs, groups, columns,
                         [&](std::int64_t e) { return inputs.b.row_range(e * columns, columns); });
}

Tensor grouped_gemm_input_gradient(Device& device, const GemmInputs& inputs, std::span<const RowGroup> groups) {
  constexpr std::string_view kOp = "grouped_gemm_input_gradient";
  check_groups(kOp, groups, inputs.a.values.rows);
  const std::int64_t summed = share_of(kOp, inputs.b.values.cols, groups);
  return multiply_groups(device, inputs, groups, inputs.b.values.rows,
                         [&](std::int64_t e) { return inputs.b.columns(e * summed, summed); });
}

Tensor grouped_gemm_weight_gradient(Device& device, const GemmInputs& inputs, std::span<const RowGroup> groups) {
  constexpr std::string_view kOp = "grouped_gemm_weight_gradient";
  check_groups(kOp, groups, inputs.a.values.cols);
  const std::int64_t rows_of_one = inputs.a.values.rows;
  Tensor out =
      device.allocate({Shape{std::ssize(groups) * rows_of_one, inputs.b.values.rows}, inputs.out_dtype}, inputs.holder);
  for (std::size_t e = 0; e < groups.size(); ++e) {
    const auto [begin, rows] = groups[e];
    const Tensor own = out.row_range(static_cast<std::int64_t>(e) * rows_of_one, rows_of_one);
    if (rows == 0)
      fill(device, own, 0.0f);
    else
      gemm_into(device, with(inputs, inputs.a.columns(begin, rows), inputs.b.columns(begin, rows)), own);
  }
  return out;
}

Tensor grouped_bias_gradient(Device& device, const Tensor& grad_y, std::span<const RowGroup> groups,
                             const TensorSpec& spec, HolderId holder) {
  constexpr std::string_view kOp = "grouped_bias_gradient";
  check_groups(kOp, groups, grad_y.rows());
  Tensor out = device.allocate(spec, holder);
  check_numel(kOp, {"the gradient", out}, std::ssize(groups) * grad_y.cols(), "one for each column and group");
  for (std::size_t e = 0; e < groups.size(); ++e) {
    const auto [begin, rows] = groups[e];
    const Tensor own = elements_of(out, std::ssize(groups), e);
    if (rows == 0)
      fill(device, own, 0.0f);
    else
      column_sum_into(device, grad_y.row_range(begin, rows), own);
  }
  return out;
}

}  // namespace fp8lab
