#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "core/check.h"
#include "ops/elementwise.h"
#include "optim/launch_tables.h"
#include "optim/optim_hooks.h"

namespace fp8lab {
namespace {

/// Adam with the defects of the fixes that `behaviors` revert.
class RevertedAdam final : public AdamHooks {
 public:
  RevertedAdam(const Behaviors& behaviors, const AdamOptions& options) : behaviors_(behaviors), options_(options) {}

  // shard_optimizer_state: a sharded parameter returns its unsharded shape. Kernels use the first elements of the
  // state; a copy of a sharded master weight into such state is refused. Nothing is copied into remainders.
  Shape state_shape(const Parameter& parameter) const override {
    if (parameter.local == nullptr || behaviors_.shard_optimizer_state) return AdamHooks::state_shape(parameter);
    if (options_.master != MasterWeights::kNone && !keeps_remainder(options_, *parameter.local))
      fail(fmt::format(
          "Adam: the master weight of '{}' is sharded, and its state is made at the unsharded shape, because "
          "shard_optimizer_state is reverted; keep that fix, or train without master weights",
          parameter.name));
    return parameter.spec.shape;
  }

  // A quantized parameter that Adam does not recognise counts as high precision, and is described by storage that it
  // does not have.
  // unwrap_shards_in_adam: a wrapper reports that it is not quantized, whatever it wraps (TransformerEngine#2370,
  // #2698). cast_blocks_in_adam: tensors with one scale are the only quantized type that Adam recognises (#2753).
  bool is_quantized(const Parameter& parameter) const override {
    if (!AdamHooks::is_quantized(parameter)) return false;
    if (!behaviors_.unwrap_shards_in_adam && parameter.local != nullptr) return false;
    return behaviors_.cast_blocks_in_adam || local_shard(parameter).quantizer->format.per_tensor();
  }

  // count_empty_steps: a group that is empty on this rank is skipped before its step is counted.
  void count_step(std::span<Parameter* const> parameters, Adam::GroupSteps& steps) const override {
    if (behaviors_.count_empty_steps) return AdamHooks::count_step(parameters, steps);
    std::array<bool, std::tuple_size_v<Adam::GroupSteps>> has_elements{};
    for (const Parameter* parameter : parameters)
      has_elements[Adam::group_of(*parameter)] |= shape_of(local_shard(*parameter)).numel() > 0;
    for (std::size_t group = 0; group < steps.size(); ++group)
      if (has_elements[group]) ++steps[group];
  }

  // skip_empty_tensors: the list has tensors without elements.
  // count_in_64_bits: the kernel of norms also has 32 bits for the offset of a block, which is negative beyond 2^31
  // elements.
  void choose_for_norm(std::vector<MatrixView>& gradients) override {
    constexpr std::int64_t kReached = std::int64_t{1} << 31;
    if (!behaviors_.count_in_64_bits)
      for (const MatrixView& gradient : gradients)
        if (gradient.numel() > kReached)
          fail(fmt::format(
              "Adam: the norm of a gradient with {} elements is an illegal memory access, because count_in_64_bits is "
              "reverted; keep that fix, or train without clip_norm",
              gradient.numel()));
    if (behaviors_.skip_empty_tensors) return AdamHooks::choose_for_norm(gradients);
    elems_.clear();
    for (const MatrixView& gradient : gradients) elems_.push_back(gradient.numel());
    gradients.resize(launched_tensors(elems_, ListDepth::kOne));
  }

  void before_update(Runtime& runtime, const AdamUpdate& update) override {
    if (!behaviors_.fuse_moment_casts && options_.exp_avg == DType::kBF16 && options_.exp_avg_sq == DType::kBF16)
      widen_moments(runtime, update);
    choose_launched(update);
    std::size_t rewrite = 0;
    for (std::size_t i = 0; i < update.parameters.size(); ++i) {
      const Parameter& shard = local_shard(*update.parameters[i]);
      if (is_quantized(*update.parameters[i]))
        update.rewrites[rewrite++].fused_cast = shard.grad && (is_launched(i) || cast_by_kernel(shard));
    }
    if (!behaviors_.measure_scale_in_adam) keep_scales(runtime, update.rewrites);
  }

  bool is_launched(std::size_t index) const override { return launched_[index] != 0; }

  void after_update(Runtime& runtime, const AdamUpdate& /*update*/) override {
    kept_scales_ = {};
    for (const WidenedMoment& moment : widened_) {
      copy_into(runtime.device, moment.values, moment.stored);
      *moment.described = moment.stored_view;
    }
    widened_.clear();
  }

