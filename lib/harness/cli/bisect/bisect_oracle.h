#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/cli/bisect/bisect_search.h"
#include "harness/cli/program.h"

// What separates good versions from bad ones: the gates of a scenario's cell, or a limit of one of its figures.
namespace fp8lab {

class BisectOracle {
 public:
  /// The only selected cell of the scenario, with its after arm only. Throws Error for a scenario with mistakes, for
  /// several cells, for the own runtime, and if no gate and no limit separates good from bad.
  BisectOracle(const BisectRequest& request, const Program& program);

  const PlannedCell& cell() const { return cell_; }
  /// Runs `cell`, which is cell() with another version. The answer means nothing if a signal stopped the run.
  Trial run(const PlannedCell& cell, const std::string& version) const;
  /// "memory.growth_bytes above 0 B", or the text of the gates.
  std::string text() const;
  /// The unit of Trial::figure.
  std::string unit() const;
  const std::string& metric() const { return metric_; }

 private:
  bool by_limit() const { return !request_.metric.empty(); }

  const BisectRequest& request_;
  const Program& program_;
  PlannedCell cell_;
  std::string metric_;  ///< whose figure is shown; "": the gates are about an arm's end
};

}  // namespace fp8lab
