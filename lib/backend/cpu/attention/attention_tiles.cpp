#include "backend/cpu/attention/attention_tiles.h"

#include <algorithm>
#include <limits>

#include "backend/cpu/rows.h"
#include "backend/cpu/vectorized.h"
#include "core/elementary.h"
#include "core/float8_format.h"
#include "core/portable_math.h"
#include "core/shape.h"

namespace fp8lab::cpu::attention {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

float shift_of(float lse) { return lse == kMinusInfinity ? 0.0f : lse; }

template <class Format>
std::uint32_t cast_row(float* values, std::int64_t count, float scale) {
  std::uint32_t amax_bits = 0;
  for (std::int64_t j = 0; j < count; ++j) {
    // Non-negative floats compare like their bits, with NaN above all.
    amax_bits = std::max(amax_bits, float_bits(values[j]) & kFloatMagnitudeMask);
    values[j] = decode<Format>(encode<Format>(values[j] * scale));
  }
  return amax_bits;
}

}  // namespace

void load_rows(const MatrixView& matrix, const HeadRows& rows, float* out, std::int64_t stride) {
  for (std::int64_t i = 0; i < rows.count; ++i) {
    float* to = out + i * stride;
    load(matrix, rows.token(i), rows.head * rows.head_dim, rows.head_dim, to);
    std::fill(to + rows.head_dim, to + stride, 0.0f);
  }
}

void store_rows(const MatrixView& matrix, const HeadRows& rows, float* in, std::int64_t stride, float factor) {
  for (std::int64_t i = 0; i < rows.count; ++i) {
    float* from = in + i * stride;
    for (std::int64_t d = 0; d < rows.head_dim; ++d) from[d] *= factor;
    store(from, rows.head_dim, matrix, rows.token(i), rows.head * rows.head_dim);
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

LogitRule::LogitRule(const AttentionShape& of, const OperandView& q, const OperandView& k)
    : shape(of), factor(joint_factor(scale_inv_of(q), scale_inv_of(k), of.softmax_scale)) {}

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
    const auto in_tile = [&t](std::int64_t key) { return std::clamp<std::int64_t>(key - t.first_key, 0, t.keys); };
    const std::int64_t begin = in_tile(t.rule->shape.first_key(t.first_query + i));
    const std::int64_t end = in_tile(t.rule->key_limit(t.first_query + i));
    std::fill(row, row + begin, kMinusInfinity);
    for (std::int64_t j = begin; j < end; ++j) row[j] *= t.rule->factor;
    std::fill(row + end, row + t.keys, kMinusInfinity);
  }
}

std::vector<float> read_sinks(const MatrixView& sinks) {
  std::vector<float> out;
  if (sinks.data == nullptr) return out;
  out.resize(static_cast<std::size_t>(sinks.cols));
  load(sinks, 0, 0, sinks.cols, out.data());
  return out;
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
    // Each float sum has few terms (kKeyTile / kLanes), so the double sum over tiles decides the accuracy.
    float sums[kLanes] = {};
    const std::int64_t end = std::min(begin + kKeyTile, count);
    vectorized([=, sums = &sums[0]] {
      for (std::int64_t j = begin; j < end; j += kLanes)
        for (std::int64_t part = 0; part < kLanes; ++part) sums[part] += exponential(logits[j + part] - shift);
    });
    for (const float part : sums) sum += static_cast<double>(part);
  }
  return static_cast<float>(static_cast<double>(shift) + portable::logarithm(sum));
}

void softmax_from_lse(float* logits, std::int64_t count, float lse) {
  const float shift = shift_of(lse);
  vectorized([=] {
    for (std::int64_t j = 0; j < count; ++j) logits[j] = exponential(logits[j] - shift);
  });
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
  const std::uint32_t seen =
      visit_float8(role_.dtype, [&](auto format) { return cast_row<decltype(format)>(values, count, scale_); });
  amax_bits_ = std::max(amax_bits_, seen);
}

void RoleCast::store_amax() const {
  if (role_.scale == nullptr || role_.amax == nullptr) return;
  const std::uint32_t before = float_bits(*role_.amax) & kFloatMagnitudeMask;
  *role_.amax = float_from_bits(std::max(before, amax_bits_));
}

}  // namespace fp8lab::cpu::attention
