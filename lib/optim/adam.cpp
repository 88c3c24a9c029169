#include "optim/adam.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/moment_scale.h"
#include "fsdp/row_split.h"
#include "nn/build.h"
#include "ops/elementwise.h"
#include "optim/launch_tables.h"
#include "optim/moment_rule.h"
#include "optim/shards.h"

namespace fp8lab {
namespace {

void check_moment(std::string_view which, DType dtype) {
  if (dtype == DType::kF32 || dtype == DType::kBF16 || moment_limit(dtype) > 0.0f) return;
  fail(fmt::format("Adam: {} in {}; moments are f32, bf16, f16 or e4m3", which, name(dtype)));
}

/// Zeros of any type. The bytes of i16 are filled as bf16.
Tensor zeros(Device& device, const TensorSpec& spec, HolderId holder) {
  const Tensor tensor = device.allocate(spec, holder);
  MatrixView bits = tensor.view();
  if (bits.dtype == DType::kI16) bits.dtype = DType::kBF16;
  device.launch(&KernelTable::fill, FillArgs{.out = bits, .value = 0.0f});
  return tensor;
}

Tensor one(Device& device, HolderId holder) {
  const Tensor tensor = device.allocate({Shape{1}, DType::kF32}, holder);
  fill(device, tensor, 1.0f);
  return tensor;
}

/// A moment as kernels see it: as many elements as the local shard has, the first ones of a larger state.
MatrixView moment_view(const Tensor& moment, const Shape& shape) {
  MatrixView view = moment.view();
  view.rows = shape.rows();
  view.cols = shape.cols();
  return view;
}

/// A high-precision parameter as kernels see it: elements of its nominal type at the address of its own storage.
MatrixView nominal_view(const Parameter& parameter) {
  return {.data = parameter.value.view().data,
          .dtype = parameter.value ? parameter.value.dtype() : parameter.spec.dtype,
          .rows = shape_of(parameter).rows(),
          .cols = shape_of(parameter).cols(),
          .row_stride = shape_of(parameter).cols()};
}

}  // namespace

Adam::Adam(std::vector<Parameter*> parameters, const AdamOptions& options)
    : parameters_(std::move(parameters)), options_(options) {
  check_moment("the first moment", options.exp_avg);
  check_moment("the second moment", options.exp_avg_sq);
  for (const Parameter* parameter : parameters_) {
    if (options.master != MasterWeights::kNone || !local_shard(*parameter).in_eight_bits()) continue;
    fail(fmt::format(
        "Adam: '{}' lives in eight bits and has no master weight. Cast back after every step, it loses each "
        "update below half a unit of its 3 mantissa bits, that is nearly all of them; give "
        "AdamOptions::master kF32",
        parameter->name));
  }
  tensors_.reserve(parameters_.size());
  rewrites_.reserve(parameters_.size());
  gradients_.reserve(parameters_.size());
  launched_.reserve(parameters_.size());
  elems_.reserve(parameters_.size());
  of_list_.reserve(parameters_.size());
}

bool Adam::keeps_remainder(const Parameter& shard) const {
  return options_.master == MasterWeights::kRemainder && !shard.in_eight_bits() && shard.value.dtype() == DType::kBF16;
}

Tensor Adam::new_master(Runtime& runtime, const Parameter& shard, const Shape& state_shape) const {
  Device& device = runtime.device;
  const HolderId holder = device.holder(HolderKind::kOptimizerState, shard.name, "master");
  if (shard.in_eight_bits()) {
    // `initial` has the stream of the unsharded parameter, whose name the shard need not have.
    if (shard.initial)
      return cast(device, initial_values(runtime, shard, runtime.workspace(shard.name)), DType::kF32, holder);
    return dequantize(device, shard.quantized.rowwise_operand(), DType::kF32, holder).reshaped(shard.spec.shape);
  }
  const DType dtype = shard.value.dtype();
  if (options_.master == MasterWeights::kNone || dtype == DType::kF32) return {};
  if (keeps_remainder(shard)) return zeros(device, {state_shape, DType::kI16}, holder);
  return cast(device, shard.value, DType::kF32, holder);
}

AdamState Adam::new_state(Runtime& runtime, const Parameter& parameter) const {
  Device& device = runtime.device;
  const Parameter& shard = local_shard(parameter);
  const auto holder = [&](std::string_view what) {
    return device.holder(HolderKind::kOptimizerState, shard.name, what);
  };
  Shape shape = shape_of(shard);
  if (parameter.local != nullptr && !runtime.behaviors.shard_optimizer_state) {
    // Reverted behaviour: a sharded parameter answers with its unsharded shape. Kernels use the first elements of the
    // state; a copy of a sharded master weight into such state is refused. Nothing is copied into remainders.
    if (options_.master != MasterWeights::kNone && !keeps_remainder(shard))
      fail(fmt::format(
          "Adam: the master weight of '{}' is sharded, and its state is made at the unsharded shape, because "
          "shard_optimizer_state is reverted; keep that fix, or train without master weights",
          parameter.name));
    shape = parameter.spec.shape;
  }
  AdamState state;
  state.exp_avg = zeros(device, {shape, options_.exp_avg}, holder("exp_avg"));
  state.exp_avg_sq = zeros(device, {shape, options_.exp_avg_sq}, holder("exp_avg_sq"));
  if (moment_limit(options_.exp_avg) > 0.0f) state.exp_avg_scale = one(device, holder("exp_avg"));
  if (moment_limit(options_.exp_avg_sq) > 0.0f) state.exp_avg_sq_scale = one(device, holder("exp_avg_sq"));
  state.master = new_master(runtime, shard, shape);
  return state;
}

void Adam::make_state(Runtime& runtime) {
  if (states_.size() == parameters_.size()) return;
  states_.clear();
  states_.reserve(parameters_.size());
  for (const Parameter* parameter : parameters_) states_.push_back(new_state(runtime, *parameter));
  described_.clear();
  described_.reserve(states_.size());
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const AdamState& state = states_[i];
    const Parameter& shard = local_shard(*parameters_[i]);
    const Shape& shape = shape_of(shard);
    described_.push_back({.param = {},
                          .grad = {},
                          .exp_avg = moment_view(state.exp_avg, shape),
                          .exp_avg_sq = moment_view(state.exp_avg_sq, shape),
                          .master = state.master ? moment_view(state.master, shape) : MatrixView{},
                          .exp_avg_scale = state.exp_avg_scale.data<float>(),
                          .exp_avg_sq_scale = state.exp_avg_sq_scale.data<float>(),
                          .stream = stream_of("rounding of " + parameters_[i]->name),
                          .first_element = shard.first_row * row_elems(parameters_[i]->spec.shape)});
  }
}

