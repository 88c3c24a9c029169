#include <algorithm>
#include <vector>

#include "backend/cpu/kernels.h"
#include "backend/cpu/rows.h"
#include "core/portable_math.h"
#include "core/rotary.h"

namespace fp8lab::cpu {
namespace {

enum Slot { kQ, kKv, kRope, kPacked };

constexpr double kBase = 10000.0;

/// Columns of heads, and the first columns of K and of V in a packed row.
struct Columns {
  explicit Columns(const LatentHeadsArgs& args)
      : rope(args.k_rope.cols),
        key(args.q.cols / args.heads),
        plain(key - rope),
        value(args.kv.cols / args.heads - plain),
        first_key(args.q.cols),
        first_value(2 * args.q.cols) {}

  std::int64_t rope, key, plain, value, first_key, first_value;
};

/// The angles of one position.
class Rotation {
 public:
  explicit Rotation(std::int64_t columns) : half_(columns / 2) {
    for (std::int64_t d = 0; d < half_; ++d) step_.push_back(rotary_angle(1, d, columns, kBase));
    cosine_.resize(step_.size());
    sine_.resize(step_.size());
  }

  void set(std::int64_t position) {
    for (std::size_t d = 0; d < step_.size(); ++d) {
      const auto of = portable::sine_and_cosine(static_cast<double>(position) * step_[d]);
      cosine_[d] = static_cast<float>(of.cosine);
      sine_[d] = static_cast<float>(of.sine);
    }
  }
  void rotate(const float* in, bool inverse, float* out) const {
    for (std::int64_t d = 0; d < half_; ++d) {
      const auto at = static_cast<std::size_t>(d);
      const float low = in[d], high = in[half_ + d], sine = inverse ? -sine_[at] : sine_[at];
      out[d] = low * cosine_[at] - high * sine;
      out[half_ + d] = high * cosine_[at] + low * sine;
    }
  }

 private:
  std::int64_t half_;
  std::vector<double> step_;
  std::vector<float> cosine_, sine_;
};

}  // namespace

void latent_heads(const LatentHeadsArgs& args, ExecContext&) {
  const Columns columns(args);
  Rotation rotation(columns.rope);
  float* const q = scratch(kQ, args.q.cols);
  float* const kv = scratch(kKv, args.kv.cols);
  float* const rope = scratch(kRope, columns.rope);
  float* const packed = scratch(kPacked, args.packed.cols);
  for (std::int64_t row = 0; row < args.packed.rows; ++row) {
    if (row % args.batch == 0) rotation.set(row / args.batch);
    load(args.q, row, 0, args.q.cols, q);
    load(args.kv, row, 0, args.kv.cols, kv);
    load(args.k_rope, row, 0, columns.rope, rope);
    for (std::int64_t head = 0; head < args.heads; ++head) {
      const float* const from_q = q + head * columns.key;
      const float* const from_kv = kv + head * (columns.plain + columns.value);
      float* const to_q = packed + head * columns.key;
      float* const to_k = to_q + columns.first_key;
      std::copy_n(from_q, columns.plain, to_q);
      rotation.rotate(from_q + columns.plain, false, to_q + columns.plain);
      std::copy_n(from_kv, columns.plain, to_k);
      rotation.rotate(rope, false, to_k + columns.plain);
      std::copy_n(from_kv + columns.plain, columns.value, packed + columns.first_value + head * columns.value);
    }
    store(packed, args.packed.cols, args.packed, row, 0);
  }
}

void latent_heads_backward(const LatentHeadsBackwardArgs& backward, ExecContext&) {
  const LatentHeadsArgs& args = backward.of;
  const Columns columns(args);
  Rotation rotation(columns.rope);
  float* const q = scratch(kQ, args.q.cols);
  float* const kv = scratch(kKv, args.kv.cols);
  float* const rope = scratch(kRope, 2 * columns.rope);
  float* const packed = scratch(kPacked, args.packed.cols);
  float* const back = rope + columns.rope;
  for (std::int64_t row = 0; row < args.packed.rows; ++row) {
    if (row % args.batch == 0) rotation.set(row / args.batch);
    load(args.packed, row, 0, args.packed.cols, packed);
    std::fill_n(rope, columns.rope, 0.0f);
    for (std::int64_t head = 0; head < args.heads; ++head) {
      const float* const from_q = packed + head * columns.key;
      const float* const from_k = from_q + columns.first_key;
      float* const to_q = q + head * columns.key;
      float* const to_kv = kv + head * (columns.plain + columns.value);
      std::copy_n(from_q, columns.plain, to_q);
      rotation.rotate(from_q + columns.plain, true, to_q + columns.plain);
      std::copy_n(from_k, columns.plain, to_kv);
      for (std::int64_t d = 0; d < columns.rope; ++d) rope[d] += from_k[columns.plain + d];
      std::copy_n(packed + columns.first_value + head * columns.value, columns.value, to_kv + columns.plain);
    }
    rotation.rotate(rope, true, back);
    store(q, args.q.cols, args.q, row, 0);
    store(kv, args.kv.cols, args.kv, row, 0);
    store(back, columns.rope, args.k_rope, row, 0);
  }
}

}  // namespace fp8lab::cpu
