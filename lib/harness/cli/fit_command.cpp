#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "harness/cell/escape.h"
#include "harness/cell/spelling.h"
#include "harness/cell/units.h"
#include "harness/cli/fit.h"
#include "harness/cli/program.h"

namespace fp8lab {
namespace {

using Json = nlohmann::ordered_json;

/// What one combination of ranks and recipe needs, or why it cannot be.
struct Entry {
  CellConfig cell;
  std::optional<Need> need;
  std::string reason;
};

template <class Row>
const Row& row_called(std::span<const Row> rows, const std::string& name, std::string_view what) {
  for (const Row& row : rows)
    if (row.name == name) return row;
  std::vector<std::string> known;
  for (const Row& row : rows) known.emplace_back(row.name);
  fail(fmt::format("no {} is called `{}`.{}", what, quotable(name), suggestion(name, known)));
}

CellConfig cell_of(const KnownModel& model, const FitRequest& request, int ranks, const std::string& recipe) {
  CellConfig cell;
  cell.scenario = cell.id = std::string(model.name);
  cell.device = "meta";
  cell.ranks = ranks;
  cell.model = {.layer = "transformer_layer",
                .form = std::string(model.form),
                .layers = model.layers,
                .hidden = model.hidden,
                .heads = model.heads,
                .kv_heads = model.kv_heads,
                .ffn = model.ffn,
                .seq = request.seq,
                .batch = request.batch};
  cell.training.steps = 2;
  cell.training.optimizer = Optimizer::kAdam;
  cell.training.master_weights = Master::kF32;
  cell.training.recipe = recipe;
  cell.training.quantized_weights = request.quantized_weights;
  if (request.recompute) cell.training.checkpoint = Recompute::kFull;
  return cell;
}

Entry entry_of(const CellConfig& cell, const KnownModel& model, const Program& program) {
  const Vocabulary& words = program.vocabulary();
  if (words.broken_rule)
    if (const auto broken = words.broken_rule(cell)) return {cell, {}, broken->key + ": " + broken->rule};
  try {
    return {cell, need_of(cell, model.vocabulary, program.predict), ""};
  } catch (const Error& error) {
    return {cell, {}, error.what()};
  }
}

std::string gib(double bytes) { return fmt::format("{:.1f} GiB", bytes / (1 << 30)); }

/// The entry of the row that needs the least; null if none has a figure.
const Entry* least(std::span<const Entry> row) {
  const Entry* best = nullptr;
  for (const Entry& entry : row)
    if (entry.need && (best == nullptr || entry.need->bytes < best->need->bytes)) best = &entry;
  return best;
}

/// What holds the peak, and what would make it fit, in sentences.
std::string explained(const Entry& entry, const KnownModel& model, double capacity, const Program& program) {
  const double over = entry.need->bytes - capacity;
  std::string out = fmt::format("{} ranks, {}: needs {} at its peak ({}), {}\n", entry.cell.ranks,
                                entry.cell.training.recipe, gib(entry.need->bytes), entry.need->phase,
                                over > 0 ? gib(over) + " too much" : gib(-over) + " are left");
  std::string holders;
  for (const auto& [kind, bytes] : peak_by_kind(entry.cell, program.measure))
    if (bytes >= 0.01 * entry.need->bytes)
      holders += fmt::format("{}{} {}", holders.empty() ? "" : ", ", kind, gib(bytes));
  const VocabularyBytes more = vocabulary_bytes(entry.cell, model.vocabulary);
  out += fmt::format("  layers at their peak: {}\n  embedding and head: {}, and {} while the loss is computed\n",
                     holders, gib(more.standing), gib(more.at_loss));
  if (entry.need->bytes <= capacity) return out;
  const auto change = change_that_fits(entry.cell, model.vocabulary, capacity, program.predict, program.vocabulary());
  return out + (change ? fmt::format("  fits with: {}: {}\n", change->text, gib(change->need.bytes))
                       : std::string("  no change that is known makes it fit\n"));
}

Json json_of(const Entry& entry, double capacity) {
  Json out{{"ranks", entry.cell.ranks}, {"recipe", entry.cell.training.recipe}};
  if (entry.need) {
    out["bytes"] = static_cast<std::int64_t>(entry.need->bytes);
    out["phase"] = entry.need->phase;
    out["fits"] = entry.need->bytes <= capacity;
  } else {
    out["reason"] = entry.reason;
  }
  return out;
}

}  // namespace

int fit_command(const FitRequest& request, const Program& program) {
  const KnownModel& model = row_called(known_models(), request.model, "model");
  const auto capacity = static_cast<double>(*capacity_of(request.capacity, request.gpu));
  const std::string title = request.capacity.empty() ? request.gpu : "each rank";
  std::vector<std::string> recipes = request.recipes;
  if (recipes.empty()) recipes = names_of(program.vocabulary().recipes);
  for (const std::string& recipe : recipes)
    if (find_term(program.vocabulary().recipes, recipe) == nullptr)
      fail(fmt::format("--recipe: no recipe is called `{}`.{}", quotable(recipe),
                       suggestion(recipe, names_of(program.vocabulary().recipes))));

  std::vector<std::vector<Entry>> table;
  bool all_fit = true;
  for (const int ranks : request.ranks) {
    std::vector<Entry>& row = table.emplace_back();
    for (const std::string& recipe : recipes) {
      row.push_back(entry_of(cell_of(model, request, ranks, recipe), model, program));
      all_fit = all_fit && row.back().need && row.back().need->bytes <= capacity;
    }
  }
  const int code = all_fit ? 0 : 1;
  if (request.json) {
    Json out{{"model", model.name}, {"capacity_bytes", static_cast<std::int64_t>(capacity)}, {"runs", Json::array()}};
    for (const auto& row : table)
      for (const Entry& entry : row) out["runs"].push_back(json_of(entry, capacity));
    std::fputs((out.dump(2) + "\n").c_str(), stdout);
    return code;
  }

  std::string text = fmt::format(
      "{} on {}, {} without the driver's\n{} x {} tokens a rank, FSDP over all ranks, Adam with FP32 masters{}{}\n\n",
      model.title, title, gib(capacity), request.batch, request.seq,
      request.quantized_weights ? ", weights in eight bits" : "", request.recompute ? ", every layer recomputed" : "");
  text += fmt::format("{:>7}", "ranks");
  for (const std::string& recipe : recipes) text += fmt::format("  {:>15}", recipe);
  text += '\n';
  for (const auto& row : table) {
    text += fmt::format("{:>7}", row.front().cell.ranks);
    for (const Entry& entry : row)
      text += fmt::format("  {:>15}", !entry.need                     ? "-"
                                      : entry.need->bytes <= capacity ? gib(entry.need->bytes) + " fits"
                                                                      : gib(entry.need->bytes) + "     ");
    text += '\n';
  }
  text += '\n';
  for (const Entry& entry : table.front())
    if (!entry.need) text += fmt::format("{}: {}\n", entry.cell.training.recipe, for_terminal(entry.reason));
  if (const Entry* entry = least(table.front())) text += explained(*entry, model, capacity, program);
  std::fputs(text.c_str(), stdout);
  return code;
}

}  // namespace fp8lab
