#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/cell/cell.h"

namespace fp8lab {

/// A row of a lower room's table as the harness shows it.
struct Term {
  std::string name;
  std::string title;
  // Functions are called where their answer is needed and nowhere else: a driver takes longer to answer than most cells
  // to run.
  std::string (*unavailable_reason)() =
      nullptr;                               ///< why it cannot be used on this machine; empty or absent when it can
  std::string_view (*own_arch)() = nullptr;  ///< the one architecture profile that it takes; empty or absent when any
  std::int64_t (*memory_bytes)() = nullptr;  ///< of one; 0 or absent where memory is not the device's own
  std::string (*details)() = nullptr;        ///< more about it, one fact a line; absent where there is no more

  std::string why_unavailable() const { return unavailable_reason ? unavailable_reason() : std::string(); }
  std::string describe() const { return details ? details() : std::string(); }
};

struct FixTerm {
  std::string name;
  std::vector<std::string> upstream;  ///< "TransformerEngine#1935"
  std::string symptom;
  std::string decision;  ///< the one decision that the fix reverts
};

/// What is wrong with a cell's shape, and the key to look at.
struct BrokenRule {
  std::string key;  ///< a path of keys.h: "model.hidden"
  std::string rule;
};

/// The words a scenario may use. The tables of lower rooms are read in one place, bundled_vocabulary().
struct Vocabulary {
  std::vector<Term> recipes, devices, archs, layers, forms;
  std::vector<FixTerm> fixes;
  /// Ranks that one process can be on a device, by its name; one where this is left out.
  std::function<std::int64_t(std::string_view device)> max_ranks;
  /// The first rule that the cell breaks, if any. Called on every cell of every file before anything runs.
  std::function<std::optional<BrokenRule>(const CellConfig&)> broken_rule;
  /// False for a recipe that keeps everything in the parameters' type, so that its BF16 arm would repeat the cell.
  std::function<bool(std::string_view recipe)> quantizes;
};

const Vocabulary& bundled_vocabulary();

std::vector<std::string> names_of(const std::vector<Term>& terms);
std::vector<std::string> names_of(const std::vector<FixTerm>& terms);
const Term* find_term(const std::vector<Term>& terms, std::string_view name);

}  // namespace fp8lab
