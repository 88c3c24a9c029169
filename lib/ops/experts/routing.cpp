#include "ops/experts/routing.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <span>

#include "core/check.h"
#include "core/shape.h"
#include "ops/elementwise.h"
#include "ops/validate.h"

namespace fp8lab {
namespace {

void check_choices(std::string_view op, const NamedTensor& choices, DType dtype, std::int64_t tokens) {
  check_dtype(op, choices, dtype);
  if (choices.tensor.rows() != tokens)
    fail(fmt::format("{}: {}; there is a row for each of {} tokens", op, describe(choices), tokens));
}

void check_of_experts(std::string_view op, const NamedTensor& row, std::int64_t experts) {
  check_dtype(op, row, DType::kF32);
  check_numel(op, row, experts, "one for each expert");
}

void check_groups(const RouterRule& rule, std::int64_t experts) {
  if (rule.groups == 1) return;
  if (!rule.sigmoid) fail("route: groups are chosen by sigmoids, and this router has none");
  if (rule.groups < 1 || rule.groups > kMostExpertGroups || experts % rule.groups != 0 || experts / rule.groups < 2)
    fail(fmt::format("route: {} groups of {} experts; there are at most {} groups, of two experts or more", rule.groups,
                     experts, kMostExpertGroups));
  if (rule.top_groups < 1 || rule.top_groups > rule.groups || rule.top_groups * (experts / rule.groups) < rule.choices)
    fail(fmt::format("route: {} choices among {} of {} groups of {} experts", rule.choices, rule.top_groups,
                     rule.groups, experts));
}

void launch_permute(Device& device, const Tensor& x, const GroupedRows& grouped, const Tensor& weights,
                    const Tensor& out) {
  check_choices("permute", {"rows", grouped.rows}, DType::kI32, x.rows());
  device.launch(&KernelTable::permute, PermuteArgs{.in = x.view(),
                                                   .sources = grouped.sources.view(),
                                                   .choices = grouped.rows.cols(),
                                                   .weights = view_or_none(weights),
                                                   .out = out.view()});
}

}  // namespace

Routing route(Device& device, const Tensor& logits, const RouterRule& rule, HolderId holder,
              const RouterBalance& balance) {
  check_dtype("route", {"logits", logits}, DType::kF32);
  if (rule.choices < 1 || rule.choices > logits.cols())
    fail(fmt::format("route: {} choices; there are {} experts", rule.choices, logits.cols()));
  if (!(rule.scale > 0.0f)) fail(fmt::format("route: scale is {}; it must be above 0", rule.scale));
  check_groups(rule, logits.cols());
  if (balance.biases) check_of_experts("route", {"biases", balance.biases}, logits.cols());
  if (balance.counts) check_of_experts("route", {"counts", balance.counts}, logits.cols());
  if (balance.biases && !rule.sigmoid) fail("route: biases are added to sigmoids, and this router has none");
  const Shape shape{logits.rows(), rule.choices};
  Routing routing{.experts = device.allocate({shape, DType::kI32}, holder),
                  .weights = device.allocate({shape, DType::kF32}, holder)};
  if (rule.sigmoid) routing.slopes = device.allocate({shape, DType::kF32}, holder);
  if (rule.aux_loss > 0.0f) {
    routing.logits = logits;
    routing.counts = device.allocate({Shape{logits.cols()}, DType::kF32}, holder);
    fill(device, routing.counts, 0.0f);
  }
  device.launch(&KernelTable::route,
                RouteArgs{.logits = logits.view(),
                          .experts = routing.experts.view(),
                          .weights = routing.weights.view(),
                          .sigmoid = rule.sigmoid,
                          .scale = rule.scale,
                          .slopes = view_or_none(routing.slopes),
                          .biases = view_or_none(balance.biases),
                          .groups = rule.groups,
                          .top_groups = rule.top_groups,
                          .counts = view_or_none(routing.counts ? routing.counts : balance.counts)});
  if (routing.counts && balance.counts) add_into(device, balance.counts, routing.counts);
  return routing;
}

void balance_experts(Device& device, const RouterBalance& balance, float rate) {
  check_of_experts("balance_experts", {"counts", balance.counts}, balance.biases.numel());
  check_of_experts("balance_experts", {"biases", balance.biases}, balance.biases.numel());
  device.launch(&KernelTable::balance_experts,
                BalanceExpertsArgs{.counts = balance.counts.view(), .biases = balance.biases.view(), .rate = rate});
}

Tensor route_backward(Device& device, const Routing& routing, const RouterRule& rule, const Tensor& grad_weights,
                      const TensorSpec& spec, HolderId holder, double share) {
  check_choices("route_backward", {"grad_weights", grad_weights}, DType::kF32, routing.experts.rows());
  Tensor grad_logits = device.allocate(spec, holder);
  check_real("route_backward", {"grad_logits", grad_logits});
  const auto tokens = static_cast<double>(spec.shape.rows()), choices = static_cast<double>(rule.choices);
  const double aux =
      share * static_cast<double>(rule.aux_loss) * static_cast<double>(spec.shape.cols()) / (tokens * tokens * choices);
  device.launch(&KernelTable::route_backward, RouteBackwardArgs{.experts = routing.experts.view(),
                                                                .weights = routing.weights.view(),
                                                                .slopes = view_or_none(routing.slopes),
                                                                .scale = rule.scale,
                                                                .grad_weights = grad_weights.view(),
                                                                .grad_logits = grad_logits.view(),
                                                                .logits = view_or_none(routing.logits),
                                                                .counts = view_or_none(routing.counts),
                                                                .aux = static_cast<float>(aux),
                                                                .sigmoid = rule.sigmoid});
  return grad_logits;
}

std::int64_t rows_of_choices(std::int64_t tokens, std::int64_t choices, std::int64_t experts, std::int64_t multiple) {
  // An expert with tokens is padded by multiple - 1 rows at most.
  const std::int64_t all = tokens * choices;
  return (all + std::min(experts, all) * (multiple - 1)) / multiple * multiple;
}

GroupedRows group_rows(Device& device, const Tensor& experts, std::int64_t count, std::int64_t multiple,
                       HolderId holder) {
  check_dtype("group_rows", {"experts", experts}, DType::kI32);
  const std::int64_t rows = rows_of_choices(experts.rows(), experts.cols(), count, multiple);
  if (rows > std::numeric_limits<std::int32_t>::max())
    fail(fmt::format("group_rows: {} rows of choices; their numbers have 32 bits", rows));
  GroupedRows grouped{.rows = device.allocate({experts.shape(), DType::kI32}, holder),
                      .sources = device.allocate({Shape{rows, 1}, DType::kI32}, holder),
                      .begins = device.allocate({Shape{count + 1, 1}, DType::kI32}, holder)};
  device.launch(&KernelTable::group_rows, GroupRowsArgs{.experts = experts.view(),
                                                        .multiple = multiple,
                                                        .rows = grouped.rows.view(),
                                                        .sources = grouped.sources.view(),
                                                        .begins = grouped.begins.view()});
  return grouped;
}

std::vector<RowGroup> read_groups(Device& device, const GroupedRows& grouped, std::int64_t multiple) {
  const std::int64_t count = grouped.begins.numel() - 1, choices = grouped.rows.numel();
  std::vector<RowGroup> groups;
  if (!device.computes()) {
    std::int64_t begin = 0;
    for (std::int64_t e = 0; e < count; ++e) {
      const std::int64_t own = choices * (e + 1) / count - choices * e / count;
      groups.push_back({.begin = begin, .rows = round_up(own, multiple)});
      begin += groups.back().rows;
    }
    return groups;
  }
  std::vector<std::int32_t> begins(static_cast<std::size_t>(count) + 1);
  device.read_bytes_to(grouped.begins, std::as_writable_bytes(std::span(begins)));
  for (std::size_t e = 0; e + 1 < begins.size(); ++e)
    groups.push_back({.begin = begins[e], .rows = begins[e + 1] - begins[e]});
  return groups;
}

Tensor permute(Device& device, const Tensor& x, const GroupedRows& grouped, const Tensor& weights, HolderId holder) {
  if (weights) {
    check_real("permute", {"x", x});
    check_choices("permute", {"weights", weights}, DType::kF32, x.rows());
  }
  Tensor out = device.allocate({Shape{grouped.sources.numel(), x.cols()}, x.dtype()}, holder);
  launch_permute(device, x, grouped, weights, out);
  return out;
}

void permute_into(Device& device, const Tensor& x, const GroupedRows& grouped, const Tensor& out) {
  check_dtype("permute_into", {"out", out}, x.dtype());
  if (out.rows() != grouped.sources.numel() || out.cols() != x.cols())
    fail(fmt::format("permute_into: {}; there are {} rows of {} columns", describe({"out", out}),
                     grouped.sources.numel(), x.cols()));
  launch_permute(device, x, grouped, {}, out);
}

Tensor unpermute(Device& device, const Tensor& x, const GroupedRows& grouped, const Tensor& weights, HolderId holder) {
  check_real("unpermute", {"x", x});
  check_numel("unpermute", {"sources", grouped.sources}, x.rows(), "one for each row");
  if (weights) check_choices("unpermute", {"weights", weights}, DType::kF32, grouped.rows.rows());
  Tensor out = device.allocate({Shape{grouped.rows.rows(), x.cols()}, x.dtype()}, holder);
  device.launch(
      &KernelTable::unpermute,
      UnpermuteArgs{.in = x.view(), .rows = grouped.rows.view(), .weights = view_or_none(weights), .out = out.view()});
  return out;
}

Tensor unpermute_weights(Device& device, const Tensor& x, const GroupedRows& grouped, const Tensor& grad_out,
                         HolderId holder) {
  check_real("unpermute_weights", {"x", x});
  check_real("unpermute_weights", {"grad_out", grad_out});
  Tensor grad_weights = device.allocate({grouped.rows.shape(), DType::kF32}, holder);
  device.launch(&KernelTable::unpermute_weights, UnpermuteWeightsArgs{.in = x.view(),
                                                                      .rows = grouped.rows.view(),
                                                                      .grad_out = grad_out.view(),
                                                                      .grad_weights = grad_weights.view()});
  return grad_weights;
}

}  // namespace fp8lab
