#pragma once

#include <cstdint>
#include <vector>

#include "backend/cpu/loops.h"
#include "backend/kernels.h"
#include "core/counter_rng.h"

// Functions shared by attention forward and backward. The logits of a tile of queries, P = exp(logit - lse), dropout
// and the casts come from the same functions in both directions, so both see the same P bit for bit.
//
// Order of arithmetic, for operands of every type: sums run over stored elements (FP8 data are decoded to floats, whose
// products are exact), and the scales of both operands multiply the finished sum once, as one float factor. Products
// are vectorised across results, never along a sum, and every other sum is split into kLanes partial sums, so results
// depend neither on the instruction set nor on the tile size.
namespace fp8lab::cpu::attention {

inline constexpr std::int64_t kQueryTile = 32;
inline constexpr std::int64_t kKeyTile = 64;
/// Rows of logits, and head dimensions, are padded to a multiple of this.
inline constexpr std::int64_t kLanes = kGroup;

/// The product under the instruction set in use.
inline void multiply(const TileProduct& product) { loops().matmul.multiply_unpacked(product); }

/// Rows [begin, begin + count) of one head of one sequence: row i is token (begin + i) * batch + sequence.
struct HeadRows {
  std::int64_t batch = 0;
  std::int64_t sequence = 0;
  std::int64_t head = 0;
  std::int64_t head_dim = 0;
  std::int64_t begin = 0;
  std::int64_t count = 0;

  std::int64_t token(std::int64_t i) const { return (begin + i) * batch + sequence; }
};

/// The same rows of V or O, whose heads may have other columns than Q and K.
inline HeadRows values_of(const AttentionShape& shape, HeadRows rows) {
  rows.head_dim = shape.columns_of_value();
  return rows;
}

/// out[i * stride + d] = element d of row i, not multiplied by its scale; columns from head_dim to `stride` are zeroed.
void load_rows(const MatrixView& matrix, const HeadRows& rows, float* out, std::int64_t stride);
/// Multiplies the rows by `factor` in place, then stores them rounded once to the matrix's type.
void store_rows(const MatrixView& matrix, const HeadRows& rows, float* in, std::int64_t stride, float factor);
/// Packs the transpose of a rows x head_dim matrix in the layout that multiply() reads as `b`: groups of kLanes rows,
/// each stored as [head_dim, kLanes]. Rows from `rows` to the next multiple of kLanes are zero.
void pack_transposed(const float* in, std::int64_t stride, std::int64_t rows, std::int64_t head_dim, float* out);

/// The operand's per-tensor inverse scale; 1 for an operand without scales.
float scale_inv_of(const OperandView& operand);
/// The product of up to three scales, rounded once.
inline float joint_factor(double a, double b, double c = 1.0) { return static_cast<float>(a * b * c); }

/// How a product of Q and K becomes logits: factor and mask.
struct LogitRule {
  explicit LogitRule(const AttentionShape& of, const OperandView& q, const OperandView& k);
  /// Query `position` sees the keys below this index.
  std::int64_t key_limit(std::int64_t position) const { return shape.end_key(position); }
  /// The first tile of keys that query `position`, or a later one, sees: the keys before it take no part.
  std::int64_t first_tile(std::int64_t position) const { return shape.first_key(position) / kKeyTile * kKeyTile; }

  AttentionShape shape;
  float factor;
};

/// logits[i, j] = rule.factor * sum over d of q(i, d) k(j, d), and -inf if j is masked, for `queries` queries from
/// `first_query` and `keys` keys (a multiple of kLanes) from `first_key`.
struct LogitTile {
  const LogitRule* rule = nullptr;
  const float* q = nullptr;  ///< row i starts at i * q_stride
  std::int64_t q_stride = 0;
  const float* k_packed = nullptr;  ///< packed keys from first_key on
  std::int64_t head_dim = 0;
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  std::int64_t first_query = 0;
  std::int64_t first_key = 0;
  float* logits = nullptr;
  std::int64_t stride = 0;
};
void compute_logits(const LogitTile& tile);

/// The sinks of all heads, in FP32; empty without sinks.
std::vector<float> read_sinks(const MatrixView& sinks);

/// max + log(sum of exp(logit - max)); -inf if every key is masked.
float log_sum_exp(const float* logits, std::int64_t count);
/// logits become P = exp(logit - lse) in place; all zero if lse is -inf.
void softmax_from_lse(float* logits, std::int64_t count, float lse);

/// Dropout of P: the factor of entry (query, key) of a head, 1 / (1 - p) if it is kept and 0 if it is dropped.
class DropoutRule {
 public:
  DropoutRule(const AttentionShape& shape, std::int64_t sequence, std::int64_t head);
  bool active() const { return probability_ > 0.0f; }
  void factors(std::int64_t query, std::int64_t first_key, std::int64_t count, float* out) const;

 private:
  CounterRng rng_;
  float probability_;
  std::int64_t seq_;
  std::uint64_t head_base_;
};

/// The cast of P or dS, which exist only inside the kernel. Without a scale in the role nothing is cast.
class RoleCast {
 public:
  explicit RoleCast(const AttentionRole& role);
  /// In place: value becomes decode(cast(value * scale)), which the caller still multiplies by scale_inv(). Records the
  /// amax of the values before the cast. Does nothing without a scale.
  void apply(float* values, std::int64_t count);
  float scale_inv() const { return scale_inv_; }
  /// Raises the role's amax to the largest magnitude seen; a NaN makes it NaN.
  void store_amax() const;

 private:
  AttentionRole role_;
  float scale_ = 1.0f;
  float scale_inv_ = 1.0f;
  std::uint32_t amax_bits_ = 0;
};

}  // namespace fp8lab::cpu::attention
