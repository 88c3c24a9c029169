#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "harness/cell/read_keys.h"
#include "harness/scenario/scenario.h"
#include "harness/scenario/scenario_reader.h"

namespace fp8lab {

/// The keys that a file gives and cells do not read. A key that no cell reads is a mistake. Of cells that differ only
/// in values of axes that they do not read, the first may stay and the others are mistakes. A key that only `include`
/// gives must be read by the cells of its entry, unless it states that they lack what the base of the file has.
class UnreadKeys {
 public:
  UnreadKeys(const Scenario& scenario, const Vocabulary& vocabulary);

  /// Sets keys that the cell does not read to their defaults, and lists them in `cell.unread`.
  void drop(PlannedCell& cell);

  /// Adds the mistakes, after the last cell.
  void report(Mistakes& mistakes) const;

  /// For each key that some of the cells read and others do not, how many do.
  std::vector<Remark> partly_read(const std::vector<PlannedCell>& cells) const;

 private:
  struct Given {
    const Key* key;
    Place place;
    bool of_base = false;  ///< the file gives it outside of `matrix`
    std::string reason{};  ///< why the first cell that does not read the key does not; "" before that
    bool is_read = false;
    std::vector<std::string> values{};  ///< messages for the values on an axis that are mistakes
    std::set<std::string> seen{};
  };

  bool is_axis(const std::string& name) const;
  std::string term_of(const CellConfig& cell, std::string_view path) const;
  void add_value(Given& row, const CellConfig& cell, const std::string& axis, const std::string& value,
                 const Unread& unread, const std::string& twin) const;

  const Scenario& scenario_;
  const Vocabulary& vocabulary_;
  std::vector<Given> given_;
  std::map<std::string, std::string> first_with_;  ///< the first cell with these values of the axes that it reads
};

}  // namespace fp8lab
