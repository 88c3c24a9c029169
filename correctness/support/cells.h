#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "harness/cell/cell.h"
#include "harness/train/training_run.h"

// Small cells, and the results of running one.
namespace fp8lab::support {

/// A cell with one layer of the smallest shape that `recipe` supports, three steps of Adam towards a seeded target.
inline CellConfig small_cell(std::string_view recipe, std::string_view form = "gpt",
                             std::string_view layer = "transformer_layer") {
  const bool wide_blocks = make_recipe(recipe).rows_multiple > 32;
  const std::int64_t unit = wide_blocks ? 128 : 32;
  CellConfig cell;
  cell.scenario = "test";
  cell.model.layer = layer;
  cell.model.form = form;
  cell.model.hidden = unit;
  cell.model.heads = 2;
  cell.model.kv_heads = layer_form(form).rope && !wide_blocks ? 1 : 2;
  cell.model.ffn = wide_blocks ? unit : 2 * unit;
  cell.model.seq = unit / 2;
  cell.model.batch = 2;
  cell.training.steps = 3;
  cell.training.optimizer = "adam";
  cell.training.learning_rate = 1e-3;
  cell.training.loss = "mse";
  cell.training.recipe = recipe;
  return cell;
}

/// Runs a cell and keeps its values.
struct FinishedRun {
  explicit FinishedRun(const CellConfig& config, const Behaviors& behaviors = {})
      : cell(config), run(cell, behaviors, make_recipe(cell.training.recipe, cell.training.recipe_options)) {
    run.keep_values(true);
    run.run();
  }

  Ledger& ledger() { return run.device().ledger(); }
  /// The last mark of this name.
  const LedgerMark& mark(std::string_view name) {
    const auto& marks = ledger().marks();
    return *std::find_if(marks.rbegin(), marks.rend(), [&](const LedgerMark& mark) { return mark.name == name; });
  }

  CellConfig cell;
  TrainingRun run;
};

}  // namespace fp8lab::support
