#include "harness/measure/twin/comparison.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "fsdp/row_split.h"
#include "harness/cell/sharding_keys.h"
#include "harness/measure/gathered_gradients.h"
#include "harness/measure/over_ranks.h"
#include "harness/reference/sequence_parts.h"

namespace fp8lab {

using reference_step::Matrix;

namespace {

std::vector<float> joined(const Lists& lists) {
  std::vector<float> out;
  for (const std::vector<float>& list : lists) out.insert(out.end(), list.begin(), list.end());
  return out;
}

}  // namespace

AllRanks of_all_ranks_in_step(ProcessGroup* world, const CellConfig& cell, const RecordedStep& mine,
                              const std::vector<ElementRange>& own, const std::vector<Shape>& shapes) {
  AllRanks out;
  const std::vector<float> outputs = of_all_ranks(world, joined(mine.outputs), "twin outputs");
  const std::size_t of_one = mine.outputs.front().size();
  for (auto at = outputs.begin(); at != outputs.end();) {
    Lists& of_rank = out.outputs.emplace_back();
    for (std::size_t i = 0; i < mine.outputs.size(); ++i, at += static_cast<std::ptrdiff_t>(of_one))
      of_rank.emplace_back(at, at + static_cast<std::ptrdiff_t>(of_one));
  }
  out.gradients = gathered_gradients(world, cell, mine.gradients, own, shapes);
  return out;
}

TwinComparison::TwinComparison(const CellConfig& cell, const PlainTwin& twin, const Recipe& recipe, TwinFindings& out)
    : cell_(cell),
      twin_(twin),
      quantized_(recipe.quantized),
      in_f32_(twin.cell.training.param_dtype == ParamDType::kF32),
      out_(out) {}

void TwinComparison::compare_step(std::int64_t step, const AllRanks& seen, const RecordedStep& twin,
                                  const RecordedStep* exact, const Lists* noise_of_parts,
                                  const std::vector<std::string>& names, const std::vector<Shape>& shapes) {
  for (std::size_t replica = 1; replica < seen.gradients.size(); ++replica)
    for (std::size_t i = 0; i < names.size(); ++i)
      if (!equal_bits(seen.gradients[replica][i], seen.gradients[0][i]))
        out_.add_fault(
            fmt::format("gradient {}, step {}: replica {} has another one than replica 0", names[i], step, replica));
  if (step < twin_.first) return;
  compare_outputs(step, seen, twin, exact);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string what = fmt::format("gradient {}, step {}", names[i], step);
    if (exact == nullptr)
      out_.expect_same(what, seen.gradients[0][i], twin.gradients[i]);
    else
      compare_gradient(what, shapes[i], seen.gradients[0][i], twin.gradients[i], exact->gradients[i],
                       noise_of_parts != nullptr ? &(*noise_of_parts)[i] : nullptr);
  }
}

void TwinComparison::compare_loss(const std::string& what, double seen, double expected, double exact) {
  ++out_.tensors;
  const bool sum = twin_.cell.training.loss == Loss::kSum;
  // A sum of outputs may be far smaller than they are, and is one of all tokens.
  if (sum && twin_.splits) return;
  const double most = !twin_.splits ? 0.0 : 3.0 * std::abs(expected - exact) + loss_rounding() * std::abs(expected);
  if (std::abs(seen - expected) <= most || (std::isnan(seen) && std::isnan(expected))) return;
  out_.add_fault(fmt::format("{}: {:.7g}, but {:.7g} of the plain twin", what, seen, expected));
}

void TwinComparison::compare_weights(const std::vector<std::string>& names, const Lists& seen, const Lists& twin) {
  const double step = in_f32_ ? 0x1p-18 : 0x1p-7;
  // A weight that is near 0 after an update has the rounding of the update. Updates have the size of the learning rate
  // and differ by the roundings of the norm that clips, of moments and of their quotient: by some 2^-20 of it.
  const double least = in_f32_ ? std::max(0x1p-1 * cell_.training.learning_rate, 0x1p-20) : 0x1p-20;
  for (std::size_t i = 0; i < names.size(); ++i) {
    ++out_.tensors;
    std::size_t rounded = 0, wrong = 0;
    for (std::size_t j = 0; j < seen[i].size(); ++j) {
      const double a = seen[i][j], b = twin[i][j], distance = std::abs(a - b);
      if (distance == 0.0 || (std::isnan(a) && std::isnan(b))) continue;
      distance <= step* std::max(std::abs(b), least) ? ++rounded : ++wrong;
    }
    if (wrong > 0 || (!in_f32_ && rounded > 1 + seen[i].size() / 1000))
      out_.add_fault(
          fmt::format("weight {}, after step {}: {} of {} values differ from the plain twin's, {} by more "
                      "than one rounding",
                      names[i], twin_.steps - 1, rounded + wrong, seen[i].size(), wrong));
  }
}

