#include <optional>
#include <utility>

#include "fsdp/sharding_hooks.h"
#include "ops/quantized_storage.h"

namespace fp8lab {
namespace {

/// Sharding with the defects of the fixes that `behaviors` revert.
class RevertedSharding final : public ShardingHooks {
 public:
  explicit RevertedSharding(const Behaviors& behaviors) : behaviors_(behaviors) {}

  // choose_usage_by_pass: every gather provides both orientations. nearest_sharding_state: a gather hook finds the
  // first enclosing module from the root down, which is the root.
  bool gathers_by_pass(const std::vector<ShardingState>& states, std::string_view module) const override {
    if (!behaviors_.choose_usage_by_pass) return false;
    return behaviors_.nearest_sharding_state ? ShardingHooks::gathers_by_pass(states, module)
                                             : states.front().reshard_after_forward;
  }

  // keep_fp8_init_metadata: registering the shard in place of the parameter silently loses what makes it FP8.
  // split_in_eight_bits: shards, and the master weights made from them, start from dequantized values.
  std::string refusal(Parameter& unsharded, const RowSplit& split) const override {
    const bool deferred = is_deferred(unsharded);
    if (deferred && !behaviors_.keep_fp8_init_metadata) {
      unsharded.quantizer.reset();
      return {};
    }
    std::string refusal = ShardingHooks::refusal(unsharded, split);
    if (!refusal.empty() || deferred || splits_in_eight_bits(behaviors_, unsharded.quantizer->format)) return refusal;
    unsharded.initial.reset();
    return "a split of this quantized tensor dequantizes it";
  }

  // share_amax_over_shards: every rank measures its own shard.
  ProcessGroup* amax_group(ProcessGroup& shards) const override {
    return behaviors_.share_amax_over_shards ? &shards : nullptr;
  }

  void after_shard(Runtime& runtime, const Parameter& unsharded, const RowSplit& split, GatherLayout& layout) override {
    const Parameter& shard = *unsharded.local;
    if (!shard.in_eight_bits()) return;
    const QuantFormat& format = shard.quantizer->format;
    if (!behaviors_.flatten_without_copy && !format.per_tensor()) flatten(runtime, shard, split);
    // gather_eight_bits: a gather that does not know quantized tensors sends dequantized values.
    if (!behaviors_.gather_eight_bits) {
      layout = {.values = gathered_values(unsharded.spec, split)};
      return;
    }
    if (!behaviors_.strip_scale_padding) keep_scale_padding(layout, format, split);
    if (!behaviors_.gather_blocks_row_wise && !format.per_tensor() && format.columnwise_is_transpose() &&
        shard.quantizer->orientations.columnwise)
      untransposed_ = untransposed_layout(*layout.rowwise, format, unsharded.spec.shape, split);
  }

  Tensor values_to_send(Runtime& runtime, const Parameter& shard, std::int64_t bytes) override {
    if (!shard.in_eight_bits()) return shard.value;
    const HolderId workspace = runtime.workspace(shard.name);
    return padded(runtime.device,
                  dequantize(runtime.device, shard.quantized.rowwise_operand(), shard.spec.dtype, workspace), bytes,
                  workspace);
  }

  // reuse_quantizer_at_gather: the hook passes on a copy of the quantizer.
  // gather_blocks_row_wise: column-wise blocks travel too. They are stored transposed, so that a shard's rows are not
  // contiguous, and they are copied into the order of rows and back.
  void begin_gather(Runtime& runtime, const Parameter& shard, GatherParts& parts) override {
    if (!behaviors_.reuse_quantizer_at_gather) quantizer_ = copy_quantizer(runtime, *shard.quantizer);
    if (!untransposed_) return;
    const HolderId workspace = runtime.workspace(shard.name);
    sent_ = untransposed_columnwise(runtime.device, shard.quantized, workspace);
    for (const auto& [array, sent] :
         {std::pair(&untransposed_->data, &sent_.data), std::pair(&untransposed_->scales, &sent_.scale_inv)})
      *sent = padded(runtime.device, *sent, array->bytes_of_rank(), workspace);
    parts.add(*untransposed_, sent_, gathered_);
  }

  void end_gather(Parameter& unsharded, Orientations& usage) override {
    sent_ = {};
    if (quantizer_) unsharded.quantizer = std::move(quantizer_);
    if (untransposed_) {
      usage = {.rowwise = true, .columnwise = true};
      return;
    }
    // before_free() has left the transpose of the values gathered last. A pass that reads only rows drops it, and a
    // transpose of blocks is dropped and made again. A per-tensor transpose is kept. If it is from the previous
    // step, so are the values that products read.
    const QuantFormat& format = unsharded.quantized.format();
    if (format.columnwise_is_transpose() && !(usage.columnwise && format.per_tensor())) unsharded.drop_columnwise();
  }

