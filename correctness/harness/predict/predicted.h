#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <map>
#include <random>
#include <string>

#include "harness/cell/cell.h"
#include "harness/predict/predict.h"

// Predictions compared with measurements, for tests of the closed forms.
namespace fp8lab::predict_test {

using Figures = std::map<std::string, double>;

/// The figures that predict() returns, measured on rank 0; the ranks of sharded cells are simulated.
Figures measured(const CellConfig& cell, Arm arm);

/// True if every figure equals its prediction to the byte. Failures name the cell and the figures that differ.
testing::AssertionResult agrees(const CellConfig& cell, Arm arm);
/// The same; `formulas`: estimate(cell, arm).
testing::AssertionResult agrees(const CellConfig& cell, Arm arm, const Estimate& formulas);

/// True if the reverted fix of a cell without a closed form ends a run. Without padding to blocks a run must end well
/// if every expert happens to have a multiple of a block's rows, and otherwise with the error that names these.
testing::AssertionResult ends_in_an_error(const CellConfig& cell);

/// True if the layer accepts its sizes under the recipe.
bool can_run(const CellConfig& cell);

/// Random draws by plain remainders, so that every standard library draws the same.
class Draw {
 public:
  std::int64_t upto(std::int64_t most) {
    return 1 + static_cast<std::int64_t>(engine_() % static_cast<std::uint32_t>(most));
  }
  bool chance() { return engine_() % 2 == 0; }
  template <class T>
  T of(std::initializer_list<T> choices) {
    return choices.begin()[engine_() % choices.size()];
  }

 private:
  std::mt19937 engine_{20240229};
};

/// Draws sizes from few tokens with wide matrices to many tokens with narrow ones, so that each moment of a step is the
/// peak in some draw. No draw costs much, since nothing is computed.
void draw_sizes(Draw& draw, const std::string& recipe, ModelConfig& model);

/// Makes half of the cells language models, after the loss was drawn. Their vocabularies are from less than the width
/// of the model to many times it.
void draw_language(Draw& draw, CellConfig& cell);

/// Draws how many of the first and last layers stay in BF16: none, some or all.
void draw_bf16_layers(Draw& draw, CellConfig& cell);
/// Draws, of every third cell, layers that take no gradient. After draw_language().
void draw_frozen_layers(Draw& draw, CellConfig& cell);

}  // namespace fp8lab::predict_test
