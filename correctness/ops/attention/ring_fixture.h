#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/attention/attention_fixture.h"
#include "ops/ring_attention.h"

// Attention over sequences that ranks split, compared with unsplit attention by its definition in double: every rank
// computes the definition over entire sequences and compares its own rows. Under a launcher ranks are processes.
namespace fp8lab::attention_test {

struct RingCase {
  std::int64_t chunk = 1;  ///< tokens; a sequence has 2 * ranks chunks
  std::int64_t batch = 1;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 8;
  bool causal = true;
  DType dtype = DType::kF32;
};

AttentionShape full_shape(const RingCase& of, int ranks) {
  return make_shape({.seq = 2 * ranks * of.chunk,
                     .batch = of.batch,
                     .heads = of.heads,
                     .kv_heads = of.kv_heads,
                     .head_dim = of.head_dim,
                     .causal = of.causal});
}

/// The places of a rank's tokens in a sequence: chunks `rank` and 2 * ranks - 1 - `rank`.
inline std::vector<std::int64_t> positions_of(int rank, int ranks, std::int64_t chunk) {
  std::vector<std::int64_t> positions;
  for (const std::int64_t first : {rank * chunk, (2 * ranks - 1 - rank) * chunk})
    for (std::int64_t i = 0; i < chunk; ++i) positions.push_back(first + i);
  return positions;
}

/// One matrix [seq * batch, cols] of entire sequences, and how ranks get theirs.
struct Full {
  std::int64_t batch;
  std::int64_t cols;

  template <class T>
  std::vector<T> of_rank(const std::vector<T>& all, const std::vector<std::int64_t>& positions) const {
    const std::int64_t row = batch * cols;
    std::vector<T> own;
    for (const std::int64_t position : positions)
      own.insert(own.end(), all.begin() + position * row, all.begin() + (position + 1) * row);
    return own;
  }
  reference::Bounded of_rank(const reference::Bounded& all, const std::vector<std::int64_t>& positions) const {
    reference::Bounded own;
    own.value = of_rank(all.value, positions);
    own.error = of_rank(all.error, positions);
    return own;
  }
  /// The inverse: writes a rank's rows into the rows of all ranks.
  void place(std::vector<double>& all, const std::vector<double>& own,
             const std::vector<std::int64_t>& positions) const {
    const std::int64_t row = batch * cols;
    for (std::size_t i = 0; i < positions.size(); ++i)
      std::copy_n(own.begin() + static_cast<std::int64_t>(i) * row, row, all.begin() + positions[i] * row);
  }
};

/// Entire sequences as every rank generates them: Q, K and V, and the gradient of O. `scales`: of eight bits by rank.
struct Values {
  std::vector<float> q, kv, grad_o;
};

/// K next to V in one matrix, as they travel.
inline std::vector<double> columns(const std::vector<double>& kv, std::int64_t keys, std::int64_t first) {
  std::vector<double> out;
  for (std::size_t row = 0; row < kv.size(); row += static_cast<std::size_t>(2 * keys))
    out.insert(out.end(), kv.begin() + static_cast<std::int64_t>(row) + first,
               kv.begin() + static_cast<std::int64_t>(row) + first + keys);
  return out;
}

/// What all ranks computed, as seen by one.
struct Outcome {
  std::string q, kv, o, lse;  ///< empty, or how the rank's rows differ from the definition
  bool any() const { return !q.empty() || !kv.empty() || !o.empty() || !lse.empty(); }
};

inline std::string message(const ::testing::AssertionResult& result) { return result ? "" : result.message(); }

/// Formats of operands in eight bits; without dtype operands have the case's type.
struct EightBits {
  bool on = false;
  bool casts = false;  ///< P and dS too
};

class Ring {
 public:
  Ring(const RingCase& of, const EightBits& eight_bits, ProcessGroup& world)
      : case_(of),
        eight_bits_(eight_bits),
        world_(world),
        device_(open_device(support::test_device(),
                            {.rank = world.local_rank(), .memory = {.capacity_bytes = 0, .poison = true}})),
        group_(world.for_device(*device_)),
        shape_(full_shape(of, world.size())),
        q_{.batch = of.batch, .cols = query_cols(shape_)},
        kv_{.batch = of.batch, .cols = 2 * key_cols(shape_)} {
    AttentionShape own = shape_;
    own.seq = 2 * of.chunk;
    own_ = own;
    values_ = {.q = gaussian(tokens(shape_) * q_.cols, 1),
               .kv = gaussian(tokens(shape_) * kv_.cols, 2),
               .grad_o = gaussian(tokens(shape_) * q_.cols, 3)};
  }

