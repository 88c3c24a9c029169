#include <algorithm>
#include <cmath>

#include "backend/cpu/kernels.h"
#include "backend/cpu/quantize/cast_target.h"
#include "backend/cpu/rows.h"
#include "backend/cpu/vectorized.h"
#include "core/counter_rng.h"
#include "core/float16.h"
#include "core/lerp.h"
#include "core/moment_scale.h"

namespace fp8lab::cpu {
namespace {

enum Slot { kParam, kGrad, kExpAvg, kExpAvgSq };

void scale_by(float* values, std::int64_t count, float scale) {
  for (std::int64_t j = 0; j < count; ++j) values[j] *= scale;
}

/// Loads f32 values from two tensors: `high` (bf16) holds their upper 16 bits, rounded, and `low` (i16) their lower 16
/// bits.
void load_parts16(const MatrixView& high, const MatrixView& low, std::int64_t row, std::int64_t col, std::int64_t count,
                  float* out) {
  const auto* upper = high.as<const std::uint16_t>() + row * high.row_stride + col * high.col_stride;
  const auto* lower = low.as<const std::int16_t>() + row * low.row_stride + col * low.col_stride;
  for (std::int64_t j = 0; j < count; ++j) {
    const std::int16_t rest = lower[j * low.col_stride];
    const auto truncated = static_cast<std::uint32_t>(upper[j * high.col_stride] - (rest < 0 ? 1 : 0));
    out[j] = float_from_bits(truncated << 16 | static_cast<std::uint16_t>(rest));
  }
}

void store_parts16(const float* values, std::int64_t count, const MatrixView& high, const MatrixView& low,
                   std::int64_t row, std::int64_t col) {
  auto* upper = high.as<std::uint16_t>() + row * high.row_stride + col * high.col_stride;
  auto* lower = low.as<std::int16_t>() + row * low.row_stride + col * low.col_stride;
  for (std::int64_t j = 0; j < count; ++j) {
    std::uint32_t bits = float_bits(values[j]);
    // Without this, rounding up a NaN's payload could carry into the sign and leave a zero.
    if ((bits & kFloatMagnitudeMask) > kFloatInfinityBits) bits = (bits & ~kFloatMagnitudeMask) | kFloatQuietNanBits;
    const auto rest = static_cast<std::int16_t>(static_cast<std::uint16_t>(bits));
    upper[j * high.col_stride] = static_cast<std::uint16_t>((bits >> 16) + (rest < 0 ? 1u : 0u));
    lower[j * low.col_stride] = rest;
  }
}

/// A moment in any of its types, read with the scale of the last step and written with the scale of this step.
struct Moment {
  MatrixView view;
  float* scale = nullptr;
  float read_scale = 1.0f;
  float write_scale = 1.0f;
  float absmax = 0.0f;

  Moment(const MatrixView& matrix, float* scale_of)
      : view(matrix), scale(moment_limit(matrix.dtype) > 0.0f ? scale_of : nullptr) {
    if (scale != nullptr) read_scale = *scale;
  }
  void read(std::int64_t row, std::int64_t col, std::int64_t count, float* out) const {
    load(view, row, col, count, out);
    if (scale != nullptr) scale_by(out, count, read_scale);
  }
  void write(float* values, std::int64_t count, std::int64_t row, std::int64_t col) const {
    if (scale != nullptr)
      for (std::int64_t j = 0; j < count; ++j) values[j] /= write_scale;
    store(values, count, view, row, col);
  }
  void measure(const float* values, std::int64_t count) {
    if (scale == nullptr) return;
    for (std::int64_t j = 0; j < count; ++j) {
      const float magnitude = std::fabs(values[j]);
      if (magnitude <= kFloatMax && magnitude > absmax) absmax = magnitude;  // false for NaN
    }
  }
  void rescale() {
    if (scale != nullptr) *scale = write_scale = moment_scale(absmax, view.dtype);
  }
};

struct Step {
  const AdamArgs& args;
  MatrixView param;
  MatrixView grad;
  MatrixView master;
  Moment exp_avg;
  Moment exp_avg_sq;
  TargetWriter target;
  float* p = scratch(kParam, kRun);
  float* g = scratch(kGrad, kRun);
  float* m = scratch(kExpAvg, kRun);
  float* v = scratch(kExpAvgSq, kRun);
  float coupled_decay;
  CounterRng rng;
  std::int64_t first_element;