 private:
  /// A moment in f32 during a step.
  struct WidenedMoment {
    Tensor values;
    Tensor stored;
    MatrixView* described;
    MatrixView stored_view;
  };

  // fuse_moment_casts: kernels read and write moments only in f32, so all moments are expanded before one
  // launch and rounded after it.
  void widen_moments(Runtime& runtime, const AdamUpdate& update) {
    widened_.clear();
    for (std::size_t i = 0; i < update.parameters.size(); ++i) {
      if (!local_shard(*update.parameters[i]).grad) continue;
      for (const auto& [stored, described] :
           {std::pair(&update.states[i].exp_avg, &update.described[i].exp_avg),
            std::pair(&update.states[i].exp_avg_sq, &update.described[i].exp_avg_sq)}) {
        widened_.push_back({.values = cast(runtime.device, *stored, DType::kF32, runtime.workspace("Adam")),
                            .stored = *stored,
                            .described = described,
                            .stored_view = *described});
        MatrixView view = widened_.back().values.view();
        view.rows = described->rows;
        view.cols = described->cols;
        *described = view;
      }
    }
  }

  /// True if Adam's kernel casts the weight, with a scale that is known beforehand; others are cast after it.
  bool cast_by_kernel(const Parameter& shard) const {
    const AmaxSource source = shard.quantizer->format.amax_source;
    return source == AmaxSource::kHistory || (source == AmaxSource::kTensor && !behaviors_.measure_scale_in_adam);
  }

  // Finds out which parameters the launcher launches Adam's kernel for. It has a list for each group and form of
  // parameters: weights that the kernel casts to eight bits, parameters in 16 bits, and values in f32, which include
  // the masters of other FP8 weights. divide_adam_lists: one call of the launcher gets an entire list.
  // skip_empty_tensors: lists have tensors without elements. These count as launched: only their scales are written.
  // count_in_64_bits: a table has the low 32 bits of a size, with a sign, so the kernel leaves out elements.
  void choose_launched(const AdamUpdate& update) {
    enum class Form { kEightBits, k16Bits, kF32 };
    const auto form_of = [&](const Parameter& parameter) {
      const Parameter& shard = local_shard(parameter);
      if (is_quantized(parameter)) return cast_by_kernel(shard) ? Form::kEightBits : Form::kF32;
      return shard.spec.dtype == DType::kF32 ? Form::kF32 : Form::k16Bits;
    };
    launched_.assign(update.parameters.size(), 1);
    for (std::size_t group = 0; group < std::tuple_size_v<Adam::GroupSteps>; ++group)
      for (const Form form : {Form::kEightBits, Form::k16Bits, Form::kF32}) {
        elems_.clear();
        of_list_.clear();
        for (std::size_t i = 0; i < update.parameters.size(); ++i) {
          const Parameter& parameter = *update.parameters[i];
          const Tensor& grad = local_shard(parameter).grad;
          if (!grad || Adam::group_of(parameter) != group || form_of(parameter) != form) continue;
          elems_.push_back(grad.numel());
          of_list_.push_back(i);
        }
        const bool masters =
            form == Form::kEightBits || (form == Form::k16Bits && options_.master != MasterWeights::kNone);
        // Gradients, parameters, two moments and masters; of eight bits also scales, amaxes and inverse scales.
        const std::size_t lists = form == Form::kEightBits ? 8 : masters ? 5 : 4;
        if (!behaviors_.divide_adam_lists) check_handles(elems_.size(), lists);
        if (!behaviors_.skip_empty_tensors) {
          const std::size_t launched = launched_tensors(elems_, masters ? ListDepth::kFive : ListDepth::kFour);
          for (std::size_t i = launched; i < elems_.size(); ++i) launched_[of_list_[i]] = elems_[i] == 0;
        }
        if (!behaviors_.count_in_64_bits)
          for (std::size_t i = 0; i < elems_.size(); ++i)
            if (!fits_32_bits(elems_[i])) launched_[of_list_[i]] = 0;
      }
  }

