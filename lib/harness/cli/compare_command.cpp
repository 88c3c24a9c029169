#include <fmt/format.h>

#include <cstdio>
#include <regex>

#include "core/check.h"
#include "harness/cli/program.h"
#include "harness/compare.h"

namespace fp8lab {

int compare_command(const CompareRequest& request) {
  std::function<bool(const std::string&)> allowed;
  if (!request.allow.empty()) {
    try {
      allowed = [pattern = std::regex(request.allow)](const std::string& id) { return std::regex_search(id, pattern); };
    } catch (const std::regex_error& error) {
      fail(fmt::format("--allow: `{}` is not a regular expression: {}", request.allow, error.what()));
    }
  }
  const StoredRun baseline = load_run(request.baseline);
  const RunComparison comparison = compare_runs(baseline, load_run(request.run), allowed);
  const std::string text = request.json ? comparison_json(comparison) : comparison_text(comparison);
  std::fputs(text.c_str(), stdout);
  return comparison.exit_code();
}

}  // namespace fp8lab
