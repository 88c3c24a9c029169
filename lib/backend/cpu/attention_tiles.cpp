#include "backend/cpu/attention_tiles.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/check.h"
#include "core/float16.h"
#include "core/float8_format.h"
#include "core/shape.h"

namespace fp8lab::cpu::attention {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Four floats, the widest vector every x86-64 and every Arm has.
using Vector = float __attribute__((vector_size(16)));
constexpr std::int64_t kVectorFloats = 4;
constexpr std::int64_t kRowsAtOnce = 4;
static_assert(kLanes == 2 * kVectorFloats);

Vector load(const float* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}
void store(Vector vector, float* to) { std::memcpy(to, &vector, sizeof vector); }

/// exp(x) for x <= 89 to about one ulp, subnormal results included; 0 below -105, inf above 89, NaN for NaN.
inline float exponential(float x) {
  constexpr float kLog2E = 0x1.715476p+0f;
  constexpr float kLn2High = 0x1.62e400p-1f;  // its product with |n| < 2^9 is exact
  constexpr float kLn2Low = 0x1.7f7d1cp-20f;
  constexpr float kRounder = 0x1.8p23f;  // adding it leaves the nearest integer in the low bits

  float clamped = x < -105.0f ? -105.0f : x;
  clamped = clamped > 89.0f ? 89.0f : clamped;
  const float shifted = clamped * kLog2E + kRounder;
  const float n = shifted - kRounder;
  const float r = (clamped - n * kLn2High) - n * kLn2Low;
  // Taylor's series; |r| <= ln(2) / 2 leaves 5e-9 relative.
  float series = 1.0f / 5040.0f;
  series = series * r + 1.0f / 720.0f;
  series = series * r + 1.0f / 120.0f;
  series = series * r + 1.0f / 24.0f;
  series = series * r + 1.0f / 6.0f;
  series = series * r + 0.5f;
  series = (series * r) * r + r;
  series = series + 1.0f;
  // 2^n in two factors, since n may lie outside the exponents of a normal float.
  const std::int32_t exponent = static_cast<std::int32_t>(float_bits(shifted) - float_bits(kRounder));
  const std::int32_t half = exponent >> 1;
  const float first = float_from_bits(static_cast<std::uint32_t>(half + 127) << 23);
  const float second = float_from_bits(static_cast<std::uint32_t>(exponent - half + 127) << 23);
  return (series * first) * second;
}

float shift_of(float lse) { return lse == kMinusInfinity ? 0.0f : lse; }

template <class Function>
void visit_element(DType dtype, const Function& function) {
  switch (dtype) {
    case DType::kF32: return function(float{}, [](float x) { return x; });
    case DType::kBF16: return function(BFloat16{}, [](BFloat16 x) { return bf16_to_f32(x); });
    case DType::kE4M3: return function(std::uint8_t{}, [](std::uint8_t x) { return decode<E4M3>(x); });
    case DType::kE5M2: return function(std::uint8_t{}, [](std::uint8_t x) { return decode<E5M2>(x); });
    default: fail("attention: an operand is " + std::string(name(dtype)) + "; f32, bf16, e4m3 or e5m2 is needed");
  }
}

std::int64_t first_element(const MatrixView& matrix, const HeadRows& rows, std::int64_t i) {
  const std::int64_t token = (rows.begin + i) * rows.batch + rows.sequence;
  return token * matrix.row_stride + rows.head * rows.head_dim * matrix.col_stride;
}

template <class Format>
std::uint32_t cast_row(float* values, std::int64_t count, float scale) {
  std::uint32_t amax_bits = 0;
  for (std::int64_t j = 0; j < count; ++j) {
    // Magnitudes order like their bits, and NaN above all.
    amax_bits = std::max(amax_bits, float_bits(values[j]) & kFloatMagnitudeMask);
    values[j] = decode<Format>(encode<Format>(values[j] * scale));
  }
  return amax_bits;
}

}  // namespace

void multiply(const TileProduct& p) {
  for (std::int64_t j = 0; j < p.n; j += kLanes) {
    const float* b = p.b + (j / kLanes) * p.b_group_stride;
    for (std::int64_t i = 0; i < p.m; i += kRowsAtOnce) {
      const float* a = p.a + i * p.a_row_stride;
      Vector sums[kRowsAtOnce][2] = {};
      for (std::int64_t k = 0; k < p.k; ++k) {
        const Vector b0 = load(b + k * p.b_row_stride);
        const Vector b1 = load(b + k * p.b_row_stride + kVectorFloats);
        for (std::int64_t row = 0; row < kRowsAtOnce; ++row) {
          const float scalar = a[row * p.a_row_stride + k * p.a_col_stride];
          const Vector broadcast = {scalar, scalar, scalar, scalar};
          sums[row][0] += broadcast * b0;
          sums[row][1] += broadcast * b1;
        }
      }
      for (std::int64_t row = 0; row < kRowsAtOnce; ++row) {
        float* c = p.c + (i + row) * p.c_row_stride + j;
        store(p.accumulate ? load(c) + sums[row][0] : sums[row][0], c);
        store(p.accumulate ? load(c + kVectorFloats) + sums[row][1] : sums[row][1], c + kVectorFloats);
      }
    }
  }
}

void load_rows(const MatrixView& matrix, const HeadRows& rows, float* out, std::int64_t stride) {
  visit_element(matrix.dtype, [&](auto element, auto to_float) {
    using Element = decltype(element);
    for (std::int64_t i = 0; i < rows.count; ++i) {
      const Element* from = matrix.as<const Element>() + first_element(matrix, rows, i);
      float* to = out + i * stride;
      for (std::int64_t d = 0; d < rows.head_dim; ++d) to[d] = to_float(from[d * matrix.col_stride]);
      std::fill(to + rows.head_dim, to + stride, 0.0f);
    }
  });
}