// Reverted behaviour: kernels know moments in f32 alone, so those of all parameters are expanded before one launch
// and rounded after it.
void Adam::widen_moments(Runtime& runtime) {
  widened_.clear();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!local_shard(*parameters_[i]).grad) continue;
    const auto widened = [&](const Tensor& moment, MatrixView& described) {
      widened_.push_back(cast(runtime.device, moment, DType::kF32, runtime.workspace("Adam")));
      described = moment_view(widened_.back(), shape_of(local_shard(*parameters_[i])));
    };
    widened(states_[i].exp_avg, described_[i].exp_avg);
    widened(states_[i].exp_avg_sq, described_[i].exp_avg_sq);
  }
}

void Adam::narrow_moments(Runtime& runtime) {
  std::size_t next = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!local_shard(*parameters_[i]).grad) continue;
    const auto narrowed = [&](const Tensor& moment, MatrixView& described) {
      copy_into(runtime.device, widened_[next++], moment);
      described = moment_view(moment, shape_of(local_shard(*parameters_[i])));
    };
    narrowed(states_[i].exp_avg, described_[i].exp_avg);
    narrowed(states_[i].exp_avg_sq, described_[i].exp_avg_sq);
  }
  widened_.clear();
}

void Adam::clip(Runtime& runtime) {
  Device& device = runtime.device;
  if (!grad_norm_) {
    const HolderId holder = device.holder(HolderKind::kOptimizerState, {}, "gradient norm");
    for (Tensor* scalar : {&square_sum_, &grad_norm_, &clip_coefficient_})
      *scalar = device.allocate({Shape{1}, DType::kF32}, holder);
  }
  ProcessGroup* group = options_.norm_group;
  gradients_.clear();
  elems_.clear();
  for (const Parameter* parameter : parameters_) {
    const Parameter& shard = local_shard(*parameter);
    // Reverted behaviour: the list has tensors without elements, as in choose_launched().
    if (!shard.grad || (runtime.behaviors.skip_empty_tensors && shard.grad.numel() == 0)) continue;
    if (group != nullptr && group->rank() != 0 && parameter->local == nullptr) continue;
    gradients_.push_back(shard.grad.view());
    elems_.push_back(shard.grad.numel());
  }
  gradients_.resize(launched_tensors(elems_, ListDepth::kOne));
  device.launch(&KernelTable::square_sum, SquareSumArgs{.tensors = gradients_, .sum = square_sum_.data<float>()});
  if (group != nullptr) {
    const ReducePart part{.data = square_sum_.view().data, .elems = 1};
    group->all_reduce(ReduceOp::kSum, {&part, 1}, "gradient norm");
  }
  device.launch(&KernelTable::clip_coefficient,
                ClipCoefficientArgs{.square_sum = square_sum_.data<const float>(),
                                    .max_norm = static_cast<float>(options_.max_grad_norm),
                                    .norm = grad_norm_.data<float>(),
                                    .coefficient = clip_coefficient_.data<float>()});
}