  // measure_scale_in_adam: the kernel casts all weights with one scale alike, under the scale in the quantizer. Current
  // scaling leaves there the scale of its last cast, so the weights keep the scale of their initial values; nothing
  // reads the amax that the kernel measures (TransformerEngine#2816). Here that scale is the reciprocal of scale_inv,
  // which may differ from it in the last bit; scale_inv itself stays the same, bit for bit.
  void keep_scales(Runtime& runtime, std::span<Rewrite> rewrites) {
    std::vector<Rewrite*> kept;
    for (Rewrite& rewrite : rewrites)
      if (rewrite.quantizer->format.amax_source == AmaxSource::kTensor) kept.push_back(&rewrite);
    if (kept.empty()) return;
    Device& device = runtime.device;
    const auto count = static_cast<std::int64_t>(kept.size());
    kept_scales_ = device.allocate({Shape{count + 1, 1}, DType::kF32}, runtime.workspace("Adam"));
    const Tensor unit = kept_scales_.row_range(count, 1);
    fill(device, kept_scales_, 0.0f);
    fill(device, unit, 1.0f);
    std::vector<ListOpTensor> quotients;
    for (std::int64_t i = 0; i < count; ++i) {
      Rewrite& rewrite = *kept[static_cast<std::size_t>(i)];
      const Tensor scale = kept_scales_.row_range(i, 1);
      const QuantizedTensor& weight = *rewrite.to;
      const Tensor& scale_inv = (weight.rowwise() ? weight.rowwise() : weight.columnwise()).scale_inv;
      quotients.push_back({.out = scale.view(), .a = unit.view(), .b = scale_inv.view()});
      rewrite.scale = scale.data<const float>();
    }
    device.launch(&KernelTable::list_op, ListOpArgs{.op = ListOp::kAddcdiv, .tensors = quotients, .scalar = 1.0f});
  }

  Behaviors behaviors_;
  AdamOptions options_;
  Tensor kept_scales_;  ///< the scales of the last casts, during a step
  std::vector<WidenedMoment> widened_;
  std::vector<char> launched_;        ///< by parameter: 0 if the launcher leaves its elements out
  std::vector<std::int64_t> elems_;   ///< elements of the tensors of one of the launcher's lists
  std::vector<std::size_t> of_list_;  ///< their parameters
};

/// List operations and saved state with the defects of the fixes that `behaviors` revert.
class RevertedOptim final : public OptimHooks {
 public:
  explicit RevertedOptim(const Behaviors& behaviors) : behaviors_(behaviors) {}

  // write_back_list_updates: the results stay in temporaries.
  void before_write_back(std::vector<Rewrite>& rewrites) override {
    if (!behaviors_.write_back_list_updates) rewrites.clear();
  }

  void after_listing(const TrainingState& state, std::vector<SavedItem>& items) override {
    for (std::size_t i = 0; i < state.parameters.size(); ++i) {
      const Parameter& parameter = *state.parameters[i];
      if (!behaviors_.keep_type_in_moves && local_shard(parameter).in_eight_bits())
        dequantize_item(parameter, i, items);
      if (!behaviors_.shard_saved_state && parameter.local != nullptr) replicate_optimizer(parameter, i, items);
    }
  }

 private:
  // keep_type_in_moves: a quantized tensor on its way to the host is dequantized, and a file holds what arrives.
  static void dequantize_item(const Parameter& parameter, std::size_t index, std::vector<SavedItem>& items) {
    std::erase_if(items, [&](const SavedItem& item) {
      return item.parameter == index &&
             (item.kind == SavedItem::Kind::kRowwise || item.kind == SavedItem::Kind::kTransposed);
    });
    items.insert(std::ranges::lower_bound(items, index, {}, &SavedItem::parameter),
                 {.name = fmt::format("{}: value", parameter.name),
                  .kind = SavedItem::Kind::kDequantized,
                  .parameter = index,
                  .tensor = {}});
  }

  // shard_saved_state: the state of a sharded parameter lacks the description that the parameter has, of the rows that
  // it covers of which tensor.
  static void replicate_optimizer(const Parameter& parameter, std::size_t index, std::vector<SavedItem>& items) {
    const std::string value = fmt::format("{}: value", parameter.name);
    for (SavedItem& item : items)
      item.replicated |= item.parameter == index && item.name != value && item.kind != SavedItem::Kind::kRowwise &&
                         item.kind != SavedItem::Kind::kTransposed;
  }

  Behaviors behaviors_;
};

}  // namespace

std::unique_ptr<AdamHooks> make_adam_hooks(const Behaviors& behaviors, const AdamOptions& options) {
  if (behaviors == Behaviors{}) return std::make_unique<AdamHooks>();
  return std::make_unique<RevertedAdam>(behaviors, options);
}

std::unique_ptr<OptimHooks> make_optim_hooks(const Behaviors& behaviors) {
  if (behaviors == Behaviors{}) return std::make_unique<OptimHooks>();
  return std::make_unique<RevertedOptim>(behaviors);
}

}  // namespace fp8lab
