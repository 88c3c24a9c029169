#include "ops/rewrite.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/check.h"
#include "ops/elementwise.h"
#include "ops/scaling.h"
#include "ops/validate.h"

namespace fp8lab {
namespace {

bool measured(const Rewrite& rewrite) {
  return rewrite.quantizer->format.amax_source == AmaxSource::kTensor && rewrite.scale == nullptr;
}
bool per_tensor(const Rewrite& rewrite) { return rewrite.quantizer->format.per_tensor(); }
DType nominal_of(const Rewrite& rewrite) { return rewrite.nominal.value_or(rewrite.value.dtype()); }

void check_rewrite(const Rewrite& rewrite) {
  check_real("quantize_in_place", {"value", rewrite.value});
  const QuantFormat& format = rewrite.quantizer->format;
  check_format(format);
  const QuantizedTensor& to = *rewrite.to;
  if (!to.empty() && to.format() == format && to.rows() == rewrite.value.rows() && to.cols() == rewrite.value.cols())
    return;
  fail(fmt::format("quantize_in_place: {} into what was made of {} x {} under {} format",
                   describe({"value", rewrite.value}), to.rows(), to.cols(),
                   to.format() == format ? "this" : "another"));
}

void rewrite_blocks(Device& device, const Rewrite& rewrite) {
  const DType nominal = nominal_of(rewrite);
  const Tensor rounded =
      nominal != rewrite.value.dtype()
          ? cast(device, rewrite.value, nominal, device.holder(HolderKind::kWorkspace, "quantize", "rounded"))
          : rewrite.value;
  QuantizeArgs args{.in = rounded.view(), .rowwise = {}, .columnwise = {}, .format = rewrite.quantizer->format};
  if (rewrite.to->rowwise()) args.rowwise = rewrite.to->rowwise_operand();
  if (rewrite.to->columnwise()) args.columnwise = rewrite.to->columnwise_operand(false);
  device.launch(&KernelTable::quantize, args);
}

}  // namespace

CastTarget Rewriter::orientations_of(const Rewrite& rewrite) const {
  const Quantizer& quantizer = *rewrite.quantizer;
  const bool history = quantizer.format.amax_source == AmaxSource::kHistory;
  CastTarget target{.rowwise = {},
                    .columnwise = {},
                    .format = quantizer.format,
                    .nominal = nominal_of(rewrite),
                    .scale = history ? quantizer.scale.data<const float>() : rewrite.scale,
                    .amax = quantizer.amax ? quantizer.amax.data<float>() : nullptr};
  if (rewrite.to->rowwise()) target.rowwise = rewrite.to->rowwise_operand();
  if (rewrite.to->columnwise()) target.columnwise = rewrite.to->columnwise_operand(false);
  return target;
}

Rewriter::Reduction& Rewriter::reduction_of(const Rewrite& rewrite) {
  ProcessGroup* const group = rewrite.quantizer->amax_group;
  const auto found = std::ranges::find(reductions_, group, &Reduction::group);
  return found != reductions_.end() ? *found : reductions_.emplace_back(Reduction{group, 0, 0});
}

float* Rewriter::amax_slot(std::size_t index) const { return amaxes_.data<float>() + slots_[index]; }

void Rewriter::begin(Device& device, std::span<const Rewrite> rewrites) {
  rewrites_ = rewrites;
  slots_.clear();
  reductions_.clear();
  casts_.clear();
  for (const Rewrite& rewrite : rewrites) {
    check_rewrite(rewrite);
    if (measured(rewrite)) ++reduction_of(rewrite).count;
  }
  std::int64_t count = 0;
  for (Reduction& reduction : reductions_) {
    reduction.end = count;
    count += reduction.count;
  }
  for (const Rewrite& rewrite : rewrites) slots_.push_back(measured(rewrite) ? reduction_of(rewrite).end++ : -1);
  if (count == 0) return;
  amaxes_ = device.allocate({Shape{1, count}, DType::kF32}, device.holder(HolderKind::kWorkspace, "quantize", "amax"));
  fill(device, amaxes_, 0.0f);
}

CastTarget Rewriter::target(std::size_t index) const {
  const Rewrite& rewrite = rewrites_[index];
  if (!per_tensor(rewrite)) return {};
  if (!measured(rewrite)) return orientations_of(rewrite);
  return {.rowwise = {},
          .columnwise = {},
          .format = rewrite.quantizer->format,
          .nominal = nominal_of(rewrite),
          .scale = nullptr,
          .amax = amax_slot(index)};
}

void Rewriter::launch(Device& device) const {
  if (!casts_.empty()) device.launch(&KernelTable::quantize_list, QuantizeListArgs{.tensors = casts_});
}

void Rewriter::finish(Device& device) {
  for (std::size_t i = 0; i < rewrites_.size(); ++i)
    if (measured(rewrites_[i]) && !rewrites_[i].fused_cast)
      casts_.push_back({.in = rewrites_[i].value.view(), .target = target(i), .measured = nullptr});
  launch(device);
  for (const Reduction& reduction : reductions_)
    max_over(reduction.group, amaxes_.columns(reduction.end - reduction.count, reduction.count));

  casts_.clear();
  for (std::size_t i = 0; i < rewrites_.size(); ++i) {
    const Rewrite& rewrite = rewrites_[i];
    if (!per_tensor(rewrite))
      rewrite_blocks(device, rewrite);
    else if (measured(rewrite) || !rewrite.fused_cast)
      casts_.push_back({.in = rewrite.value.view(),
                        .target = orientations_of(rewrite),
                        .measured = measured(rewrite) ? amax_slot(i) : nullptr});
  }
  launch(device);
  amaxes_ = {};
  rewrites_ = {};
}

void quantize_in_place(Device& device, std::span<const Rewrite> rewrites) {
  Rewriter rewriter;
  rewriter.begin(device, rewrites);
  rewriter.finish(device);
}

}  // namespace fp8lab
