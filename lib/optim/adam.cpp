#include "optim/adam.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/moment_scale.h"
#include "fsdp/row_split.h"
#include "nn/build.h"
#include "ops/elementwise.h"
#include "optim/moment_rule.h"
#include "optim/optim_hooks.h"
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

/// A moment as kernels see it: the local shard's number of elements, the first ones of a larger state.
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

bool keeps_remainder(const AdamOptions& options, const Parameter& shard) {
  return options.master == MasterWeights::kRemainder && !shard.in_eight_bits() && shard.value.dtype() == DType::kBF16;
}

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
}

Adam::~Adam() = default;

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
  if (keeps_remainder(options_, shard)) return zeros(device, {state_shape, DType::kI16}, holder);
  return cast(device, shard.value, DType::kF32, holder);
}

AdamState Adam::new_state(Runtime& runtime, const Parameter& parameter) const {
  Device& device = runtime.device;
  const Parameter& shard = local_shard(parameter);
  const auto holder = [&](std::string_view what) {
    return device.holder(HolderKind::kOptimizerState, shard.name, what);
  };
  const Shape shape = hooks_->state_shape(parameter);
  AdamState state;
  state.exp_avg = zeros(device, {shape, options_.exp_avg}, holder("exp_avg"));
  state.exp_avg_sq = zeros(device, {shape, options_.exp_avg_sq}, holder("exp_avg_sq"));
  if (moment_limit(options_.exp_avg) > 0.0f) state.exp_avg_scale = one(device, holder("exp_avg"));
  if (moment_limit(options_.exp_avg_sq) > 0.0f) state.exp_avg_sq_scale = one(device, holder("exp_avg_sq"));
  state.master = new_master(runtime, shard, shape);
  return state;
}

void Adam::make_state(Runtime& runtime) {
  if (!hooks_) hooks_ = make_adam_hooks(runtime.behaviors, options_);
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

void Adam::clip(Runtime& runtime) {
  Device& device = runtime.device;
  if (!grad_norm_) {
    const HolderId holder = device.holder(HolderKind::kOptimizerState, {}, "gradient norm");
    for (Tensor* scalar : {&square_sum_, &grad_norm_, &clip_coefficient_})
      *scalar = device.allocate({Shape{1}, DType::kF32}, holder);
  }
  ProcessGroup* group = options_.norm_group;
  gradients_.clear();
  for (const Parameter* parameter : parameters_) {
    const Parameter& shard = local_shard(*parameter);
    if (!shard.grad) continue;
    if (group != nullptr && group->rank() != 0 && parameter->local == nullptr) continue;
    gradients_.push_back(shard.grad.view());
  }
  hooks_->choose_for_norm(gradients_);
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

std::size_t Adam::group_of(const Parameter& parameter) { return is_matrix(parameter) ? 0 : 1; }

std::int64_t Adam::steps() const { return std::ranges::max(steps_); }

/// Lists the eight-bit weights, which are cast again in every step.
void Adam::list_rewrites() {
  rewrites_.clear();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!hooks_->is_quantized(*parameters_[i])) continue;
    Parameter& shard = local_shard(*parameters_[i]);
    shard.initial.reset();
    rewrites_.push_back({.value = states_[i].master,
                         .to = &shard.quantized,
                         .quantizer = shard.quantizer.get(),
                         .nominal = shard.spec.dtype,
                         .fused_cast = static_cast<bool>(shard.grad)});
  }
}

/// Lists the parameters that the kernel updates: those with a gradient, of one group or of all.
void Adam::list_tensors(std::optional<std::size_t> group) {
  tensors_.clear();
  std::size_t next_rewrite = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& shard = local_shard(*parameters_[i]);
    const bool quantized = hooks_->is_quantized(*parameters_[i]);
    const std::size_t rewrite = quantized ? next_rewrite++ : 0;
    const std::size_t own_group = group_of(*parameters_[i]);
    if (!shard.grad || group.value_or(own_group) != own_group || !hooks_->is_launched(i)) continue;
    if (shard.grad.numel() != shape_of(shard).numel())
      fail(fmt::format(
          "Adam: the gradient of '{}' has shape {}, the parameter {}; the gradient of a shard has the shard's rows",
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
  hooks_->count_step(parameters_, steps_);
  if (options_.max_grad_norm > 0.0) clip(runtime);
  list_rewrites();
  const AdamUpdate update{.parameters = parameters_, .states = states_, .described = described_, .rewrites = rewrites_};
  hooks_->before_update(runtime, update);
  rewriter_.begin(runtime.device, rewrites_);
  const std::array<double, 2> decay{options_.weight_decay, options_.decay_only_matrices ? 0.0 : options_.weight_decay};
  // Groups that have counted the same steps and decay alike share a launch.
  const bool together = steps_[0] == steps_[1] && decay[0] == decay[1];
  for (std::size_t group = 0; group < (together ? 1 : steps_.size()); ++group) {
    list_tensors(together ? std::nullopt : std::optional(group));
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
  hooks_->after_update(runtime, update);
}

}  // namespace fp8lab
