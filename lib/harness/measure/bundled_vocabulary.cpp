#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <utility>

#include "backend/arch.h"
#include "backend/device.h"
#include "core/check.h"
#include "fixes/fixes.h"
#include "harness/cell/metrics.h"
#include "harness/cell/sharding_keys.h"
#include "harness/cell/subject_keys.h"
#include "harness/cell/vocabulary.h"
#include "harness/data/text_data.h"
#include "harness/measure/arms.h"
#include "harness/measure/layer_rules.h"
#include "harness/measure/parity.h"
#include "harness/measure/twin/equal_losses.h"
#include "harness/measure/twin/library_twin.h"
#include "harness/measure/twin/plain_twin.h"
#include "harness/reference/support.h"
#include "nn/layer_table.h"
#include "recipe/recipe.h"

namespace fp8lab {
namespace {

using Rules = std::vector<BrokenRule>;

bool layer_reads(std::string_view layer, std::string_view key) {
  return std::ranges::find(layer_row(layer).keys, key) != layer_row(layer).keys.end();
}

bool attends(std::string_view layer) { return layer_reads(layer, "model.heads"); }

/// The rule of an even split of tokens: experts have groups of one size.
std::optional<BrokenRule> broken_split_rule(const CellConfig& cell) {
  const ModelConfig& model = cell.model;
  const std::int64_t tokens = seq_of_rank(cell) * model.batch;
  if (!layer_reads(model.layer, "model.split") || model.split != GroupSplit::kEven || tokens % model.experts == 0)
    return std::nullopt;
  return BrokenRule{"model.split", fmt::format("even, but {} experts do not divide the {} tokens of a rank; write "
                                               "`split: uneven`, or other `experts`, `seq` or `batch`",
                                               model.experts, tokens)};
}

/// Adds the rules of the layer and of the recipe that a cell breaks.
void add_recipe_rules(const CellConfig& cell, Rules& out) {
  try {
    const Recipe recipe = make_recipe(cell.training.recipe, cell.training.recipe_options);
    for (BrokenRule& rule : broken_layer_rules(cell, recipe)) out.push_back(std::move(rule));
  } catch (const Error& error) {
    out.push_back({"training.recipe_options", error.what()});
  }
}

bool computes_values(std::string_view device) {
  const auto row = std::ranges::find(devices(), device, &DeviceRow::name);
  return row == devices().end() || row->computes;  // an unknown device is reported as such
}

/// True for the default corpus on a device that computes nothing. A corpus that the cell names is checked on every
/// device.
bool reads_no_text(const CellConfig& cell) { return !computes_values(cell.device) && cell.training.corpus.empty(); }

/// The rule that a cell breaks with the corpus that it names; the default one may be missing, see lacks_corpus().
std::optional<BrokenRule> broken_corpus_rule(const CellConfig& cell) {
  if (cell.training.data != Data::kText || reads_no_text(cell)) return std::nullopt;
  std::shared_ptr<const TextData> text;
  try {
    text = text_of(cell.training);
  } catch (const Error& error) {
    if (cell.training.corpus.empty()) return std::nullopt;
    return BrokenRule{"training.corpus", error.what()};
  }
  if (const std::string rule = broken_text_rule(*text, cell.model); !rule.empty())
    return BrokenRule{"training.corpus", rule};
  return std::nullopt;
}

Rules broken_bundled_rules(const CellConfig& cell) {
  Rules out;
  add_recipe_rules(cell, out);
  if (std::optional<BrokenRule> broken = broken_split_rule(cell)) out.push_back(std::move(*broken));
  if (std::optional<BrokenRule> broken = broken_corpus_rule(cell)) out.push_back(std::move(*broken));
  return out;
}

std::string lacks_corpus(const CellConfig& cell) {
  try {
    if (cell.training.data == Data::kText && !reads_no_text(cell)) text_of(cell.training);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

std::string text_checksum(const CellConfig& cell) {
  try {
    return cell.training.data == Data::kText && !reads_no_text(cell) ? text_of(cell.training)->checksum() : "";
  } catch (const Error&) {  // lacks_corpus() gives the reason
    return {};
  }
}

/// The most ranks of one process. Ranks are threads on the host, which may share a GPU; on a device that computes
/// nothing, one rank of many is simulated.
std::int64_t most_ranks(std::string_view device) { return computes_values(device) ? 64 : kMostRanks; }

template <class Row>
std::vector<Term> terms(std::span<const Row> rows) {
  std::vector<Term> out;
  for (const Row& row : rows) {
    out.push_back({std::string(row.name), std::string(row.title)});
    if constexpr (requires { row.keys; }) out.back().keys = row.keys;
  }
  return out;
}

std::string why_absent(const CellConfig& cell, Arm arm, std::string_view metric) {
  if (is_library(cell))  // its worker reports what else it cannot measure
    return metric.starts_with("parity.twin_") ? why_no_library_twin(cell, std::string(recipe_of(cell, arm).name)) : "";
  if (metric.starts_with("parity.same_weights_")) return arm == Arm::kBf16 ? "the arm is in BF16 itself" : "";
  if (metric == "parity.scales_equal") return why_no_common_scales(cell, arm);
  if (metric == "parity.validation_keeps_scales") return why_no_scales_in_validations(cell, arm);
  if (metric.starts_with("parity.twin_")) return why_no_plain_twin(cell, arm);
  const std::string_view group = find_metric(metric)->group();
  if (group == "twin") return why_no_twin(cell, arm);
  return group == "reference" ? reference_step::why_unsupported(cell, std::string(recipe_of(cell, arm).name)) : "";
}

/// Steps of delayed scaling in which scales follow from gradients that had none yet, so that most of them underflow.
constexpr std::int64_t kUnscaledSteps = 3;
/// Steps of the loss `sum` after which gradients still had more signal than noise in every cell that was measured;
/// after 40 they had not, though each tensor was within its bounds around the step in double.
constexpr std::int64_t kStepsOfASum = 20;
/// Decibels. A gradient that is lost, doubled, or of other weights or tokens has 0 dB or less.
constexpr double kGradientFloor = 3.0;
/// Decibels of a product of two casts, one of them to E5M2: casts to E5M2 leave 25 dB and to E4M3 31 dB.
constexpr double kProductDecibels = 24.0;
/// A gradient passes every product of the model twice, in forward and in backward, and the noise of casts adds up. The
/// floor allows twice this noise, and four times if scales come from a history.
double same_weights_floor(const CellConfig& cell, bool from_history) {
  const double products = 2.0 * static_cast<double>(cell.model.layers) * layer_row(cell.model.layer).products;
  const double left = kProductDecibels - 10.0 * std::log10(products) - (from_history ? 6.0 : 3.0);
  return std::max(kGradientFloor, std::floor(10.0 * left) / 10.0);
}

std::optional<double> recipe_floor(const CellConfig& cell, Arm arm, std::string_view metric) {
  // A fix that is not about values changes none; a scenario whose fix is about values gates them itself.
  if (metric == "parity.bitwise_equal")
    return arm == Arm::kBefore && !is_library(cell) ? std::optional(1.0) : std::nullopt;
  if (arm != Arm::kAfter) return std::nullopt;
  if (metric == "parity.scales_equal" || metric == "parity.validation_keeps_scales")
    return is_library(cell) ? std::nullopt : std::optional(1.0);
  const Recipe recipe = recipe_of(cell, arm);
  const bool from_history = recipe.activation.amax_source == AmaxSource::kHistory;
  // A sum has no minimum: weights grow in one direction, whose gradients norms take out, and noise is what remains.
  if (cell.training.loss == Loss::kSum && cell.training.steps > kStepsOfASum) return std::nullopt;
  // Values over more binades than eight bits have leave more noise than signal.
  if (cell.training.data == Data::kStress) return std::nullopt;
  if (!recipe.quantized || (from_history && cell.training.steps <= kUnscaledSteps)) return std::nullopt;
  return metric == "parity.same_weights_grad_sqnr_db" ? std::optional(same_weights_floor(cell, from_history))
                                                      : std::nullopt;
}

Vocabulary make_vocabulary() {
  Vocabulary out;
  out.recipes = terms(recipes());
  out.archs = terms(arch_profiles());
  out.layers = terms(layer_table());
  out.forms = terms(form_table());
  for (const DeviceRow& row : devices())
    out.devices.push_back({std::string(row.name), std::string(row.title), row.unavailable_reason, row.own_arch,
                           row.gpu_memory, row.describe});
  for (const Fix& row : fixes()) {
    out.fixes.push_back({.name = std::string(row.name),
                         .upstream = {row.upstream.references.begin(), row.upstream.references.end()},
                         .symptom = std::string(row.symptom),
                         .decision = std::string(row.decision),
                         .commit = std::string(row.upstream.commit),
                         .release = std::string(row.upstream.release),
                         .counterfactual = row.counterfactual});
    std::erase(out.fixes.back().upstream, "");
  }
  out.max_ranks = most_ranks;
  out.attends = attends;
  out.computes_values = computes_values;
  out.broken_rules = broken_bundled_rules;
  out.lacks = lacks_corpus;
  out.text_checksum = text_checksum;
  out.why_absent = why_absent;
  out.floor = recipe_floor;
  out.quantizes = [](std::string_view recipe) { return make_recipe(recipe).quantized; };
  return out;
}

}  // namespace

const Vocabulary& bundled_vocabulary() {
  static const Vocabulary kVocabulary = make_vocabulary();
  return kVocabulary;
}

}  // namespace fp8lab
