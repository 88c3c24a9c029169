#include "harness/cli/bisect/bisect_oracle.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"
#include "harness/cell/metrics.h"
#include "harness/cell/spelling.h"
#include "harness/cell/subject_keys.h"
#include "harness/cell/units.h"
#include "harness/cli/one_cell.h"
#include "harness/cli/selection.h"

namespace fp8lab {

BisectOracle::BisectOracle(const BisectRequest& request, const Program& program)
    : request_(request), program_(program), cell_(only_cell(request.scenario, request.filters, program, "bisect")) {
  CellConfig& config = cell_.config;
  if (!is_library(config))
    fail(
        "bisect: the scenario trains with this program's own runtime, which has one version; name a library or "
        "`subject: script`");
  if (!cell_.skip_reason.empty() && !cell_.skipped_here)
    fail(fmt::format("bisect: cell {} is skipped: {}", config.id, cell_.skip_reason));
  cell_.skip_reason.clear();
  config.versions.before.clear();
  config.script.before_arguments.reset();
  config.script.patch_before.clear();
  config.control = Control::kNone;
  cell_.claims.clear();
  std::erase_if(cell_.expect, [](const Expectation& e) { return e.side != Side::kAfter || e.of == Arm::kBefore; });
  if (by_limit()) {
    const Metric* metric = find_metric(request.metric);
    if (!metric || request.metric.ends_with('*')) {
      std::vector<std::string> known;
      for (const Metric& row : metrics()) known.emplace_back(row.name);
      fail(fmt::format("bisect: --metric: no metric is called {}.{}", request.metric,
                       suggestion(request.metric, known)));
    }
    if (std::ranges::find(config.measure, metric->group()) == config.measure.end())
      fail(fmt::format("bisect: --metric: the scenario does not measure {}; add it to `measure`", metric->group()));
    if (!request.above && !request.below) fail("bisect: --metric needs --above or --below: what is bad");
    metric_ = request.metric;
    cell_.expect.clear();
  } else if (request.above || request.below) {
    fail("bisect: --above and --below need --metric");
  } else if (cell_.expect.empty()) {
    fail(fmt::format("bisect: no expectation covers the after arm of cell {}; name --metric and --above", config.id));
  } else {
    for (const Expectation& e : cell_.expect)
      if (metric_.empty()) metric_ = e.metric;
  }
}

Trial BisectOracle::run(const PlannedCell& cell, const std::string& version) const {
  const auto [record, stopped_by] = run_one_cell(cell, program_, request_.timeout_s);
  Trial out{
      .version = version, .answer = Answer::kSkipped, .figure = {}, .reason = record.reason, .seconds = record.seconds};
  if (stopped_by != 0 || record.verdict == Verdict::kSkipped) return out;
  const auto arm = record.arms.find(Arm::kAfter);
  if (arm != record.arms.end() && !metric_.empty()) out.figure = measured(record.arms, Side::kAfter, metric_).value;
  const bool names_end =
      std::ranges::any_of(cell.expect, [](const Expectation& e) { return e.comparison == Comparison::kEnds; });
  if (arm == record.arms.end() || (arm->second.status != "ok" && !names_end)) {
    out.answer = Answer::kFailed;
    return out;
  }
  if (by_limit()) {
    if (!out.figure) {
      out.reason = fmt::format("{} is absent: {}", metric_, measured(record.arms, Side::kAfter, metric_).why);
      return out;
    }
    const bool bad =
        (request_.above && *out.figure > *request_.above) || (request_.below && *out.figure < *request_.below);
    out.answer = bad ? Answer::kBad : Answer::kGood;
    out.reason.clear();
    return out;
  }
  bool undecided = false;
  for (const Gate& gate : record.gates) {
    if (gate.pass == false) out.answer = Answer::kBad;
    undecided |= !gate.pass;
  }
  if (out.answer != Answer::kBad && !undecided) out.answer = Answer::kGood;
  return out;
}

std::string BisectOracle::unit() const { return metric_.empty() ? "" : std::string(find_metric(metric_)->unit); }

std::string BisectOracle::text() const {
  if (by_limit())
    return request_.above ? fmt::format("{} above {}", metric_, shortest(*request_.above))
                          : fmt::format("{} below {}", metric_, shortest(*request_.below));
  std::string out;
  for (const Expectation& e : cell_.expect) out += fmt::format("{}not ({})", out.empty() ? "" : " or ", text_of(e));
  return out;
}

}  // namespace fp8lab
