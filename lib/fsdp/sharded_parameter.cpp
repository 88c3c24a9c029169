#include "fsdp/sharded_parameter.h"

#include <fmt/core.h>

#include <utility>

#include "core/check.h"
#include "nn/build.h"
#include "nn/cores/operand.h"
#include "ops/elementwise.h"
#include "ops/quantized_storage.h"

namespace fp8lab {

std::unique_ptr<Quantizer> copy_quantizer(Runtime& runtime, const Quantizer& quantizer) {
  ++runtime.host.quantizer_copies;
  return std::make_unique<Quantizer>(quantizer);
}

std::string ShardingHooks::refusal(Parameter& unsharded, const RowSplit& split) const {
  const Shape& shape = unsharded.spec.shape;
  return shard_refusal(unsharded.quantizer->format, shape.rows(), shape.cols(), split.bounds());
}

ShardedParameter::ShardedParameter(Runtime& runtime, Parameter& unsharded, Mesh& mesh,
                                   std::optional<DType> reduce_dtype)
    : unsharded_(unsharded),
      shards_(unsharded.part.parts > 1 ? mesh.expert_shard_group() : mesh.shard_group()),
      split_(dim0(unsharded.spec.shape), shards_.size()),
      rank_(shards_.rank()),
      reduce_dtype_(reduce_dtype.value_or(unsharded.spec.dtype)),
      hooks_(make_sharding_hooks(runtime.behaviors)) {
  decide_format(runtime);
  build_shard(runtime);
  lay_out_gathers(runtime);
}

void ShardedParameter::decide_format(Runtime& runtime) {
  if (unsharded_.in_eight_bits()) refusal_ = hooks_->refusal(unsharded_, split_);
  if (refusal_.empty()) return;
  // Shards would cut scale blocks, so this parameter is sharded in its nominal type. If its initial values can be
  // computed again, it gets the values from which the eight bits were cast, so that master weights start from
  // unrounded values, as for other weights. Otherwise the eight bits are dequantized.
  if (!unsharded_.quantized.empty())
    unsharded_.value = unsharded_.initial ? initial_values(runtime, unsharded_, unsharded_.holder)
                                          : dequantize(runtime.device, unsharded_.quantized.rowwise_operand(),
                                                       unsharded_.spec.dtype, unsharded_.holder);
  unsharded_.quantized = {};
  unsharded_.quantizer.reset();
}

void ShardedParameter::build_shard(Runtime& runtime) {
  Device& device = runtime.device;
  const std::int64_t first_row = unsharded_.part.part * split_.rows() + split_.begin(rank_);
  shard_.name = unsharded_.name;
  shard_.spec = unsharded_.spec;
  shard_.spec.shape.set(0, split_.count(rank_));
  shard_.first_row = first_row;
  shard_.part = unsharded_.part;
  shard_.init = unsharded_.init;
  shard_.init_deviation = unsharded_.init_deviation;
  shard_.initial_in = unsharded_.initial_in;
  shard_.holder = device.holder(HolderKind::kParameter, unsharded_.name);
  shard_.grad_holder = device.holder(HolderKind::kGradient, unsharded_.name);
  if (unsharded_.in_eight_bits()) {
    shard_.quantizer = std::move(unsharded_.quantizer);
    shard_.quantizer->holder = shard_.holder;
    shard_.quantizer->amax_group = hooks_->amax_group(shards_);
  }
  place(runtime, shard_.holder);
  if (is_deferred(unsharded_)) {
    initialize(runtime, shard_, unsharded_.name, first_row);
  } else {
    cut_from_unsharded(runtime);
    take_initial_values();
    unsharded_.value = {};
    unsharded_.quantized.clear();
  }
  check_orientations();
}

void ShardedParameter::lay_out_gathers(Runtime& runtime) {
  unsharded_.local = &shard_;
  unsharded_.holder = runtime.device.holder(HolderKind::kUnsharded, unsharded_.name, "weight");
  place(runtime, unsharded_.holder);
  unsharded_.grad_holder = runtime.device.holder(HolderKind::kUnsharded, unsharded_.name, "gradient");
  grad_offsets_ = split_.padded_offsets(row_elems(unsharded_.spec.shape));
  const QuantFormat* const format = shard_.in_eight_bits() ? &shard_.quantizer->format : nullptr;
  layout_ = gather_layout(unsharded_.spec, format, split_);
  hooks_->after_shard(runtime, unsharded_, split_, layout_);
  if (layout_.rowwise) unsharded_.quantized = QuantizedTensor(unsharded_.spec.shape, *format);
  pad_shard(runtime);
}

// Symmetric windows need the shard and the unsharded parameter at the same offsets on every rank, so every rank must
// make the same allocations from the gathering pool. Ranks with fewer rows than others make other ones; such parameters
// are gathered from memory outside of the pool.
void ShardedParameter::place(Runtime& runtime, HolderId holder) const {
  runtime.device.memory().place(holder, split_.even() ? Pool::kGathered : Pool::kOwn);
}

// A shard of initial values has initial values. Those in high precision are the shard itself and are not kept twice.
void ShardedParameter::take_initial_values() {
  const std::optional<InitialValues> initial = std::exchange(unsharded_.initial, {});
  if (!initial) return;
  shard_.initial = InitialValues{.seed = initial->seed,
                                 .stream = initial->stream,
                                 .first_row = initial->first_row + split_.begin(rank_),
                                 .kept = {}};
  const std::int64_t row_bytes =
      row_elems(unsharded_.spec.shape) * static_cast<std::int64_t>(size_bytes(unsharded_.spec.dtype));
  if (shard_.in_eight_bits())
    shard_.initial->kept = initial->kept.part(split_.begin(rank_) * row_bytes, split_.count(rank_) * row_bytes);
}

// Follows the steps of frameworks: the shard is cut out of the unsharded parameter, copied to zeros of its size,
// narrowed to its rows and viewed under its shape.
void ShardedParameter::cut_from_unsharded(Runtime& runtime) {
  Device& device = runtime.device;
  const Behaviors& behaviors = runtime.behaviors;
  const std::int64_t first = split_.begin(rank_), count = split_.count(rank_);
  if (!shard_.in_eight_bits()) {
    const std::int64_t inner = row_elems(unsharded_.spec.shape);
    const Tensor flat = unsharded_.value.reshaped({1, unsharded_.value.numel()});
    shard_.value = device.allocate(shard_.spec, shard_.holder);
    copy_into(device, flat.columns(first * inner, count * inner), shard_.value.reshaped({1, count * inner}));
    return;
  }
  QuantizedTensor& unsharded = unsharded_.quantized;
  RowCut cut{
      .begin = first, .count = count, .orientations = {.rowwise = true, .columnwise = true}, .holder = shard_.holder};
  if (unsharded.format().columnwise_stored_transposed()) {
    // One orientation at a time, so that only one orientation of the unsharded parameter lies in memory with the
    // shard.
    cut.orientations.columnwise = false;
    QuantizedTensor shard = cut_rows(device, behaviors, unsharded, cut);
    unsharded.drop_rowwise();
    if (unsharded.columnwise()) {
      cut.orientations = {.rowwise = false, .columnwise = true};
      QuantizedTensor columns = cut_rows(device, behaviors, unsharded, cut);
      if (!shard.columnwise()) shard.columnwise() = std::move(columns.columnwise());
      if (unsharded.format().per_tensor()) shard.columnwise().scale_inv = shard.rowwise().scale_inv;
    }
    shard_.quantized = view_as(shard, shard_.spec.shape);
    return;
  }
  const QuantizedTensor from = cut_rows(device, behaviors, unsharded, cut);
  QuantizedTensor copy = new_zeros(device, behaviors, from, count, shard_.holder);
  copy_rows(device, behaviors, from, copy, shard_.quantizer.get());
  cut.begin = 0;
  RowSlice slice = slice_rows(device, behaviors, copy, cut, shard_.spec.dtype);
  if (slice.values) {
    shard_.value = std::move(slice.values);
    shard_.quantizer.reset();
    refusal_ = slice.reason;
    return;
  }
  shard_.quantized = view_as(slice.view, shard_.spec.shape);
}

void ShardedParameter::check_orientations() const {
  if (!shard_.in_eight_bits()) return;
  const Orientations made = shard_.quantizer->orientations;
  const QuantizedTensor& shard = shard_.quantized;
  if (static_cast<bool>(shard.rowwise()) >= made.rowwise && static_cast<bool>(shard.columnwise()) >= made.columnwise)
    return;
  fail(fmt::format("sharding: {} was made with both orientations, and its shard has lost its {} one", unsharded_.name,
                   shard.rowwise() ? "column-wise" : "row-wise"));
}

void ShardedParameter::pad_shard(Runtime& runtime) {
  const auto pad = [&](const GatheredArray& array, Tensor& own) {
    own = padded(runtime.device, own, array.bytes_of_rank(), shard_.holder);
  };
  const auto pad_orientation = [&](const std::optional<GatheredOrientation>& orientation, QuantizedOrientation& own) {
    if (!orientation || !own) return;
    pad(orientation->data, own.data);
    if (orientation->scales_travel()) pad(orientation->scales, own.scale_inv);
  };
  pad_orientation(layout_.rowwise, shard_.quantized.rowwise());
  pad_orientation(layout_.columnwise, shard_.quantized.columnwise());
  if (!shard_.in_eight_bits()) pad(layout_.values, shard_.value);
}

// --- gather ---

void ShardedParameter::begin_gather(Runtime& runtime, Orientations usage, std::vector<GatherPart>& parts) {
  pad_shard(runtime);  // others may have replaced a shard's storage since
  gather_.usage = usage;
  GatherParts listed(runtime.device, unsharded_.holder, parts);
  if (!layout_.rowwise) {
    gather_.values = hooks_->values_to_send(runtime, shard_, layout_.values.bytes_of_rank());
    listed.add(layout_.values, gather_.values, unsharded_.value);
    return;
  }
  QuantizedTensor& unsharded = unsharded_.quantized;
  if (usage.rowwise || !layout_.columnwise)
    listed.add(*layout_.rowwise, shard_.quantized.rowwise(), unsharded.rowwise());
  if (usage.columnwise && layout_.columnwise)
    listed.add(*layout_.columnwise, shard_.quantized.columnwise(), unsharded.columnwise());
  hooks_->begin_gather(runtime, shard_, listed);
}

void ShardedParameter::end_gather(Runtime& runtime) {
  if (layout_.rowwise) {
    // The constructor of a quantized tensor copies the quantizer that it is given. Later gathers reuse the tensor.
    if (!unsharded_.quantizer) unsharded_.quantizer = copy_quantizer(runtime, *shard_.quantizer);
    hooks_->end_gather(unsharded_, gather_.usage);
    unsharded_.quantizer->orientations = gather_.usage;
  }
  gather_ = {};
}

void ShardedParameter::make_columnwise(Runtime& runtime) {
  if (!layout_.rowwise || layout_.columnwise) return;  // not in eight bits, or gathered
  if (unsharded_.quantizer->orientations.columnwise &&
      !reads_rowwise_transposed(runtime.device.arch(), unsharded_.quantized.format()))
    hooks_->make_columnwise(runtime, unsharded_);
}

void ShardedParameter::reshard() {
  unsharded_.value = {};
  unsharded_.quantized.clear();
  unsharded_.made_columnwise = false;
  hooks_->after_reshard(unsharded_);
}

void ShardedParameter::free_gathered() {
  hooks_->before_free(unsharded_);
  reshard();
}

// --- reduce ---

void ShardedParameter::copy_gradient(Runtime& runtime) {
  check(static_cast<bool>(unsharded_.grad), "sharding: backward left a parameter without a gradient");
  if (!split_.even())
    reduction_.copy = followed_by_zeros(runtime.device, unsharded_.grad,
                                        {Shape{1, grad_offsets_.back()}, reduce_dtype_}, unsharded_.grad_holder);
  else if (unsharded_.grad.dtype() != reduce_dtype_)
    reduction_.copy = cast(runtime.device, unsharded_.grad, reduce_dtype_, unsharded_.grad_holder);
}

void ShardedParameter::free_copied_gradient() {
  if (reduction_.copy) unsharded_.grad = {};
}

void ShardedParameter::begin_reduce(Runtime& runtime, std::vector<ScatterPart>& parts) {
  Shape shape = shard_.spec.shape;
  shape.set(0, split_.chunk());
  reduction_.sums = runtime.device.allocate({shape, reduce_dtype_}, shard_.grad_holder);
  parts.push_back({.from = (reduction_.copy ? reduction_.copy : unsharded_.grad).view().data,
                   .to = reduction_.sums.view().data,
                   .offsets_elems = grad_offsets_,
                   .dtype = reduce_dtype_,
                   .content = Content::kPayload});
}

ReducePart ShardedParameter::reduced() const {
  return {.data = reduction_.sums.view().data,
          .elems = reduction_.sums.numel(),
          .dtype = reduction_.sums.dtype(),
          .content = Content::kPayload};
}

void ShardedParameter::end_reduce(Runtime& runtime, int ranks) {
  unsharded_.grad = {};
  reduction_.copy = {};
  if (ranks > 1) scale_in_place(runtime.device, reduction_.sums, 1.0f / static_cast<float>(ranks));
  if (reduce_dtype_ != shard_.spec.dtype)
    reduction_.sums = cast(runtime.device, reduction_.sums, shard_.spec.dtype, shard_.grad_holder);
  shard_.accumulate(runtime.device, {reduction_.sums.buffer(), shard_.spec});
  reduction_ = {};
}

}  // namespace fp8lab
