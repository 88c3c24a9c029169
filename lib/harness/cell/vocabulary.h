#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/cell/cell.h"

namespace fp8lab {

/// A recipe, device, architecture, layer or form: one row of the table of a lower module.
struct Term {
  std::string name;
  std::string title;
  // These functions may query a driver, which takes longer than most cells run, so they are called only when their
  // result is needed.
  std::string (*unavailable_reason)() = nullptr;  ///< why this machine cannot use it; empty or null: it can
  std::string_view (*own_arch)() = nullptr;       ///< the device's only architecture profile; empty or null: any
  /// Memory in bytes of each GPU that its ranks share; empty or null: it has no memory of its own.
  std::vector<std::int64_t> (*gpu_memory)() = nullptr;
  std::string (*details)() = nullptr;  ///< further facts, one a line; null: none
  /// Layers and recipes: the keys that this row reads and other rows of its table do not.
  std::span<const std::string_view> keys{};

  std::string why_unavailable() const { return unavailable_reason ? unavailable_reason() : std::string(); }
  std::string describe() const { return details ? details() : std::string(); }
};

struct FixTerm {
  std::string name;
  std::vector<std::string> upstream;  ///< "TransformerEngine#1935"
  std::string symptom;
  std::string decision;         ///< the one decision that the fix reverts
  std::string commit{};         ///< upstream's, abbreviated
  std::string release{};        ///< the first upstream release that contains it; empty: none yet
  bool counterfactual = false;  ///< no upstream release was ever without it
};

/// A rule that a cell breaks, and the key to which a message points.
struct BrokenRule {
  std::string key;  ///< a path of keys.h, or several: "model.hidden", "model.seq x model.batch"
  std::string rule;
};

/// The words that a scenario may use. Only bundled_vocabulary() reads the tables of lower modules.
struct Vocabulary {
  std::vector<Term> recipes, devices, archs, layers, forms;
  std::vector<FixTerm> fixes;
  /// The most ranks that one process can run on the device of this name; empty: one.
  std::function<std::int64_t(std::string_view device)> max_ranks;
  /// True for a layer with attention, which needs its number of heads. Empty: no layer has any.
  std::function<bool(std::string_view layer)> attends;
  /// False for a device that computes no values, on which `measure: [parity]` finds nothing. Empty: all compute them.
  std::function<bool(std::string_view device)> computes_values;
  /// Returns the rules of layer, recipe and corpus that the cell breaks. Called on every cell of every file before
  /// anything runs.
  std::function<std::vector<BrokenRule>(const CellConfig&)> broken_rules;
  /// Why this machine lacks what the cell reads, with the remedy; "": it has that. Empty: no cell reads anything.
  std::function<std::string(const CellConfig&)> lacks;
  /// A checksum of the text that the cell trains on; "": it reads none. Called on cells that break no rule. Empty: no
  /// cell reads anything.
  std::function<std::string(const CellConfig&)> text_checksum;
  /// Why an arm of the cell has no figure of this metric, known before it runs; "": it has one. Empty: every arm has
  /// all.
  std::function<std::string(const CellConfig&, Arm, std::string_view metric)> why_absent;
  /// The least figure of a metric in an arm by the recipe's definition; nothing: the definition sets no least figure.
  /// Empty: it sets none for any metric.
  std::function<std::optional<double>(const CellConfig&, Arm, std::string_view metric)> floor;
  /// False for a recipe that quantizes nothing, so that the BF16 arm would repeat the cell.
  std::function<bool(std::string_view recipe)> quantizes;
};

const Vocabulary& bundled_vocabulary();

std::vector<std::string> names_of(const std::vector<Term>& terms);
std::vector<std::string> names_of(const std::vector<FixTerm>& terms);
const Term* find_term(const std::vector<Term>& terms, std::string_view name);

}  // namespace fp8lab