  ProcessGroup& group() { return *group_; }

  /// Runs both passes over `group` and compares this rank's rows.
  Outcome run(ProcessGroup& group) {
    const AttentionMatrix q = matrix(values_.q, q_, DType::kE4M3, 1), kv = matrix(values_.kv, kv_, DType::kE4M3, 2);
    const AttentionMatrix grad_o = matrix(values_.grad_o, q_, DType::kE5M2, 3);
    AttentionRole s, grad_p;
    Tensor s_amax, grad_p_amax;
    if (eight_bits_.casts) {
      s_amax = make_scalar(*device_, 0.0f), grad_p_amax = make_scalar(*device_, 0.0f);
      s_scale_ = make_scalar(*device_, 256.0f), grad_p_scale_ = make_scalar(*device_, 512.0f);
      s = {.dtype = DType::kE4M3, .scale = s_scale_.data<float>(), .amax = s_amax.data<float>()};
      grad_p = {.dtype = DType::kE5M2, .scale = grad_p_scale_.data<float>(), .amax = grad_p_amax.data<float>()};
    }
    const HolderId holder = device_->holder(HolderKind::kInFlight, "ring");
    RingAttentionOutputs out = ring_attention_forward(
        *device_, {.shape = own_, .ranks = group, .q = q, .kv = kv, .s = s, .holder = holder, .label = "ring"});
    const Tensor o = joined(out.o);
    const RingAttentionGradients gradients = ring_attention_backward(*device_, {.shape = own_,
                                                                                .ranks = group,
                                                                                .q = q,
                                                                                .kv = out.kv,
                                                                                .o = {o},
                                                                                .grad_o = grad_o,
                                                                                .lse = out.lse,
                                                                                .s = s,
                                                                                .grad_p = grad_p,
                                                                                .holder = holder,
                                                                                .label = "ring"});
    if (eight_bits_.casts) {
      EXPECT_GT(device_->read(s_amax)[0], 0.0f);
      EXPECT_LE(device_->read(s_amax)[0], 1.0f + 0x1p-20f);
      EXPECT_GT(device_->read(grad_p_amax)[0], 0.0f);
    }
    return compare(out, o, gradients);
  }

 private:
  std::vector<std::int64_t> positions(int rank) const { return positions_of(rank, world_.size(), case_.chunk); }
  /// The scale of a rank's eight bits: another on every rank.
  static float scale_of(int rank, std::uint64_t what) {
    return std::ldexp(1.0f, static_cast<int>((static_cast<std::uint64_t>(rank) * 3 + what) % 4) + 1);
  }

  AttentionMatrix matrix(const std::vector<float>& all, const Full& full, DType eight_bits, std::uint64_t what) {
    const std::vector<float> own = full.of_rank(all, positions(world_.rank()));
    if (!eight_bits_.on) return {make_operand(*device_, full.cols, case_.dtype, own).values};
    const Operand operand = make_quantized(*device_, full.cols, eight_bits, own, scale_of(world_.rank(), what));
    return {operand.values, operand.scale_inv};
  }
  /// The exact values of the operands of all ranks, in entire sequences.
  std::vector<double> stored(const std::vector<float>& all, const Full& full, DType eight_bits, std::uint64_t what) {
    std::vector<double> exact(all.size());
    for (int rank = 0; rank < world_.size(); ++rank) {
      const std::vector<float> own = full.of_rank(all, positions(rank));
      const Operand operand = eight_bits_.on
                                  ? make_quantized(*device_, full.cols, eight_bits, own, scale_of(rank, what))
                                  : make_operand(*device_, full.cols, case_.dtype, own);
      full.place(exact, read(*device_, operand), positions(rank));
    }
    return exact;
  }
  Tensor joined(const ByChunk& chunks) {
    std::vector<float> values = device_->read(chunks[0]);
    const std::vector<float> second = device_->read(chunks[1]);
    values.insert(values.end(), second.begin(), second.end());
    return make_operand(*device_, q_.cols, DType::kF32, values).values;
  }