void TwinComparison::compare_outputs(std::int64_t step, const AllRanks& seen, const RecordedStep& twin,
                                     const RecordedStep* exact) {
  const int parallel = cell_.context_parallel;
  const std::int64_t batch = cell_.model.batch, micro_batches = cell_.training.micro_batches;
  for (std::size_t rank = 0; rank < seen.outputs.size(); ++rank) {
    const int reader = static_cast<int>(rank) / parallel, part = static_cast<int>(rank) % parallel;
    for (std::int64_t i = 0; i < micro_batches; ++i) {
      const std::int64_t number = reader * micro_batches + i;
      const auto pass = static_cast<std::size_t>(number / twin_.joined);
      const std::int64_t first = number % twin_.joined * batch;
      const std::vector<float>& mine = seen.outputs[rank][static_cast<std::size_t>(i)];
      const std::int64_t tokens = cell_.model.seq / parallel * batch;
      const std::int64_t cols = std::ssize(mine) / tokens;
      const auto part_of = [&](const std::vector<float>& all) {
        std::vector<float> out;
        for (const std::int64_t position : reference_step::positions(cell_.model.seq, part, parallel)) {
          const auto begin = all.begin() + (position * batch * twin_.joined + first) * cols;
          out.insert(out.end(), begin, begin + batch * cols);
        }
        return out;
      };
      const std::string what = fmt::format("output, rank {}, micro-batch {}, step {}", rank, i, step);
      const std::vector<float> expected = part_of(twin.outputs[pass]);
      if (exact == nullptr)
        out_.expect_same(what, mine, expected);
      else
        out_.compare(what, Matrix(tokens, cols, part_of(exact->outputs[pass])), Matrix(tokens, cols, expected),
                     Matrix(tokens, cols, mine), twin_bounds(in_f32_));
    }
  }
}

void TwinComparison::compare_gradient(const std::string& what, const Shape& shape, const std::vector<float>& seen,
                                      const std::vector<float>& twin, const std::vector<float>& exact,
                                      const std::vector<float>* noise_of_parts) {
  // A sum over tokens may be one large token's, of which two roundings differ by any factor.
  if (noise_of_parts != nullptr && shape.rank() == 1) return;
  // Ranks average what one rank adds up, also if the loss is a sum.
  const double factor = cell_.training.loss == Loss::kSum ? 1.0 / cell_.ranks : 1.0;
  const std::int64_t rows = shape.rank() > 1 ? dim0(shape) : 1;
  const auto matrix = [&](const std::vector<float>& values, double by) {
    Matrix out(rows, std::ssize(values) / rows, values);
    for (double& value : out.values) value *= by;
    return out;
  };
  const bool reduces_in_f32 = in_f32_ && cell_.reduce_dtype.value_or(ReduceDType::kF32) == ReduceDType::kF32;
  const TwinSums sums{.in_f32 = reduces_in_f32,
                      .sums_loss = cell_.training.loss == Loss::kSum,
                      .parts = cell_.ranks + cell_.training.micro_batches};
  reference_step::Bounds bounds = twin_gradient_bounds(sums);
  Matrix parts;
  if (noise_of_parts != nullptr) {
    parts = matrix(*noise_of_parts, factor * factor);
    bounds.parts = &parts;
  }
  out_.compare(what + rank_of(shape, seen, twin), matrix(exact, factor), matrix(twin, factor), matrix(seen, 1.0),
               bounds);
}

std::string TwinComparison::rank_of(const Shape& shape, const std::vector<float>& seen,
                                    const std::vector<float>& twin) const {
  const int shards = mesh_of(cell_).shards;
  if (shards == 1 || cell_.expert_parallel > 1) return {};
  const RowSplit split(dim0(shape), shards);
  int worst = 0;
  double farthest = -1.0;
  for (int shard = 0; shard < shards; ++shard) {
    double distance = 0.0;
    for (std::int64_t i = split.begin(shard) * row_elems(shape); i < split.begin(shard + 1) * row_elems(shape); ++i) {
      const double d = seen[static_cast<std::size_t>(i)] - twin[static_cast<std::size_t>(i)];
      distance += d * d;
    }
    if (!(distance <= farthest)) farthest = distance, worst = shard;
  }
  return fmt::format(", farthest in rows of rank {}", worst);
}

}  // namespace fp8lab