namespace {

// A quantized parameter that Adam does not recognise counts as high precision, and is described by storage that it does
// not have.
bool is_quantized(const Parameter& parameter, const Behaviors& behaviors) {
  const Parameter& shard = local_shard(parameter);
  if (!shard.in_eight_bits()) return false;
  // Reverted behaviour: a wrapper answers that it is not quantized, whatever it wraps (TransformerEngine#2370, #2698).
  if (!behaviors.unwrap_shards_in_adam && parameter.local != nullptr) return false;
  // Reverted behaviour: tensors with one scale are the only quantized type that Adam knows (TransformerEngine#2753).
  return behaviors.cast_blocks_in_adam || shard.quantizer->format.per_tensor();
}

/// The group of a parameter: matrices, or vectors.
std::size_t group_of(const Parameter& parameter) { return is_matrix(parameter) ? 0 : 1; }

/// True if Adam's kernel casts the weight, with a scale that is known beforehand; others are cast after it.
bool cast_by_kernel(const Parameter& shard, const Behaviors& behaviors) {
  const AmaxSource source = shard.quantizer->format.amax_source;
  return source == AmaxSource::kHistory || (source == AmaxSource::kTensor && !behaviors.measure_scale_in_adam);
}

}  // namespace

std::int64_t Adam::steps() const { return std::ranges::max(steps_); }

void Adam::count_step(bool count_empty) {
  std::array<bool, std::tuple_size_v<GroupSteps>> has_elements{};
  for (const Parameter* parameter : parameters_)
    has_elements[group_of(*parameter)] |= shape_of(local_shard(*parameter)).numel() > 0;
  // Reverted behaviour: a group that is empty on this rank is skipped before its step is counted.
  for (std::size_t group = 0; group < steps_.size(); ++group)
    if (count_empty || has_elements[group]) ++steps_[group];
}

/// Finds out which parameters the launcher launches Adam's kernel for. It has a list for each group and form of
/// parameters: weights that the kernel casts to eight bits, parameters in 16 bits, and values in f32, which include the
/// masters of other FP8 weights. Parameters without elements count as launched: only their scales are
/// written.
void Adam::choose_launched(const Behaviors& behaviors) {
  enum class Form { kEightBits, k16Bits, kF32 };
  const auto form_of = [&](const Parameter& parameter) {
    const Parameter& shard = local_shard(parameter);
    if (is_quantized(parameter, behaviors)) return cast_by_kernel(shard, behaviors) ? Form::kEightBits : Form::kF32;
    return shard.spec.dtype == DType::kF32 ? Form::kF32 : Form::k16Bits;
  };
  launched_.assign(parameters_.size(), 1);
  for (std::size_t group = 0; group < steps_.size(); ++group)
    for (const Form form : {Form::kEightBits, Form::k16Bits, Form::kF32}) {
      elems_.clear();
      of_list_.clear();
      for (std::size_t i = 0; i < parameters_.size(); ++i) {
        const Parameter& shard = local_shard(*parameters_[i]);
        if (!shard.grad || group_of(*parameters_[i]) != group || form_of(*parameters_[i]) != form) continue;
        // Reverted behaviour: the list has tensors without elements.
        if (behaviors.skip_empty_tensors && shard.grad.numel() == 0) continue;
        elems_.push_back(shard.grad.numel());
        of_list_.push_back(i);
      }
      const bool masters =
          form == Form::kEightBits || (form == Form::k16Bits && options_.master != MasterWeights::kNone);
      const std::size_t launched = launched_tensors(elems_, masters ? ListDepth::kFive : ListDepth::kFour);
      for (std::size_t i = launched; i < elems_.size(); ++i) launched_[of_list_[i]] = elems_[i] == 0;
    }
}

/// Lists the eight-bit weights, which are cast anew in every step.
void Adam::list_rewrites(const Behaviors& behaviors) {
  rewrites_.clear();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!is_quantized(*parameters_[i], behaviors)) continue;
    Parameter& shard = local_shard(*parameters_[i]);
    shard.initial.reset();
    rewrites_.push_back({.value = states_[i].master,
                         .to = &shard.quantized,
                         .quantizer = shard.quantizer.get(),
                         .nominal = shard.spec.dtype,
                         .fused_cast = shard.grad && (launched_[i] || cast_by_kernel(shard, behaviors))});
  }
}

