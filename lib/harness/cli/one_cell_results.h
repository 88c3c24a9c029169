#pragma once

#include <string>

#include "harness/cli/program.h"
#include "harness/results/results.h"

namespace fp8lab {

/// A result set with one cell, of a command that does not run a scenario's cells: what `report` and `compare` read.
class OneCellResults {
 public:
  OneCellResults(const std::string& folder, const Program& program);
  /// Writes all documents. With `prints`, standard output gets the text of results.json.
  /// `model`: the text of model.json; "": it is not written.
  void write(const CellRecord& record, bool prints, const std::string& model = "");

 private:
  ResultSet results_;
  std::string environment_, environment_line_;
};

}  // namespace fp8lab
