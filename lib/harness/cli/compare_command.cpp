#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "harness/cli/program.h"
#include "harness/cli/selection.h"
#include "harness/results/compare.h"

namespace fp8lab {

int compare_command(const CompareRequest& request) {
  std::function<bool(const std::string&)> allowed;
  if (!request.allow.empty()) allowed = id_matcher("--allow", request.allow);
  std::vector<StoredRun> runs{load_run(request.baseline)};
  for (const std::string& run : request.runs) runs.push_back(load_run(run));
  const RunComparison comparison = compare_series(runs, allowed);
  const std::string text = request.json       ? comparison_json(comparison)
                           : request.markdown ? comparison_markdown(comparison)
                                              : comparison_text(comparison);
  std::fputs(text.c_str(), stdout);
  return comparison.exit_code();
}

}  // namespace fp8lab
