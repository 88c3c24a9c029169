#include <algorithm>
#include <cmath>
#include <utility>

#include "core/counter_rng.h"
#include "core/fnv1a.h"
#include "harness/reference/model.h"

// Masks of dropout. An element's mask follows from the seed, from the name of the place, from the step, and from where
// the element's row is in the step: so ranks, micro-batches and steps have masks of their own, and a recomputation has
// the mask of the forward that it repeats.
namespace fp8lab::reference_step {
namespace {

/// 0 for an element of a layer's values that is dropped, otherwise what keeps the mean. 16 random bits decide.
double factor_of_value(const CounterRng& rng, std::int64_t index, float probability) {
  const double dropped = std::ceil(std::ldexp(static_cast<double>(probability), 16));
  const std::uint32_t word = rng.bits(static_cast<std::uint64_t>(index / 2));
  const std::uint32_t half = index % 2 == 0 ? word & 0xFFFFu : word >> 16;
  return static_cast<double>(half) >= dropped ? 65536.0 / (65536.0 - dropped) : 0.0;
}

/// The same for an element of P, whose random numbers have 24 bits.
double factor_of_share(const CounterRng& rng, std::int64_t index, float probability) {
  return rng.uniform(static_cast<std::uint64_t>(index)) >= probability ? 1.0 / (1.0 - static_cast<double>(probability))
                                                                       : 0.0;
}

}  // namespace

Value Model::dropout(const std::string& place, const Matrix& x) const {
  const auto probability = static_cast<float>(cell_.model.dropout);
  if (probability == 0.0f) return {x, [](const Matrix& grad) { return grad; }};
  const CounterRng rng(cell_.training.seed, fnv1a(place) + static_cast<std::uint64_t>(draws_.step));
  Matrix mask(x.rows, x.cols);
  for (std::int64_t i = 0; i < std::ssize(mask.values); ++i)
    mask.values[static_cast<std::size_t>(i)] = factor_of_value(rng, draws_.first_row * x.cols + i, probability);
  const auto masked = [this, mask = std::move(mask)](const Matrix& values) {
    Matrix out = values;
    for (std::size_t i = 0; i < out.values.size(); ++i) out.values[i] *= mask.values[i];
    return casts_.stored(std::move(out));
  };
  return {masked(x), masked};
}

Matrix Model::attention_mask(const std::string& place) const {
  const ModelConfig& model = cell_.model;
  Matrix mask(model.batch * model.heads * model.seq, model.seq);
  const auto probability = static_cast<float>(model.dropout);
  if (probability == 0.0f) {
    std::fill(mask.values.begin(), mask.values.end(), 1.0);
    return mask;
  }
  // The rows of a rank's micro-batch choose the seed, and elements are counted from its first sequence.
  const CounterRng rng(cell_.training.seed + static_cast<std::uint64_t>(draws_.first_row),
                       fnv1a(place) + static_cast<std::uint64_t>(draws_.step));
  for (std::int64_t i = 0; i < std::ssize(mask.values); ++i)
    mask.values[static_cast<std::size_t>(i)] = factor_of_share(rng, i, probability);
  return mask;
}

}  // namespace fp8lab::reference_step