  void make_columnwise(Runtime& runtime, Parameter& unsharded) override {
    QuantizedTensor& quantized = unsharded.quantized;
    if (untransposed_) {  // in backward this replaces forward's copy, which lives until then
      quantized.columnwise() =
          columnwise_from_untransposed(runtime.device, quantized.format(), gathered_, unsharded.holder);
      unsharded.made_columnwise = true;
    } else if (!quantized.columnwise()) {
      ShardingHooks::make_columnwise(runtime, unsharded);
    }
  }

  // clear_gathered_transposes, and fixes without which forward makes transposes: FSDP2 frees only the outputs of
  // the all-gather, so copies that were made of them stay.
  void before_free(Parameter& unsharded) override {
    if (unsharded.made_columnwise) made_ = std::move(unsharded.quantized.columnwise());
  }
  void after_reshard(Parameter& unsharded) override {
    gathered_ = {};
    if (!made_) return;
    unsharded.quantized.columnwise() = std::exchange(made_, {});
    unsharded.made_columnwise = true;
  }

 private:
  // flatten_without_copy: FSDP2 keeps a view of every padded shard as one row, also of those that gather by hooks of
  // their own, which do not read it. Blocks lie along the last dimension and cannot be viewed so: upstream warns that
  // the view is "not going to be used anywhere" and returns dequantized values, a second copy of the shard for all
  // of training. It is made where FSDP2 makes it for initialised models; deferred ones get it before the first forward.
  void flatten(Runtime& runtime, const Parameter& shard, const RowSplit& split) {
    const TensorSpec& spec = shard.spec;
    const HolderId holder = runtime.device.holder(HolderKind::kParameter, shard.name, "flattened");
    const std::int64_t bytes =
        split.chunk() * row_elems(spec.shape) * static_cast<std::int64_t>(size_bytes(spec.dtype));
    flattened_ =
        padded(runtime.device, dequantize_matrix(runtime.device, shard.quantized, spec.dtype, holder), bytes, holder);
  }

  // strip_scale_padding: each rank's array of scales travels with its padding. The gathered array is then longer than
  // the unsharded parameter's own, and rows of later ranks land at rows that belong to others, unless no piece needs
  // padding.
  static void keep_scale_padding(GatherLayout& layout, const QuantFormat& format, const RowSplit& split) {
    const auto keep = [&](std::optional<GatheredOrientation>& orientation, const auto& layout_of) {
      if (!orientation || !orientation->scales_travel()) return;
      GatheredArray& scales = orientation->scales;
      const Shape& unsharded = scales.unsharded.shape;
      const std::int64_t rows =
          layout_of(format, split.chunk(), orientation->data.unsharded.shape.cols()).scales.spec.shape.rows();
      const std::int64_t row_bytes = unsharded.cols() * static_cast<std::int64_t>(size_bytes(scales.unsharded.dtype));
      for (int rank = 0; rank <= split.ranks(); ++rank)
        scales.offsets_bytes[static_cast<std::size_t>(rank)] = rank * rows * row_bytes;
      scales.filled_rows = split.ranks() * rows;
      scales.unsharded.shape = Shape{scales.filled_rows, unsharded.cols()};
    };
    keep(layout.rowwise, rowwise_layout);
    keep(layout.columnwise, columnwise_layout);
  }

  /// The column-wise orientation of square blocks as untransposed_columnwise() copies it.
  static GatheredOrientation untransposed_layout(const GatheredOrientation& rowwise, const QuantFormat& format,
                                                 const Shape& shape, const RowSplit& split) {
    const TensorSpec scales = {
        Shape{ceil_div(shape.rows(), format.block_rows), ceil_div(shape.cols(), format.block_cols)},
        format.scale_dtype()};
    return {
        .data = rowwise.data,
        .scales = {.unsharded = scales,
                   .offsets_bytes = split.padded_offsets(
                       scales.shape.cols() * static_cast<std::int64_t>(size_bytes(scales.dtype)), format.block_rows),
                   .filled_rows = scales.shape.rows(),
                   .content = Content::kScales}};
  }

  Behaviors behaviors_;
  Tensor flattened_;                                 ///< lives as long as the shard
  std::optional<GatheredOrientation> untransposed_;  ///< column-wise blocks, gathered untransposed
  std::unique_ptr<Quantizer> quantizer_;             ///< lives during a gather
  QuantizedOrientation sent_;                        ///< lives during a gather of `untransposed_`
  QuantizedOrientation gathered_;                    ///< lives as long as the unsharded row-wise orientation
  QuantizedOrientation made_;                        ///< lives while the unsharded parameter is freed
};

}  // namespace

std::unique_ptr<ShardingHooks> make_sharding_hooks(const Behaviors& behaviors) {
  if (behaviors == Behaviors{}) return std::make_unique<ShardingHooks>();
  return std::make_unique<RevertedSharding>(behaviors);
}

}  // namespace fp8lab
