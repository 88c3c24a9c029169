#include "harness/reference/initial.h"

#include <fmt/core.h>

#include <cmath>

#include "core/counter_rng.h"
#include "core/fnv1a.h"

namespace fp8lab::reference_step {

Matrix initial_values(const CellConfig& cell, const std::string& name, std::int64_t rows, std::int64_t cols,
                      bool is_vector) {
  Matrix out(rows, cols);
  if (is_vector) {
    for (double& value : out.values) value = name.ends_with(".gamma") ? 1.0 : 0.0;
    return out;
  }
  const ModelConfig& model = cell.model;
  const bool to_residual = name.ends_with(".proj.weight") || name.ends_with(".fc2.weight");
  const bool scaled = model.scaled_residuals && to_residual;
  const double deviation = model.init_std / (scaled ? std::sqrt(2.0 * static_cast<double>(model.layers)) : 1.0);
  const CounterRng rng(cell.training.seed, fnv1a(name));
  for (std::size_t i = 0; i < out.values.size(); ++i) out.values[i] = deviation * static_cast<double>(rng.normal(i));
  return out;
}

std::string wrong_initial_values(const CellConfig& cell, const std::string& name, const Matrix& seen, bool is_vector) {
  const Matrix expected = initial_values(cell, name, seen.rows, seen.cols, is_vector);
  // The type of the parameter rounds once; a draw times its deviation is rounded to FP32 before.
  const double step = cell.training.param_dtype == ParamDType::kF32 ? 0x1p-21 : 0x1p-8;
  std::size_t wrong = 0, worst = 0;
  double farthest = 0.0;
  for (std::size_t i = 0; i < seen.values.size(); ++i) {
    const double distance = std::abs(seen.values[i] - expected.values[i]);
    if (distance <= step * std::abs(expected.values[i])) continue;
    ++wrong;
    if (!(distance <= farthest)) farthest = distance, worst = i;
  }
  if (wrong == 0) return {};
  return fmt::format("weight {}, before step 0: {} of {} values are no initial values, one is {:.7g} instead of {:.7g}",
                     name, wrong, seen.values.size(), seen.values[worst], expected.values[worst]);
}

}  // namespace fp8lab::reference_step
