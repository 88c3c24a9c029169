#include "harness/results/compare/benchmarks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "core/check.h"
#include "harness/cell/escape.h"
#include "harness/cell/median.h"
#include "harness/cell/spelling.h"
#include "harness/cell/units.h"
#include "harness/results/document_file.h"
#include "harness/results/json_reader.h"

namespace fp8lab {
namespace {

using Json = nlohmann::ordered_json;

/// Google Benchmark writes counters that are no finite numbers as NaN and Infinity, which JSON does not have: the
/// variation of a counter that is always 0, for one. Counters are not read, so they become null.
std::string without_nan(std::string_view text) {
  std::string out;
  bool quoted = false;
  while (!text.empty()) {
    std::size_t length = 0;
    if (!quoted)
      for (const std::string_view word : {"NaN", "Infinity", "-NaN", "-Infinity"})
        if (text.starts_with(word)) length = word.size();
    if (length > 0) {
      out += "null";
    } else {
      length = quoted && text.starts_with('\\') ? std::min<std::size_t>(2, text.size()) : 1;
      quoted = quoted != text.starts_with('"');
      out += text.substr(0, length);
    }
    text.remove_prefix(length);
  }
  return out;
}

double nanoseconds(const JsonReader& row, std::string_view key) {
  const JsonReader time = row.at(key), unit = row.at("time_unit");
  const auto factor = in_base_units(unit.text(), "ns");
  if (!factor) unit.refuse("a unit of time: ns, us, ms or s");
  const double value = time.number() * *factor;
  if (!std::isfinite(value) || value < 0) time.refuse("a time from 0 on");
  return value;
}

/// What a file contains for one row.
struct Found {
  std::vector<double> repetitions;
  std::optional<double> median, deviation;
  std::size_t repeated = 0;
};

BenchmarkRow row_of(const std::string& name, Found found) {
  if (!found.repetitions.empty()) {
    const auto [low, high] = std::minmax_element(found.repetitions.begin(), found.repetitions.end());
    return {.name = name,
            .median = median(found.repetitions),
            .low = *low,
            .high = *high,
            .repetitions = found.repetitions.size()};
  }
  const double around = 2 * found.deviation.value_or(0.0);
  return {.name = name,
          .median = *found.median,
          .low = *found.median - around,
          .high = *found.median + around,
          .repetitions = found.deviation ? found.repeated : 1};
}

Pace pace_of(const BenchmarkRow& was, const BenchmarkRow& is) {
  if (was.repetitions < kFewestRepetitions || is.repetitions < kFewestRepetitions) return Pace::kUndecided;
  if (is.low > was.high) return Pace::kSlower;
  return is.high < was.low ? Pace::kFaster : Pace::kWithinSpread;
}

/// "2.10 ms".
std::string time_text(double ns) {
  for (const auto& [size, unit] : {std::pair{1e9, "s"}, {1e6, "ms"}, {1e3, "us"}})
    if (ns >= size) return fmt::format("{:.3g} {}", ns / size, unit);
  return fmt::format("{:.3g} ns", ns);
}

std::string words(const BenchmarkChange& row) {
  switch (row.pace) {
    case Pace::kSlower: return "slower in every repetition";
    case Pace::kFaster: return "faster in every repetition";
    case Pace::kWithinSpread: return "within the spread of the repetitions";
    case Pace::kUndecided: {
      const std::size_t fewest = std::min(row.was.repetitions, row.is.repetitions);
      return fmt::format("{}: no test is possible below {}; undecided", counted(fewest, "repetition"),
                         kFewestRepetitions);
    }
  }
  return "";
}

std::string summary(const BenchmarkComparison& comparison) {
  const std::size_t undecided = comparison.count(Pace::kUndecided);
  return fmt::format(
      "{}: {} slower, {} faster, {} within their spread, {} undecided{}; {} only in the baseline, {} new",
      counted(comparison.rows.size(), "row"), comparison.count(Pace::kSlower), comparison.count(Pace::kFaster),
      comparison.count(Pace::kWithinSpread), undecided,
      undecided == 0 ? "" : fmt::format(" (run with --benchmark_repetitions={})", kFewestRepetitions),
      comparison.only_baseline.size(), comparison.only_run.size());
}

}  // namespace

std::optional<std::vector<BenchmarkRow>> load_benchmarks(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return std::nullopt;
  const std::string text = read_document(path);
  if (text.find("\"benchmarks\"") == std::string::npos || text.substr(0, 200).find("fp8lab.") != std::string::npos)
    return std::nullopt;
  std::vector<std::string> order;
  std::map<std::string, Found> found;
  try {
    const JsonDocument document(without_nan(text));
    document.root().at("benchmarks").each_item([&](const JsonReader& row) {
      for (const std::string_view unmeasured : {"error_occurred", "skipped"})
        if (const auto is = row.find(unmeasured); is && is->flag()) return;
      const std::string full = row.at("name").text(), base = row.text_or_empty("run_name");
      const std::string& name = base.empty() ? full : base;
      const std::string aggregate = row.text_or_empty("aggregate_name");
      if (!aggregate.empty() && aggregate != "median" && aggregate != "stddev") return;
      const auto [entry, is_new] = found.try_emplace(name);
      if (is_new) order.push_back(name);
      const double time = nanoseconds(row, "real_time");
      if (aggregate.empty()) entry->second.repetitions.push_back(time);
      if (aggregate == "median") entry->second.median = time;
      if (aggregate == "stddev") entry->second.deviation = time;
      if (const auto repeated = row.find("repetitions"))
        entry->second.repeated = static_cast<std::size_t>(repeated->integer(0, 1 << 20));
    });
  } catch (const Error& error) {
    fail(fmt::format("'{}' is no Google Benchmark file: {}", path, error.what()));
  }
  std::vector<BenchmarkRow> rows;
  for (const std::string& name : order)
    if (Found& one = found.at(name); !one.repetitions.empty() || one.median)
      if (BenchmarkRow row = row_of(name, std::move(one)); row.median > 0) rows.push_back(std::move(row));
  return rows;
}

BenchmarkComparison compare_benchmarks(const std::vector<BenchmarkRow>& baseline,
                                       const std::vector<BenchmarkRow>& run) {
  BenchmarkComparison out;
  const auto named = [](const std::vector<BenchmarkRow>& rows, const std::string& name) {
    return std::find_if(rows.begin(), rows.end(), [&](const BenchmarkRow& row) { return row.name == name; });
  };
  for (const BenchmarkRow& is : run) {
    const auto was = named(baseline, is.name);
    if (was == baseline.end())
      out.only_run.push_back(is.name);
    else
      out.rows.push_back({.was = *was, .is = is, .pace = pace_of(*was, is)});
  }
  for (const BenchmarkRow& was : baseline)
    if (named(run, was.name) == run.end()) out.only_baseline.push_back(was.name);
  std::stable_sort(out.rows.begin(), out.rows.end(),
                   [](const BenchmarkChange& a, const BenchmarkChange& b) { return a.ratio() > b.ratio(); });
  return out;
}

std::size_t BenchmarkComparison::count(Pace pace) const {
  return static_cast<std::size_t>(
      std::count_if(rows.begin(), rows.end(), [&](const BenchmarkChange& row) { return row.pace == pace; }));
}

std::string benchmarks_text(const BenchmarkComparison& comparison) {
  std::string out;
  for (const BenchmarkChange& row : comparison.rows)
    out += fmt::format("{:.3f} times  {}  {} -> {}, {}\n", row.ratio(), for_terminal(row.is.name),
                       time_text(row.was.median), time_text(row.is.median), words(row));
  for (const std::string& name : comparison.only_baseline) out += fmt::format("gone         {}\n", for_terminal(name));
  for (const std::string& name : comparison.only_run) out += fmt::format("new          {}\n", for_terminal(name));
  return out + summary(comparison) + "\n";
}

std::string benchmarks_markdown(const BenchmarkComparison& comparison) {
  std::string out = fmt::format("**{}**\n", summary(comparison));
  if (comparison.rows.empty()) return out;
  out += "\n| benchmark | baseline | now | times the baseline | |\n|---|---|---|---|---|\n";
  for (const BenchmarkChange& row : comparison.rows)
    out += fmt::format("| {} | {} | {} | {:.3f} | {} |\n", for_markdown(row.is.name), time_text(row.was.median),
                       time_text(row.is.median), row.ratio(), words(row));
  return out;
}

std::string benchmarks_json(const BenchmarkComparison& comparison) {
  const auto side = [](const BenchmarkRow& row) {
    return Json{
        {"median_ns", row.median}, {"low_ns", row.low}, {"high_ns", row.high}, {"repetitions", row.repetitions}};
  };
  Json rows = Json::array();
  for (const BenchmarkChange& row : comparison.rows)
    rows.push_back({{"name", row.is.name},
                    {"ratio", row.ratio()},
                    {"finding", words(row)},
                    {"baseline", side(row.was)},
                    {"run", side(row.is)}});
  const Json out{{"schema", "fp8lab.benchmarks/1"},
                 {"slower", comparison.count(Pace::kSlower)},
                 {"faster", comparison.count(Pace::kFaster)},
                 {"undecided", comparison.count(Pace::kUndecided)},
                 {"rows", rows},
                 {"only_baseline", comparison.only_baseline},
                 {"only_run", comparison.only_run}};
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace fp8lab
