#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "core/check.h"
#include "harness/cli/program.h"
#include "harness/cli/selection.h"
#include "harness/results/compare/benchmarks.h"
#include "harness/results/compare/compare.h"

namespace fp8lab {
namespace {

/// Prints the comparison of a Google Benchmark file with another one.
int compare_with_benchmarks(const CompareRequest& request, const std::vector<BenchmarkRow>& baseline) {
  if (request.runs.size() != 1) fail("compare: of Google Benchmark files give two, BASELINE and RUN");
  const auto run = load_benchmarks(request.runs.front());
  if (!run)
    fail("compare: '" + request.baseline + "' is a Google Benchmark file, so RUN must be one; '" +
         request.runs.front() + "' is none");
  const BenchmarkComparison comparison = compare_benchmarks(baseline, *run);
  const std::string text = request.json       ? benchmarks_json(comparison)
                           : request.markdown ? benchmarks_markdown(comparison)
                                              : benchmarks_text(comparison);
  std::fputs(text.c_str(), stdout);
  return comparison.exit_code();
}

}  // namespace

int compare_command(const CompareRequest& request) {
  if (const auto baseline = load_benchmarks(request.baseline)) return compare_with_benchmarks(request, *baseline);
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
