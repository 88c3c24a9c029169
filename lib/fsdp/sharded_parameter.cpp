#include "fsdp/sharded_parameter.h"

#include <fmt/core.h>

#include <utility>

#include "core/check.h"
#include "nn/build.h"
#include "nn/cores/operand.h"
#include "ops/elementwise.h"
#include "ops/quantized_storage.h"

namespace fp8lab {
namespace {

/// Copies are counted, because copying quantizers before every forward is one of the measured host costs.
std::unique_ptr<Quantizer> copy_quantizer(Runtime& runtime, const Quantizer& quantizer) {
  ++runtime.host.quantizer_copies;
  return std::make_unique<Quantizer>(quantizer);
}

/// A row of `elems` elements, `tensor` and zeros after it.
Tensor followed_by_zeros(Device& device, const Tensor& tensor, const TensorSpec& row, HolderId holder) {
  const Tensor storage = device.allocate(row, holder);
  const std::int64_t elems = tensor.numel();
  copy_into(device, tensor.reshaped({1, elems}), storage.columns(0, elems));
  fill(device, storage.columns(elems, storage.numel() - elems), 0.0f);
  return storage;
}

/// The elements of `tensor`, in storage of `bytes` bytes at least.
Tensor padded(Device& device, const Tensor& tensor, std::int64_t bytes, HolderId holder) {
  const BufferRef& buffer = tensor.buffer();
  if (buffer.bytes() - (tensor.view().data - buffer.data()) >= bytes) return tensor;
  const TensorSpec row = {Shape{1, bytes / static_cast<std::int64_t>(size_bytes(tensor.dtype()))}, tensor.dtype()};
  return {followed_by_zeros(device, tensor, row, holder).buffer(), tensor.spec()};
}

}  // namespace

ShardedParameter::ShardedParameter(Runtime& runtime, Parameter& unsharded, Mesh& mesh,
                                   std::optional<DType> reduce_dtype)
    : unsharded_(unsharded),
      split_(dim0(unsharded.spec.shape), mesh.shard_group().size()),
      rank_(mesh.shard_group().rank()),
      reduce_dtype_(reduce_dtype.value_or(unsharded.spec.dtype)) {
  Device& device = runtime.device;
  const bool deferred = !unsharded.value && unsharded.quantized.empty();
  // Reverted behaviour: registering the shard in place of the parameter silently loses what makes it FP8.
  if (deferred && !runtime.behaviors.keep_fp8_init_metadata) unsharded.quantizer.reset();
  if (unsharded.in_eight_bits()) {
    const QuantFormat& format = unsharded.quantizer->format;
    refusal_ = shard_refusal(format, unsharded.spec.shape.rows(), unsharded.spec.shape.cols(), split_.bounds());
    if (refusal_.empty() && !deferred && !splits_in_eight_bits(runtime.behaviors, format)) {
      // Reverted behaviour: shards, and the master weights made from them, start from dequantized values.
      refusal_ = "a split of this quantized tensor dequantizes it";
      unsharded.initial.reset();
    }
  }
  if (!refusal_.empty()) {
    // Shards would cut scale blocks, so this parameter is sharded in its nominal type. If its initial values can be
    // computed again, it gets the values from which the eight bits were cast, so that master weights start from
    // unrounded values like those of other weights. Otherwise the eight bits are dequantized.
    if (unsharded.initial && !unsharded.quantized.empty())
      unsharded.value = initial_values(runtime, unsharded, unsharded.holder);
    else if (!unsharded.quantized.empty())
      unsharded.value =
          dequantize(device, unsharded.quantized.rowwise_operand(), unsharded.spec.dtype, unsharded.holder);
    unsharded.quantized = {};
    unsharded.quantizer.reset();
  }
  shard_.name = unsharded.name;
  shard_.spec = unsharded.spec;
  shard_.spec.shape.set(0, split_.count(rank_));
  shard_.first_row = split_.begin(rank_);
  shard_.init = unsharded.init;
  shard_.init_deviation = unsharded.init_deviation;
  shard_.initial_in = unsharded.initial_in;
  shard_.holder = device.holder(HolderKind::kParameter, unsharded.name);
  shard_.grad_holder = device.holder(HolderKind::kGradient, unsharded.name);
  if (unsharded.in_eight_bits()) {
    shard_.quantizer = std::move(unsharded.quantizer);
    shard_.quantizer->holder = shard_.holder;
    if (runtime.behaviors.share_amax_over_shards) shard_.quantizer->amax_group = &mesh.shard_group();
  }
  // Symmetric windows need the shard and the unsharded parameter at the same offsets on every rank, so every rank must
  // make the same allocations from the gathering pool. Ranks with fewer rows than others make other ones; such
  // parameters are gathered from memory outside of the pool.
  const Pool pool = split_.even() ? Pool::kGathered : Pool::kOwn;
  device.memory().place(shard_.holder, pool);
  make_shard(runtime);
  check_orientations();
  flatten_shard(runtime);
  unsharded.local = &shard_;
  unsharded.holder = device.holder(HolderKind::kUnsharded, unsharded.name, "weight");
  device.memory().place(unsharded.holder, pool);
  unsharded.grad_holder = device.holder(HolderKind::kUnsharded, unsharded.name, "gradient");

  grad_offsets_ = split_.padded_offsets(row_elems(unsharded.spec.shape));
  if (!shard_.in_eight_bits() || !runtime.behaviors.gather_eight_bits) {
    values_ = gathered_values(unsharded.spec, split_);
    pad_shard(runtime);
    return;
  }
  const QuantFormat& format = shard_.quantizer->format;
  const Shape& shape = unsharded.spec.shape;
  const bool strip = runtime.behaviors.strip_scale_padding;
  unsharded.quantized = QuantizedTensor(shape, format);
  rowwise_ = gathered_rowwise(format, shape, split_, strip);
  if (!format.columnwise_is_transpose()) columnwise_ = gathered_columnwise(format, shape, split_, strip);
  // Reverted behaviour: column-wise blocks travel too. They are stored transposed, so that a shard's rows are not
  // contiguous, and they are copied into the order of rows and back.
  if (!runtime.behaviors.gather_blocks_row_wise && !format.per_tensor() && format.columnwise_is_transpose() &&
      shard_.quantizer->orientations.columnwise)
    untransposed_ = gathered_untransposed_columnwise(format, shape, split_);
  pad_shard(runtime);
}

void ShardedParameter::make_shard(Runtime& runtime) {
  if (!unsharded_.value && unsharded_.quantized.empty()) {  // initialisation was deferred
    initialize(runtime, shard_, unsharded_.name, split_.begin(rank_));
    return;
  }
  cut_from_unsharded(runtime);
  // A shard of initial values has initial values. Those in high precision are the shard itself and are not kept twice.
  if (const std::optional<InitialValues> initial = std::exchange(unsharded_.initial, {})) {
    shard_.initial = InitialValues{.seed = initial->seed,
                                   .stream = initial->stream,
                                   .first_row = initial->first_row + split_.begin(rank_),
                                   .kept = {}};
    const std::int64_t row_bytes =
        row_elems(unsharded_.spec.shape) * static_cast<std::int64_t>(size_bytes(unsharded_.spec.dtype));
    if (shard_.in_eight_bits())
      shard_.initial->kept = initial->kept.part(split_.begin(rank_) * row_bytes, split_.count(rank_) * row_bytes);
  }
  unsharded_.value = {};
  unsharded_.quantized.clear();
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
    // One orientation at a time, so that only one orientation of the unsharded parameter lies in memory beside the
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

void ShardedParameter::pad_shard(Runtime& runtime) {
  const auto pad = [&](const GatheredArray& array, Tensor& own) {
    own = padded(runtime.device, own, array.bytes_of_rank(), shard_.holder);
  };
  const auto pad_orientation = [&](const GatheredOrientation& orientation, QuantizedOrientation& own) {
    if (!own) return;
    pad(orientation.data, own.data);
    if (orientation.scales_travel()) pad(orientation.scales, own.scale_inv);
  };
  if (rowwise_) pad_orientation(*rowwise_, shard_.quantized.rowwise());
  if (columnwise_) pad_orientation(*columnwise_, shard_.quantized.columnwise());
  if (!shard_.in_eight_bits()) pad(values_, shard_.value);
}

// Reverted behaviour: FSDP2 keeps a view of every padded shard as one row, also of those that gather by hooks of their
// own, which do not read it. Blocks lie along the last dimension and cannot be viewed so: upstream warns that the view
// is "not going to be used anywhere" and answers with dequantized values, a second copy of the shard for all of
// training. It is made where FSDP2 makes it for initialised models; deferred ones get it before the first forward.
void ShardedParameter::flatten_shard(Runtime& runtime) {
  if (runtime.behaviors.flatten_without_copy || !shard_.in_eight_bits() || shard_.quantizer->format.per_tensor())
    return;
  const TensorSpec& spec = shard_.spec;
  const HolderId holder = runtime.device.holder(HolderKind::kParameter, unsharded_.name, "flattened");
  const std::int64_t bytes = split_.chunk() * row_elems(spec.shape) * static_cast<std::int64_t>(size_bytes(spec.dtype));
  flattened_ =
      padded(runtime.device, dequantize_matrix(runtime.device, shard_.quantized, spec.dtype, holder), bytes, holder);
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

// --- gather ---

ShardedParameter::Metadata ShardedParameter::describe(Runtime& runtime, Orientations usage) const {
  Metadata metadata{.quantizer = nullptr, .usage = usage};
  if (!runtime.behaviors.reuse_quantizer_at_gather) metadata.quantizer = copy_quantizer(runtime, *shard_.quantizer);
  return metadata;
}

void ShardedParameter::rebuild(Runtime& runtime, Metadata metadata) {
  // The constructor of the unsharded tensor copies the quantizer that it is given, in either behaviour. Later gathers
  // reuse the tensor.
  if (!unsharded_.quantizer)
    unsharded_.quantizer = copy_quantizer(runtime, metadata.quantizer ? *metadata.quantizer : *shard_.quantizer);
  else if (metadata.quantizer)
    unsharded_.quantizer = std::move(metadata.quantizer);
  unsharded_.quantizer->orientations = metadata.usage;
  // Reverted behaviours: a reshard has left the transpose of the values gathered last. A pass that reads only rows
  // drops it, and a transpose of blocks is dropped and made again. A per-tensor transpose is kept; if it is of the
  // previous step, so are the values that products read.
  const bool reuses = metadata.usage.columnwise && unsharded_.quantized.format().per_tensor();
  if (!columnwise_ && !untransposed_ && !reuses) unsharded_.drop_columnwise();
}

void ShardedParameter::add_array(Runtime& runtime, const GatheredArray& array, const Tensor& from, Tensor& to,
                                 std::vector<GatherPart>& parts) const {
  const DType dtype = array.unsharded.dtype;
  const Shape storage = {1, array.storage_bytes() / static_cast<std::int64_t>(size_bytes(dtype))};
  to = Tensor(runtime.device.allocate({storage, dtype}, unsharded_.holder).buffer(), array.unsharded);
  parts.push_back(
      {.from = from.view().data, .to = to.view().data, .offsets_bytes = array.offsets_bytes, .content = array.content});
}

void ShardedParameter::add_orientation(Runtime& runtime, const GatheredOrientation& orientation,
                                       const QuantizedOrientation& from, QuantizedOrientation& to,
                                       std::vector<GatherPart>& parts) const {
  add_array(runtime, orientation.data, from.data, to.data, parts);
  if (!orientation.scales_travel()) {
    to.scale_inv = from.scale_inv.held_by(unsharded_.holder);
    return;
  }
  add_array(runtime, orientation.scales, from.scale_inv, to.scale_inv, parts);
  const std::int64_t padding = to.scale_inv.rows() - orientation.scales.filled_rows;
  if (padding > 0) fill(runtime.device, to.scale_inv.row_range(orientation.scales.filled_rows, padding), 0.0f);
}

void ShardedParameter::begin_gather(Runtime& runtime, Orientations usage, std::vector<GatherPart>& parts) {
  pad_shard(runtime);  // others may have replaced a shard's storage since
  const HolderId workspace = runtime.workspace(unsharded_.name);
  if (!rowwise_) {
    Tensor from = shard_.value;
    // The generic path: a gather that does not know quantized tensors sends dequantized values.
    if (shard_.in_eight_bits())
      from = dequantized_ =
          padded(runtime.device,
                 dequantize(runtime.device, shard_.quantized.rowwise_operand(), unsharded_.spec.dtype, workspace),
                 values_.bytes_of_rank(), workspace);
    add_array(runtime, values_, from, unsharded_.value, parts);
    return;
  }
  if (untransposed_) usage = {.rowwise = true, .columnwise = true};
  metadata_ = describe(runtime, usage);
  QuantizedTensor& unsharded = unsharded_.quantized;
  if (usage.rowwise || !columnwise_)
    add_orientation(runtime, *rowwise_, shard_.quantized.rowwise(), unsharded.rowwise(), parts);
  if (usage.columnwise && columnwise_)
    add_orientation(runtime, *columnwise_, shard_.quantized.columnwise(), unsharded.columnwise(), parts);
  if (!untransposed_) return;
  sent_untransposed_ = untransposed_columnwise(runtime.device, shard_.quantized, workspace);
  for (const auto& [array, sent] : {std::pair(&untransposed_->data, &sent_untransposed_.data),
                                    std::pair(&untransposed_->scales, &sent_untransposed_.scale_inv)})
    *sent = padded(runtime.device, *sent, array->bytes_of_rank(), workspace);
  add_orientation(runtime, *untransposed_, sent_untransposed_, gathered_untransposed_, parts);
}

void ShardedParameter::end_gather(Runtime& runtime) {
  dequantized_ = {};
  sent_untransposed_ = {};
  if (rowwise_) rebuild(runtime, std::move(metadata_));
}

void ShardedParameter::make_columnwise(Runtime& runtime) {
  if (!rowwise_ || columnwise_) return;  // not in eight bits, or gathered
  QuantizedTensor& unsharded = unsharded_.quantized;
  const QuantFormat& format = unsharded.format();
  if (untransposed_) {  // in backward this replaces forward's copy, which lives until then
    unsharded.columnwise() =
        columnwise_from_untransposed(runtime.device, format, gathered_untransposed_, unsharded_.holder);
    unsharded_.made_columnwise = true;
  } else if (unsharded_.quantizer->orientations.columnwise && !unsharded.columnwise() &&
             !reads_rowwise_transposed(runtime.device.arch(), format)) {
    unsharded_.make_columnwise(runtime.device);
  }
}

void ShardedParameter::reshard() {
  unsharded_.value = {};
  gathered_untransposed_ = {};
  unsharded_.quantized.clear();
  unsharded_.made_columnwise = false;
}

void ShardedParameter::free_gathered() {
  const bool made = unsharded_.made_columnwise;
  QuantizedOrientation copy;
  if (made) copy = std::move(unsharded_.quantized.columnwise());
  reshard();
  if (made) unsharded_.quantized.columnwise() = std::move(copy);
  unsharded_.made_columnwise = made;
}

// --- reduce ---

void ShardedParameter::copy_gradient(Runtime& runtime) {
  check(static_cast<bool>(unsharded_.grad), "sharding: backward left a parameter without a gradient");
  if (!split_.even())
    gradient_copy_ = followed_by_zeros(runtime.device, unsharded_.grad, {Shape{1, grad_offsets_.back()}, reduce_dtype_},
                                       unsharded_.grad_holder);
  else if (unsharded_.grad.dtype() != reduce_dtype_)
    gradient_copy_ = cast(runtime.device, unsharded_.grad, reduce_dtype_, unsharded_.grad_holder);
}

void ShardedParameter::free_copied_gradient() {
  if (gradient_copy_) unsharded_.grad = {};
}

void ShardedParameter::begin_reduce(Runtime& runtime, std::vector<ScatterPart>& parts) {
  Shape shape = shard_.spec.shape;
  shape.set(0, split_.chunk());
  reduced_ = runtime.device.allocate({shape, reduce_dtype_}, shard_.grad_holder);
  parts.push_back({.from = (gradient_copy_ ? gradient_copy_ : unsharded_.grad).view().data,
                   .to = reduced_.view().data,
                   .offsets_elems = grad_offsets_,
                   .dtype = reduce_dtype_,
                   .content = Content::kPayload});
}

ReducePart ShardedParameter::reduced() const {
  return {
      .data = reduced_.view().data, .elems = reduced_.numel(), .dtype = reduced_.dtype(), .content = Content::kPayload};
}

void ShardedParameter::end_reduce(Runtime& runtime, int ranks) {
  unsharded_.grad = {};
  gradient_copy_ = {};
  if (ranks > 1) scale_in_place(runtime.device, reduced_, 1.0f / static_cast<float>(ranks));
  if (reduce_dtype_ != shard_.spec.dtype)
    reduced_ = cast(runtime.device, reduced_, shard_.spec.dtype, shard_.grad_holder);
  shard_.accumulate(runtime.device, {reduced_.buffer(), shard_.spec});
  reduced_ = {};
}

}  // namespace fp8lab
