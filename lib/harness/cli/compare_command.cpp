#include <cstdio>
#include <functional>
#include <string>

#include "harness/cli/program.h"
#include "harness/cli/selection.h"
#include "harness/results/compare.h"

namespace fp8lab {

int compare_command(const CompareRequest& request) {
  std::function<bool(const std::string&)> allowed;
  if (!request.allow.empty()) allowed = id_matcher("--allow", request.allow);
  const StoredRun baseline = load_run(request.baseline);
  const RunComparison comparison = compare_runs(baseline, load_run(request.run), allowed);
  const std::string text = request.json ? comparison_json(comparison) : comparison_text(comparison);
  std::fputs(text.c_str(), stdout);
  return comparison.exit_code();
}

}  // namespace fp8lab
