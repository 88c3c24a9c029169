#include "optim/adam.h"

#include <fmt/core.h>

#include <utility>

#include "core/check.h"
#include "core/moment_scale.h"
#include "nn/build.h"
#include "ops/elementwise.h"
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
}

Tensor Adam::new_master(Runtime& runtime, const Parameter& shard) const {
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
  if (options_.master == MasterWeights::kRemainder && dtype == DType::kBF16)
    return zeros(device, {shard.value.shape(), DType::kI16}, holder);
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
    // state; a copy of a sharded master weight into such state is refused.
    if (options_.master != MasterWeights::kNone)
      fail(fmt::format("Adam: the master weight of '{}' is sharded and its state is not", parameter.name));
    shape = parameter.spec.shape;
  }
  AdamState state;
  state.exp_avg = zeros(device, {shape, options_.exp_avg}, holder("exp_avg"));
  state.exp_avg_sq = zeros(device, {shape, options_.exp_avg_sq}, holder("exp_avg_sq"));
  if (moment_limit(options_.exp_avg) > 0.0f) state.exp_avg_scale = one(device, holder("exp_avg"));
  if (moment_limit(options_.exp_avg_sq) > 0.0f) state.exp_avg_sq_scale = one(device, holder("exp_avg_sq"));
  state.master = new_master(runtime, shard);
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
    const Shape& shape = shape_of(local_shard(*parameters_[i]));
    described_.push_back({.param = {},
                          .grad = {},
                          .exp_avg = moment_view(state.exp_avg, shape),
                          .exp_avg_sq = moment_view(state.exp_avg_sq, shape),
                          .master = state.master ? state.master.view() : MatrixView{},
                          .exp_avg_scale = state.exp_avg_scale.data<float>(),
                          .exp_avg_sq_scale = state.exp_avg_sq_scale.data<float>()});
  }
}

// Reverted behaviour: kernels know moments in f32 alone, so those of all parameters are expanded before one launch
// and rounded after it.
void Adam::widen_moments(Runtime& runtime) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!local_shard(*parameters_[i]).grad) continue;
    const auto widened = [&](const Tensor& moment, MatrixView& described) {
      described = widened_.emplace_back(cast(runtime.device, moment, DType::kF32, runtime.workspace("Adam"))).view();
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
      described = moment.view();
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
  for (const Parameter* parameter : parameters_) {
    const Parameter& shard = local_shard(*parameter);
    if (!shard.grad) continue;
    if (group == nullptr || group->rank() == 0 || parameter->local != nullptr) gradients_.push_back(shard.grad.view());
  }
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

// A wrapper answers that it is not quantized, whatever it wraps (TransformerEngine#2370, #2698). With the fix reverted
// the shard then counts as high precision, and is described by storage that it does not have.
bool is_quantized(const Parameter& parameter, bool unwrap) {
  return local_shard(parameter).in_eight_bits() && (unwrap || parameter.local == nullptr);
}

}  // namespace

/// Lists the eight-bit weights, which are cast anew in every step.
void Adam::list_rewrites(bool unwrap) {
  rewrites_.clear();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!is_quantized(*parameters_[i], unwrap)) continue;
    Parameter& shard = local_shard(*parameters_[i]);
    shard.initial.reset();
    rewrites_.push_back({.value = states_[i].master,
                         .to = &shard.quantized,
                         .quantizer = shard.quantizer.get(),
                         .nominal = shard.spec.dtype,
                         .fused_cast = static_cast<bool>(shard.grad)});
  }
}

/// Lists the parameters that have a gradient, which the kernel updates.
void Adam::list_tensors(bool unwrap) {
  tensors_.clear();
  std::size_t next_rewrite = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& shard = local_shard(*parameters_[i]);
    const bool quantized = is_quantized(*parameters_[i], unwrap);
    const std::size_t rewrite = quantized ? next_rewrite++ : 0;
    if (!shard.grad) continue;
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
  ++steps_;
  const bool unwrap = runtime.behaviors.unwrap_shards_in_adam;
  const bool widens =
      !runtime.behaviors.fuse_moment_casts && options_.exp_avg == DType::kBF16 && options_.exp_avg_sq == DType::kBF16;
  if (options_.max_grad_norm > 0.0) clip(runtime);
  if (widens) widen_moments(runtime);
  list_rewrites(unwrap);
  rewriter_.begin(runtime.device, rewrites_);
  list_tensors(unwrap);
  const MomentRule mean = moment_rule(options_.beta1, steps_), square = moment_rule(options_.beta2, steps_);
  runtime.device.launch(&KernelTable::adam, AdamArgs{.tensors = tensors_,
                                                     .learning_rate = static_cast<float>(options_.learning_rate),
                                                     .exp_avg_weight = mean.weight,
                                                     .exp_avg_sq_weight = square.weight,
                                                     .epsilon = static_cast<float>(options_.epsilon),
                                                     .weight_decay = static_cast<float>(options_.weight_decay),
                                                     .decoupled_decay = options_.decoupled_decay,
                                                     .bias_correction1 = static_cast<float>(mean.correction),
                                                     .bias_correction2 = static_cast<float>(square.correction),
                                                     .gradient_scale = clip_coefficient_.data<const float>()});
  rewriter_.finish(runtime.device);
  if (widens) narrow_moments(runtime);
}

}  // namespace fp8lab
