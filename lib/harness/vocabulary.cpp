#include "harness/vocabulary.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "recipe/recipe.h"

namespace fp8lab {
namespace {

std::int64_t inner_width(const ModelConfig& model) { return model.ffn == 0 ? 4 * model.hidden : model.ffn; }

/// The quantized matrices of a layer are made of these lengths.
std::optional<BrokenRule> broken_recipe_rule(const CellConfig& cell) {
  Recipe recipe;
  try {
    recipe = make_recipe(cell.training.recipe, cell.training.recipe_options);
  } catch (const Error& error) {
    return BrokenRule{"training.recipe_options", error.what()};
  }
  if (!recipe.quantized) return std::nullopt;
  if (cell.training.fp8_attention && !recipe.attention)
    return BrokenRule{"training.fp8_attention", "recipe '" + cell.training.recipe + "' keeps attention in 16 bits"};
  const std::int64_t tokens = cell.model.seq * cell.model.batch;
  const std::int64_t hidden = cell.model.hidden;
  const std::pair<const char*, std::int64_t> widths[] = {{"model.hidden", hidden},
                                                         {"model.ffn", inner_width(cell.model)}};
  for (const auto& [key, width] : widths) {
    if (std::string rule = broken_shape_rule(recipe, hidden, width); !rule.empty()) return BrokenRule{key, rule};
    if (std::string rule = broken_shape_rule(recipe, tokens, width); !rule.empty())
      return BrokenRule{"model.seq", rule};
  }
  return std::nullopt;
}

Vocabulary make_vocabulary() {
  Vocabulary out;
  for (const RecipeRow& row : recipes()) out.recipes.push_back({std::string(row.name), std::string(row.title), ""});
  out.broken_rule = broken_recipe_rule;
  out.quantizes = [](std::string_view recipe) { return make_recipe(recipe).quantized; };
  return out;
}

template <class Row>
std::vector<std::string> names(const std::vector<Row>& rows) {
  std::vector<std::string> out;
  for (const Row& row : rows) out.push_back(row.name);
  return out;
}

}  // namespace

const Vocabulary& bundled_vocabulary() {
  static const Vocabulary kVocabulary = make_vocabulary();
  return kVocabulary;
}

std::vector<std::string> names_of(const std::vector<Term>& terms) { return names(terms); }
std::vector<std::string> names_of(const std::vector<FixTerm>& terms) { return names(terms); }

const Term* find_term(const std::vector<Term>& terms, std::string_view name) {
  const auto it = std::find_if(terms.begin(), terms.end(), [&](const Term& term) { return term.name == name; });
  return it == terms.end() ? nullptr : &*it;
}

}  // namespace fp8lab
