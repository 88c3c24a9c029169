#pragma once

#include <string>
#include <vector>

#include "harness/cell/cell.h"

namespace fp8lab {

/// What each library can honour of a cell, whatever its installed version: the file abilities.json next to the worker,
/// which abilities.py describes and reads too.
class Abilities {
 public:
  /// `file` need not exist: a worker of one's own may have no rules. Throws Error, with its name, for a file that is
  /// not of this format.
  explicit Abilities(const std::string& file);

  /// The key that the library cannot honour and why ("model.dropout: its random numbers are the library's own"), or "".
  std::string why_unable(const CellConfig& cell, Arm arm) const;

 private:
  struct Condition {
    std::string key;
    std::vector<std::string> values;
  };
  struct Rule {
    std::vector<std::string> subjects;
    Condition only;
    std::vector<Condition> when;
    std::string why;
  };

  std::vector<Rule> rules_;
};

}  // namespace fp8lab
