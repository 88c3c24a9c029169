#include "fsdp/sharded_parameter.h"

#include <fmt/core.h>

#include <utility>

#include "core/check.h"
#include "nn/build.h"
#include "ops/elementwise.h"

namespace fp8lab {
namespace {

/// Counted: what a framework pays for it in every step is one of the things measured here.
std::unique_ptr<Quantizer> copy_quantizer(Runtime& runtime, const Quantizer& quantizer) {
  ++runtime.host.quantizer_copies;
  return std::make_unique<Quantizer>(quantizer);
}

/// Why blocks of `format` cannot be cut into these shards, or "".
std::string refusal_of(const QuantFormat& format, const RowSplit& split) {
  if (format.per_tensor() || split.ranks() == 1) return {};
  // Down dim 0 the row-wise half has blocks of block_rows, a column-wise half that is no transpose blocks of block_cols.
  const std::int64_t block = std::max(format.block_rows, format.block_cols);
  if (split.chunk() % block == 0) return {};
  return fmt::format("{} rows over {} ranks are {} each, which cuts blocks of {}", split.rows(), split.ranks(),
                     split.chunk(), block);
}

void share_rows(Shape& shape, std::int64_t rows) { shape.set(0, rows); }

}  // namespace

ShardedParameter::ShardedParameter(Runtime& runtime, Parameter& whole, Mesh& mesh)
    : whole_(whole), split_(dim0(whole.spec.shape), mesh.shard_group().size()), rank_(mesh.shard_group().rank()) {
  if (whole.in_eight_bits()) refusal_ = refusal_of(whole.quantizer->format, split_);
  if (!refusal_.empty()) {
    check(whole.quantized.empty(), "sharding: a weight that its format refuses to cut has to be initialised deferred");
    whole.quantizer.reset();
  }
  Device& device = runtime.device;
  shard_.name = whole.name;
  shard_.spec = whole.spec;
  share_rows(shard_.spec.shape, split_.count(rank_));
  shard_.init = whole.init;
  shard_.holder = device.holder(HolderKind::kParameter, whole.name);
  shard_.grad_holder = device.holder(HolderKind::kGradient, whole.name);
  if (whole.in_eight_bits()) {
    shard_.quantizer = std::move(whole.quantizer);
    shard_.quantizer->holder = shard_.holder;
    if (runtime.behaviors.share_amax_over_shards) shard_.quantizer->amax_group = &mesh.shard_group();
  }
  make_shard(runtime);
  whole.local = &shard_;
  whole.holder = device.holder(HolderKind::kUnsharded, whole.name, "weight");
  whole.grad_holder = device.holder(HolderKind::kUnsharded, whole.name, "gradient");

  grad_offsets_ = split_.offsets(row_elems(whole.spec.shape));
  if (!shard_.in_eight_bits() || !runtime.behaviors.gather_eight_bits) {
    values_ = gathered_values(whole.spec, split_);
    return;
  }
  const QuantFormat& format = shard_.quantizer->format;
  const Shape& shape = whole.spec.shape;
  const bool strip = runtime.behaviors.strip_scale_padding;
  whole.quantized = QuantizedTensor(shape, format);
  rowwise_ = gathered_rowwise(format, shape, split_, strip);
  if (!format.columnwise_is_transpose()) columnwise_ = gathered_columnwise(format, shape, split_, strip);
}

void ShardedParameter::make_shard(Runtime& runtime) {
  const bool deferred = !whole_.value && whole_.quantized.empty();
  if (deferred && runtime.behaviors.initialize_local_shard) {
    initialize(runtime, shard_, whole_.name, split_.begin(rank_));
    return;
  }
  // Reverted: initialisation goes to the wrapper, that is, to the whole parameter on every rank.
  if (deferred) initialize(runtime, whole_, whole_.name, 0);
  cut_from_whole(runtime);
  whole_.value = {};
  whole_.quantized.clear();
}

void ShardedParameter::cut_from_whole(Runtime& runtime) {
  Device& device = runtime.device;
  if (!shard_.in_eight_bits()) {
    const std::int64_t inner = row_elems(whole_.spec.shape);
    const Tensor flat = whole_.value.reshaped({1, whole_.value.numel()});
    shard_.value = device.allocate(shard_.spec, shard_.holder);
    copy_into(device, flat.columns(split_.begin(rank_) * inner, shard_.value.numel()),
              shard_.value.reshaped({1, shard_.value.numel()}));
    return;
  }
}

// --- gather -------------------------------------------------------------------------------------------------------------

ShardedParameter::Metadata ShardedParameter::describe(Runtime& runtime, Orientations usage) const {
  Metadata metadata{.quantizer = nullptr, .usage = usage};
  if (!runtime.behaviors.reuse_quantizer_at_gather) metadata.quantizer = copy_quantizer(runtime, *shard_.quantizer);
  return metadata;
}

void ShardedParameter::rebuild(Runtime& runtime, Metadata metadata) {
  if (metadata.quantizer)
    whole_.quantizer = copy_quantizer(runtime, *metadata.quantizer);
  else if (!whole_.quantizer)
    whole_.quantizer = copy_quantizer(runtime, *shard_.quantizer);
  whole_.quantizer->orientations = metadata.usage;
}

void ShardedParameter::add_array(Runtime& runtime, const GatheredArray& array, const Tensor& from, Tensor& to,
                                 std::vector<GatherPart>& parts) const {
  to = runtime.device.allocate(array.whole, whole_.holder);
  parts.push_back(
      {.from = from.view().data, .to = to.view().data, .offsets_bytes = array.offsets_bytes, .content = array.content});
}

void ShardedParameter::add_half(Runtime& runtime, const GatheredHalf& half, const QuantizedHalf& from,
                                QuantizedHalf& to, std::vector<GatherPart>& parts) const {
  add_array(runtime, half.codes, from.codes, to.codes, parts);
  if (!half.scales_travel()) {
    to.scale_inv = from.scale_inv.held_by(whole_.holder);
    return;
  }
  add_array(runtime, half.scales, from.scale_inv, to.scale_inv, parts);
  const std::int64_t padding = to.scale_inv.rows() - half.scales.filled_rows;
  if (padding > 0) fill(runtime.device, to.scale_inv.row_range(half.scales.filled_rows, padding), 0.0f);
}

void ShardedParameter::begin_gather(Runtime& runtime, Orientations usage, std::vector<GatherPart>& parts) {
  if (!rowwise_) {
    Tensor from = shard_.value;
    // The generic path: a gather that knows no eight bits sends what they stand for.
    if (shard_.in_eight_bits())
      from = dequantized_ = dequantize(runtime.device, shard_.quantized.rowwise_operand(), whole_.spec.dtype,
                                       runtime.workspace(whole_.name));
    add_array(runtime, values_, from, whole_.value, parts);
    return;
  }
  metadata_ = describe(runtime, usage);
  QuantizedTensor& whole = whole_.quantized;
  if (usage.rowwise || !columnwise_) add_half(runtime, *rowwise_, shard_.quantized.rowwise(), whole.rowwise(), parts);
  if (usage.columnwise && columnwise_)
    add_half(runtime, *columnwise_, shard_.quantized.columnwise(), whole.columnwise(), parts);
}

void ShardedParameter::end_gather(Runtime& runtime) {
  dequantized_ = {};
  if (rowwise_) rebuild(runtime, std::move(metadata_));
}

void ShardedParameter::reshard() {
  whole_.value = {};
  whole_.quantized.clear();
}

// --- reduce -------------------------------------------------------------------------------------------------------------

void ShardedParameter::begin_reduce(Runtime& runtime, std::vector<ScatterPart>& parts) {
  check(static_cast<bool>(whole_.grad), "sharding: backward left a parameter without a gradient");
  reduced_ = runtime.device.allocate(shard_.spec, shard_.grad_holder);
  parts.push_back({.from = whole_.grad.view().data,
                   .to = reduced_.view().data,
                   .offsets_elems = grad_offsets_,
                   .dtype = whole_.spec.dtype,
                   .content = Content::kPayload});
}

ReducePart ShardedParameter::reduced() const {
  return {
      .data = reduced_.view().data, .elems = reduced_.numel(), .dtype = reduced_.dtype(), .content = Content::kPayload};
}

void ShardedParameter::end_reduce(Runtime& runtime, int ranks) {
  whole_.grad = {};
  if (ranks > 1) scale_in_place(runtime.device, reduced_, 1.0f / static_cast<float>(ranks));
  shard_.accumulate(runtime.device, std::move(reduced_));
  reduced_ = {};
}

}  // namespace fp8lab