  Step(const AdamArgs& adam, const AdamTensor& tensor)
      : args(adam),
        param(tensor.param),
        grad(tensor.grad),
        master(tensor.master.data != nullptr ? tensor.master : tensor.param),
        exp_avg(tensor.exp_avg, tensor.exp_avg_scale),
        exp_avg_sq(tensor.exp_avg_sq, tensor.exp_avg_sq_scale),
        target(tensor.target, nullptr),
        coupled_decay(adam.decoupled_decay ? 0.0f : adam.weight_decay),
        rng(adam.seed, tensor.stream + adam.step),
        first_element(tensor.first_element) {
    flatten_if_contiguous(param, grad, exp_avg.view, exp_avg_sq.view, master, target.data());
  }

  bool has_parts16() const { return master.dtype == DType::kI16; }
  /// True if the optimizer updates an f32 copy; the parameter is then that copy rounded.
  bool has_master() const { return master.data != param.data; }
  bool rounds_at_random() const { return args.stochastic && !has_master() && param.dtype == DType::kBF16; }

  void read(std::int64_t row, std::int64_t col, std::int64_t count) const {
    if (has_parts16())
      load_parts16(param, master, row, col, count, p);
    else
      load(master, row, col, count, p);
    load(grad, row, col, count, g);
    if (args.gradient_scale != nullptr) scale_by(g, count, *args.gradient_scale);
    exp_avg.read(row, col, count, m);
    exp_avg_sq.read(row, col, count, v);
  }
  void write(std::int64_t row, std::int64_t col, std::int64_t count) const {
    exp_avg.write(m, count, row, col);
    exp_avg_sq.write(v, count, row, col);
    if (has_parts16()) return store_parts16(p, count, param, master, row, col);
    if (has_master()) store(p, count, master, row, col);
    if (rounds_at_random()) round_at_random(static_cast<std::uint64_t>(first_element + row * param.cols + col), count);
    store(p, count, param, row, col);
  }
  /// `first`: the index of p[0] in the unsharded parameter.
  void round_at_random(std::uint64_t first, std::int64_t count) const {
    constexpr std::uint64_t kWords = 4;
    const std::uint64_t end = first + static_cast<std::uint64_t>(count);
    for (std::uint64_t index = first; index < end;) {
      const PhiloxBlock drawn = rng.block(index / kWords);
      do {
        float& value = p[index - first];
        value = stochastic_bf16(value, drawn.words[index % kWords]);
      } while (++index < end && index % kWords != 0);
    }
  }

  void update_moments(std::int64_t count) const {
    const float decay = coupled_decay, weight1 = args.exp_avg_weight, weight2 = args.exp_avg_sq_weight;
    vectorized([=, p = p, g = g, m = m, v = v] {
      for (std::int64_t j = 0; j < count; ++j) {
        const float gradient = g[j] + decay * p[j];
        m[j] = lerp(m[j], gradient, weight1);
        v[j] = lerp(v[j], gradient * gradient, weight2);
      }
    });
  }
  void update_param(std::int64_t count) const {
    const float decay = args.decoupled_decay ? args.weight_decay : 0.0f, rate = args.learning_rate;
    const float correction1 = args.bias_correction1, correction2 = args.bias_correction2, epsilon = args.epsilon;
    vectorized([=, p = p, m = m, v = v] {
      for (std::int64_t j = 0; j < count; ++j) {
        const float mean = m[j] / correction1;
        const float deviation = std::sqrt(v[j] / correction2);
        p[j] = p[j] - rate * (mean / (deviation + epsilon) + decay * p[j]);
      }
    });
  }

  /// Finds the scales with which this step will store the moments, from a first computation of the new moments.
  void find_scales() {
    if (exp_avg.scale == nullptr && exp_avg_sq.scale == nullptr) return;
    for_each_run(param, [&](std::int64_t row, std::int64_t col, std::int64_t count) {
      read(row, col, count);
      update_moments(count);
      exp_avg.measure(m, count);
      exp_avg_sq.measure(v, count);
    });
    exp_avg.rescale();
    exp_avg_sq.rescale();
  }

  void run() {
    find_scales();
    for_each_run(param, [&](std::int64_t row, std::int64_t col, std::int64_t count) {
      read(row, col, count);
      update_moments(count);
      update_param(count);
      write(row, col, count);
      target.take(p, count, row, col);
    });
    target.finish();
  }
};

}  // namespace

void adam(const AdamArgs& args, ExecContext&) {
  for (const AdamTensor& tensor : args.tensors) Step(args, tensor).run();
}

}  // namespace fp8lab::cpu