void store_rows(const MatrixView& matrix, const HeadRows& rows, const float* in, std::int64_t stride, float factor) {
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const std::int64_t first = first_element(matrix, rows, i);
    for (std::int64_t d = 0; d < rows.head_dim; ++d) {
      const float value = in[i * stride + d] * factor;
      const std::int64_t at = first + d * matrix.col_stride;
      if (matrix.dtype == DType::kF32) {
        matrix.as<float>()[at] = value;
      } else {
        matrix.as<BFloat16>()[at] = f32_to_bf16(value);
      }
    }
  }
}

void pack_transposed(const float* in, std::int64_t stride, std::int64_t rows, std::int64_t head_dim, float* out) {
  std::fill(out, out + round_up(rows, kLanes) * head_dim, 0.0f);
  for (std::int64_t i = 0; i < rows; ++i) {
    float* group = out + (i / kLanes) * kLanes * head_dim + i % kLanes;
    for (std::int64_t d = 0; d < head_dim; ++d) group[d * kLanes] = in[i * stride + d];
  }
}

float scale_inv_of(const OperandView& operand) {
  return operand.quantized() ? *reinterpret_cast<const float*>(operand.scales.data) : 1.0f;
}

LogitRule::LogitRule(const AttentionShape& shape, const OperandView& q, const OperandView& k)
    : seq(shape.seq),
      causal(shape.causal),
      factor(joint_factor(scale_inv_of(q), scale_inv_of(k), shape.softmax_scale)) {}

void compute_logits(const LogitTile& t) {
  multiply({.m = t.queries,
            .n = t.keys,
            .k = t.head_dim,
            .a = t.q,
            .a_row_stride = t.q_stride,
            .b = t.k_packed,
            .b_group_stride = t.head_dim * kLanes,
            .b_row_stride = kLanes,
            .c = t.logits,
            .c_row_stride = t.stride,
            .accumulate = false});
  for (std::int64_t i = 0; i < t.queries; ++i) {
    float* row = t.logits + i * t.stride;
    const std::int64_t limit = t.rule->key_limit(t.first_query + i) - t.first_key;
    const std::int64_t visible = std::clamp<std::int64_t>(limit, 0, t.keys);
    for (std::int64_t j = 0; j < visible; ++j) row[j] *= t.rule->factor;
    std::fill(row + visible, row + t.keys, kMinusInfinity);
  }
}

float log_sum_exp(const float* logits, std::int64_t count) {
  float maxima[kLanes];
  std::fill_n(maxima, kLanes, kMinusInfinity);
  for (std::int64_t j = 0; j < count; j += kLanes)
    for (std::int64_t lane = 0; lane < kLanes; ++lane)
      maxima[lane] = logits[j + lane] > maxima[lane] ? logits[j + lane] : maxima[lane];
  const float maximum = *std::max_element(maxima, maxima + kLanes);
  const float shift = shift_of(maximum);
  double sum = 0;
  for (std::int64_t begin = 0; begin < count; begin += kKeyTile) {
    // Few enough terms per float sum that the double one decides the accuracy.
    float sums[kLanes] = {};
    const std::int64_t end = std::min(begin + kKeyTile, count);
    for (std::int64_t j = begin; j < end; j += kLanes)
      for (std::int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += exponential(logits[j + lane] - shift);
    for (const float lane_sum : sums) sum += static_cast<double>(lane_sum);
  }
  return static_cast<float>(static_cast<double>(shift) + std::log(sum));
}

void softmax_from_lse(float* logits, std::int64_t count, float lse) {
  const float shift = shift_of(lse);
  for (std::int64_t j = 0; j < count; ++j) logits[j] = exponential(logits[j] - shift);
}

DropoutRule::DropoutRule(const AttentionShape& shape, std::int64_t sequence, std::int64_t head)
    : rng_(shape.seed, shape.stream),
      probability_(shape.dropout),
      seq_(shape.seq),
      head_base_(static_cast<std::uint64_t>((sequence * shape.heads + head) * shape.seq)) {}

void DropoutRule::factors(std::int64_t query, std::int64_t first_key, std::int64_t count, float* out) const {
  const float kept = 1.0f / (1.0f - probability_);
  const std::uint64_t first = (head_base_ + static_cast<std::uint64_t>(query)) * static_cast<std::uint64_t>(seq_) +
                              static_cast<std::uint64_t>(first_key);
  std::int64_t word = static_cast<std::int64_t>(first % 4);
  std::uint64_t block = first / 4;
  for (std::int64_t j = 0; j < count; ++block, word = 0) {
    const PhiloxBlock drawn = rng_.block(block);
    for (; word < 4 && j < count; ++word, ++j)
      out[j] = CounterRng::to_unit(drawn.words[word]) >= probability_ ? kept : 0.0f;
  }
}

RoleCast::RoleCast(const AttentionRole& role) : role_(role) {
  if (role.scale == nullptr) return;
  scale_ = *role.scale;
  scale_inv_ = 1.0f / scale_;
}

void RoleCast::apply(float* values, std::int64_t count) {
  if (role_.scale == nullptr) return;
  const std::uint32_t seen = visit_float8(
      role_.payload, [&](auto format) { return cast_row<decltype(format)>(values, count, scale_); });
  amax_bits_ = std::max(amax_bits_, seen);
}

void RoleCast::store_amax() const {
  if (role_.scale == nullptr || role_.amax == nullptr) return;
  const std::uint32_t before = float_bits(*role_.amax) & kFloatMagnitudeMask;
  *role_.amax = float_from_bits(std::max(before, amax_bits_));
}

}  // namespace fp8lab::cpu::attention