  /// The O that backward reads, of all ranks.
  std::vector<double> gathered(const Tensor& o) {
    const std::vector<float> own = device_->read(o);
    std::vector<float> all(own.size() * static_cast<std::size_t>(world_.size()));
    std::vector<std::int64_t> offsets;
    for (int rank = 0; rank <= world_.size(); ++rank)
      offsets.push_back(rank * static_cast<std::int64_t>(own.size() * sizeof(float)));
    const GatherPart part{.from = reinterpret_cast<const std::byte*>(own.data()),
                          .to = reinterpret_cast<std::byte*>(all.data()),
                          .offsets_bytes = offsets};
    world_.all_gather({&part, 1}, "o");
    std::vector<double> placed(all.size());
    for (int rank = 0; rank < world_.size(); ++rank) {
      const auto first = all.begin() + static_cast<std::int64_t>(own.size()) * rank;
      q_.place(placed, std::vector<double>(first, first + static_cast<std::int64_t>(own.size())), positions(rank));
    }
    return placed;
  }

  Outcome compare(const RingAttentionOutputs& out, const Tensor& o, const RingAttentionGradients& gradients) {
    // If nothing casts P, matrix units that widen eight bits round it to bf16.
    reference::AttentionProblem problem = reference_problem(shape_, eight_bits_.on ? DType::kBF16 : case_.dtype);
    // A query's attention is merged at most 2 * ranks - 1 times. Each merge rounds its weights (two exponentials of 2
    // ulp, a difference, a sum and a quotient, hence 7 roundings), two products and a sum; its logarithm has 3 ulp and
    // one sum. The gradient of a key is a sum over ranks and chunks, each with one rounding.
    problem.precision += 10.0 * (2.0 * world_.size()) * 0x1p-24;
    // P within the keys of one chunk, and dS, as E4M3 and E5M2 round them.
    if (eight_bits_.casts) problem.rounding = 0x1p-4;
    const std::int64_t keys = key_cols(shape_);
    const std::vector<double> kv = stored(values_.kv, kv_, DType::kE4M3, 2);
    reference::AttentionInputsReference inputs{
        stored(values_.q, q_, DType::kE4M3, 1), columns(kv, keys, 0), columns(kv, keys, keys), {}};
    const std::vector<double> grad_o = stored(values_.grad_o, q_, DType::kE5M2, 3);
    const auto forward = reference::attention_forward(problem, inputs);
    if (eight_bits_.casts) problem.rounding = 0x1p-3;
    const auto backward = reference::attention_backward(problem, inputs, gathered(o), grad_o);

    const std::vector<std::int64_t> own = positions(world_.rank());
    Outcome outcome;
    outcome.o = message(within(device_->read(o), q_.of_rank(forward.o, own)));
    outcome.lse = message(within(lse_by_position(out.lse), q_lse(forward.lse, own)));
    outcome.q = message(within(device_->read(gradients.q), q_.of_rank(backward.grad_q, own)));
    const Full half{.batch = case_.batch, .cols = keys};
    for (const bool of_values : {false, true}) {
      const Tensor gradient = gradients.kv.columns(of_values ? keys : 0, keys);
      outcome.kv +=
          message(within(device_->read(gradient), half.of_rank(of_values ? backward.grad_v : backward.grad_k, own)));
    }
    return outcome;
  }

  /// [chunk][batch * heads][position] as [position][batch * heads].
  std::vector<float> lse_by_position(const ByChunk& lse) {
    std::vector<float> out;
    for (const Tensor& chunk : lse) {
      const std::vector<float> values = device_->read(chunk);
      const auto length = static_cast<std::size_t>(case_.chunk);
      for (std::size_t i = 0; i < length; ++i)
        for (std::size_t row = 0; row < values.size() / length; ++row) out.push_back(values[row * length + i]);
    }
    return out;
  }
  reference::Bounded q_lse(const reference::Bounded& lse, const std::vector<std::int64_t>& own) const {
    reference::Bounded out;
    const auto seq = static_cast<std::size_t>(shape_.seq);
    for (const std::int64_t position : own)
      for (std::size_t row = 0; row < lse.value.size() / seq; ++row) {
        out.value.push_back(lse.value[row * seq + static_cast<std::size_t>(position)]);
        out.error.push_back(lse.error[row * seq + static_cast<std::size_t>(position)]);
      }
    return out;
  }

  RingCase case_;
  EightBits eight_bits_;
  ProcessGroup& world_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<ProcessGroup> group_;
  AttentionShape shape_;
  AttentionShape own_;
  Full q_, kv_;
  Values values_;
  Tensor s_scale_, grad_p_scale_;
};

}  // namespace fp8lab::attention_test
