#pragma once

#include <cstdint>

#include "backend/kernels.h"
#include "core/counter_rng.h"

// What the two directions of attention share. The logits of a tile of queries, P = exp(logit - lse) from them, dropout
// and the casts come from the same functions in forward and backward, so both see the same P bit for bit.
//
// Order of arithmetic, whatever the operands: sums run over stored elements (FP8 data as the floats they decode to,
// whose products are exact), and the scales of both operands multiply the finished sum once, as one float factor.
// Products are vectorised across results, never along a sum, and other sums run in kLanes lanes everywhere, so results
// depend neither on the instruction set nor on the tile's edges.
namespace fp8lab::cpu::attention {

inline constexpr std::int64_t kQueryTile = 32;
inline constexpr std::int64_t kKeyTile = 64;
/// Rows of logits are padded to full groups of this many keys; head dimensions likewise.
inline constexpr std::int64_t kLanes = 8;

/// c[m, n] (+)= a[m, k] * b[k, n] in FP32: each element's k products are added in order, then to c. Rows of `a` and `c`
/// are readable up to a multiple of 4, columns of `b` and `c` to a multiple of kLanes.
struct TileProduct {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  const float* a = nullptr;
  std::int64_t a_row_stride = 0;
  std::int64_t a_col_stride = 1;
  const float* b = nullptr;  ///< element (i, j) at (j / kLanes) * b_group_stride + i * b_row_stride + j % kLanes
  std::int64_t b_group_stride = kLanes;
  std::int64_t b_row_stride = 0;
  float* c = nullptr;
  std::int64_t c_row_stride = 0;
  bool accumulate = true;
};
void multiply(const TileProduct& product);

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

/// out[i * stride + d] = element d of row i, without its scale; columns from head_dim to `stride` are zeroed.
void load_rows(const MatrixView& matrix, const HeadRows& rows, float* out, std::int64_t stride);
/// Multiplies the rows by `factor` in place, then rounds them once to the matrix' type.
void store_rows(const MatrixView& matrix, const HeadRows& rows, float* in, std::int64_t stride, float factor);
/// The transpose of rows x head_dim as multiply() wants its `b`: groups of kLanes rows, each [head_dim, kLanes]; rows
/// from `rows` to the next multiple of kLanes are zero.
void pack_transposed(const float* in, std::int64_t stride, std::int64_t rows, std::int64_t head_dim, float* out);

/// 1 for an operand without scales.
float scale_inv_of(const OperandView& operand);
/// The product of up to three scales, rounded once.
inline float joint_factor(double a, double b, double c = 1.0) { return static_cast<float>(a * b * c); }

/// What makes logits of a product of Q and K.
struct LogitRule {
  explicit LogitRule(const AttentionShape& shape, const OperandView& q, const OperandView& k);
  /// Keys that query `position` may see are those below this.
  std::int64_t key_limit(std::int64_t position) const { return causal ? position + 1 : seq; }

  std::int64_t seq;
  bool causal;
  float factor;
};

/// logits[i, j] = rule.factor * sum over d of q(i, d) k(j, d), and -inf where j is masked, for `queries` queries from
/// `first_query` and `keys` keys (a multiple of kLanes) from `first_key`.
struct LogitTile {
  const LogitRule* rule = nullptr;
  const float* q = nullptr;  ///< rows of `q_stride`
  std::int64_t q_stride = 0;
  const float* k_packed = nullptr;  ///< from first_key on
  std::int64_t head_dim = 0;
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  std::int64_t first_query = 0;
  std::int64_t first_key = 0;
  float* logits = nullptr;
  std::int64_t stride = 0;
};
void compute_logits(const LogitTile& tile);

/// max + log(sum of exp(logit - max)); -inf if every key is masked.
float log_sum_exp(const float* logits, std::int64_t count);
/// logits become P = exp(logit - lse) in place; all zero where lse is -inf.
void softmax_from_lse(float* logits, std::int64_t count, float lse);

/// Dropout of P: what entry (query, key) of a head is multiplied by, 1 / (1 - p) or 0.
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

/// An operand that exists only inside the kernel, cast where its role asks for it.
class RoleCast {
 public:
  explicit RoleCast(const AttentionRole& role);
  /// values become decode(cast(value * scale)), still to be multiplied by scale_inv(), and count towards the amax.
  /// Without a scale nothing happens.
  void apply(float* values, std::int64_t count);
  float scale_inv() const { return scale_inv_; }
  /// Raises the role's amax to the largest magnitude seen; NaN wins.
  void store_amax() const;

 private:
  AttentionRole role_;
  float scale_ = 1.0f;
  float scale_inv_ = 1.0f;
  std::uint32_t amax_bits_ = 0;
};

}  // namespace fp8lab::cpu::attention