// Reverted behaviour: the kernel casts all weights with one scale alike, under the scale in the quantizer. Current
// scaling leaves there the scale of its last cast, so the weights keep the scale of their initial values; the amax that
// the kernel measures is read by nobody (TransformerEngine#2816). Here that scale is the reciprocal of scale_inv, which
// may differ from it in the last bit; scale_inv itself stays the same, bit for bit.
void Adam::keep_scales(Runtime& runtime) {
  std::vector<Rewrite*> kept;
  for (Rewrite& rewrite : rewrites_)
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
    const Tensor scale = kept_scales_.row_range(i, 1);
    const QuantizedTensor& weight = *kept[i]->to;
    const Tensor& scale_inv = (weight.rowwise() ? weight.rowwise() : weight.columnwise()).scale_inv;
    quotients.push_back({.out = scale.view(), .a = unit.view(), .b = scale_inv.view()});
    kept[i]->scale = scale.data<const float>();
  }
  device.launch(&KernelTable::list_op, ListOpArgs{.op = ListOp::kAddcdiv, .tensors = quotients, .scalar = 1.0f});
}

/// Lists the parameters that the kernel updates: those with a gradient, of one group or of all.
void Adam::list_tensors(const Behaviors& behaviors, std::optional<std::size_t> group) {
  tensors_.clear();
  std::size_t next_rewrite = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& shard = local_shard(*parameters_[i]);
    const bool quantized = is_quantized(*parameters_[i], behaviors);
    const std::size_t rewrite = quantized ? next_rewrite++ : 0;
    if (!shard.grad || !launched_[i] || group.value_or(group_of(*parameters_[i])) != group_of(*parameters_[i]))
      continue;
    if (shard.grad.numel() != shape_of(shard).numel())
      fail(fmt::format(
          "Adam: the gradient of '{}' has shape {}, the parameter {}; gradients of shards are those of their rows",
          shard.name, to_string(shard.grad.shape()), to_string(shape_of(shard))));
    AdamTensor& tensor = tensors_.emplace_back(described_[i]);
    tensor.grad = shard.grad.view();
    if (quantized) {  // to the kernel, the master of a quantized parameter is an f32 parameter
      std::swap(tensor.param, tensor.master);
      tensor.target = rewriter_.target(rewrite);
    } else {
      tensor.param = nominal_view(shard);
    }
  }
}

void Adam::step(Runtime& runtime) {
  make_state(runtime);
  count_step(runtime.behaviors.count_empty_steps);
  const bool widens =
      !runtime.behaviors.fuse_moment_casts && options_.exp_avg == DType::kBF16 && options_.exp_avg_sq == DType::kBF16;
  if (options_.max_grad_norm > 0.0) clip(runtime);
  if (widens) widen_moments(runtime);
  choose_launched(runtime.behaviors);
  list_rewrites(runtime.behaviors);
  if (!runtime.behaviors.measure_scale_in_adam) keep_scales(runtime);
  rewriter_.begin(runtime.device, rewrites_);
  const std::array<double, 2> decay{options_.weight_decay, options_.decay_only_matrices ? 0.0 : options_.weight_decay};
  // Groups that have counted the same steps and decay alike share a launch.
  const bool together = steps_[0] == steps_[1] && decay[0] == decay[1];
  for (std::size_t group = 0; group < (together ? 1 : steps_.size()); ++group) {
    list_tensors(runtime.behaviors, together ? std::nullopt : std::optional(group));
    const MomentRule mean = moment_rule(options_.beta1, steps_[group]),
                     square = moment_rule(options_.beta2, steps_[group]);
    runtime.device.launch(&KernelTable::adam, AdamArgs{.tensors = tensors_,
                                                       .learning_rate = static_cast<float>(options_.learning_rate),
                                                       .exp_avg_weight = mean.weight,
                                                       .exp_avg_sq_weight = square.weight,
                                                       .epsilon = static_cast<float>(options_.epsilon),
                                                       .weight_decay = static_cast<float>(decay[group]),
                                                       .decoupled_decay = options_.decoupled_decay,
                                                       .bias_correction1 = static_cast<float>(mean.correction),
                                                       .bias_correction2 = static_cast<float>(square.correction),
                                                       .gradient_scale = clip_coefficient_.data<const float>(),
                                                       .stochastic = options_.stochastic_rounding,
                                                       .seed = options_.seed,
                                                       .step = static_cast<std::uint64_t>(steps_[group])});
  }
  rewriter_.finish(runtime.device);
  kept_scales_ = {};
  if (widens) narrow_moments(runtime);
}

}  // namespace fp8lab
