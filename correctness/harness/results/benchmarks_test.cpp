#include "harness/results/compare/benchmarks.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "core/check.h"
#include "harness/scenario/sample.h"
#include "harness/temporary_directory.h"
#include "support/error_of.h"

// Google Benchmark files: what a row is, and when it counts as slower.
namespace fp8lab {
namespace {

using Json = nlohmann::json;

Json repetition(const std::string& name, double time, const std::string& unit = "ns") {
  return {{"name", name + "/repeats:3"}, {"run_name", name}, {"run_type", "iteration"}, {"repetitions", 3},
          {"real_time", time},           {"time_unit", unit}};
}
Json aggregate(const std::string& name, const std::string& kind, double time) {
  Json row = repetition(name, time);
  row["name"] = name + "_" + kind;
  row["run_type"] = "aggregate";
  row["aggregate_name"] = kind;
  return row;
}

class Benchmarks : public ::testing::Test {
 protected:
  std::string file(const Json& rows) {
    const auto path = directory_ / ("bench" + std::to_string(++files_) + ".json");
    sample::write(path, Json{{"context", Json::object()}, {"benchmarks", rows}}.dump());
    return path.string();
  }
  std::vector<BenchmarkRow> load(const Json& rows) { return load_benchmarks(file(rows)).value(); }

  sample::TemporaryDirectory directory_;
  int files_ = 0;
};

TEST_F(Benchmarks, ARowIsTheMedianOfItsRepetitionsInNanoseconds) {
  const auto rows = load({repetition("gemm/1024", 3, "ms"), repetition("gemm/1024", 1, "ms"),
                          repetition("gemm/1024", 2, "ms"), aggregate("gemm/1024", "mean", 77)});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].name, "gemm/1024");
  EXPECT_EQ(rows[0].median, 2e6);
  EXPECT_EQ(rows[0].low, 1e6);
  EXPECT_EQ(rows[0].high, 3e6);
  EXPECT_EQ(rows[0].repetitions, 3u);
}

TEST_F(Benchmarks, AFileOfAggregatesHasTheirMedianAndTwoDeviations) {
  const auto rows =
      load({aggregate("cast", "mean", 9), aggregate("cast", "median", 10), aggregate("cast", "stddev", 0.5)});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].median, 10);
  EXPECT_EQ(rows[0].low, 9);
  EXPECT_EQ(rows[0].high, 11);
}

TEST_F(Benchmarks, RowsWithoutATimeAreLeftOut) {
  for (const char* const reason : {"error_occurred", "skipped"}) {
    Json failed = repetition("broken", 1);
    failed[reason] = true;
    EXPECT_TRUE(load(Json::array({failed})).empty()) << reason;
  }
  EXPECT_TRUE(load(Json::array({repetition("empty", 0)})).empty());
}

// With repetitions, the variation of a counter that is always 0 is NaN.
TEST_F(Benchmarks, CountersThatAreNoNumbersAreNoObstacle) {
  const std::string path = (directory_ / "nan.json").string();
  sample::write(path, R"({"benchmarks": [{"name": "NaN \"row\" -Infinity\\", "real_time": 3, "time_unit": "ns",)"
                      R"( "zero": NaN, "wide": -Infinity, "odd": Infinity}]})");
  const auto rows = load_benchmarks(path);
  ASSERT_TRUE(rows && rows->size() == 1);
  EXPECT_EQ(rows->front().name, "NaN \"row\" -Infinity\\");
  EXPECT_EQ(rows->front().median, 3);
}

TEST_F(Benchmarks, SlowerMeansEveryRepetition) {
  const auto of = [&](std::initializer_list<double> times) {
    Json rows = Json::array();
    for (const double time : times) rows.push_back(repetition("row", time));
    return load(rows);
  };
  const auto pace = [&](std::initializer_list<double> was, std::initializer_list<double> is) {
    return compare_benchmarks(of(was), of(is)).rows.at(0).pace;
  };
  EXPECT_EQ(pace({10, 11, 12, 12, 12}, {12.1, 13, 14, 14, 14}), Pace::kSlower);
  EXPECT_EQ(pace({10, 11, 12, 12, 12}, {12, 13, 14, 14, 14}), Pace::kWithinSpread);
  EXPECT_EQ(pace({10, 11, 12, 12, 12}, {8, 9, 9.9, 9, 9}), Pace::kFaster);
  EXPECT_EQ(pace({10}, {20, 20, 20, 20, 20}), Pace::kUndecided);
}

TEST_F(Benchmarks, FewerRepetitionsThanATestNeeds_AreUndecidedAndSaySo) {
  const auto three = [&](double time) {
    return load({repetition("cast", time), repetition("cast", time + 0.1), repetition("cast", time + 0.2)});
  };
  const BenchmarkComparison compared = compare_benchmarks(three(10), three(8));
  EXPECT_EQ(compared.rows.at(0).pace, Pace::kUndecided);
  for (const std::string& text :
       {benchmarks_text(compared), benchmarks_markdown(compared), benchmarks_json(compared)}) {
    EXPECT_NE(text.find("3 repetitions: no test is possible below 5; undecided"), std::string::npos) << text;
    EXPECT_EQ(text.find("every repetition"), std::string::npos) << text;
  }
  EXPECT_EQ(Json::parse(benchmarks_json(compared)).at("undecided"), 1);
}

TEST_F(Benchmarks, TheWorstRowIsFirstAndRowsOfOneFileAreNamed) {
  const auto compared = compare_benchmarks(load({repetition("a", 10), repetition("b", 10), repetition("gone", 1)}),
                                           load({repetition("a", 11), repetition("b", 15), repetition("new", 1)}));
  ASSERT_EQ(compared.rows.size(), 2u);
  EXPECT_EQ(compared.rows[0].is.name, "b");
  EXPECT_EQ(compared.only_baseline, std::vector<std::string>{"gone"});
  EXPECT_EQ(compared.only_run, std::vector<std::string>{"new"});
  const std::string text = benchmarks_text(compared);
  EXPECT_TRUE(text.starts_with("1.500 times  b  10 ns -> 15 ns")) << text;
  EXPECT_NE(
      text.find(
          "2 rows: 0 slower, 0 faster, 0 within their spread, 2 undecided (run with --benchmark_repetitions=5); 1 only "
          "in the baseline, 1 new"),
      std::string::npos)
      << text;
  EXPECT_EQ(Json::parse(benchmarks_json(compared)).at("rows").at(0).at("ratio"), 1.5);
  EXPECT_EQ(compare_benchmarks({}, {}).exit_code(), 5);
}

TEST_F(Benchmarks, BrokenFilesAreRefusedByPlace) {
  for (const auto& [key, value, place] : {std::tuple{"time_unit", Json("weeks"), "benchmarks[0].time_unit"},
                                          {"real_time", Json(-1), "real_time"},
                                          {"real_time", Json("long"), "real_time"},
                                          {"name", Json(nullptr), "name"}}) {
    Json row = repetition("row", 1);
    row[key] = value;
    const std::string error = support::error_of([&] { load(Json::array({row})); });
    EXPECT_NE(error.find(place), std::string::npos) << error;
    EXPECT_NE(error.find("bench"), std::string::npos) << error;
  }
}

TEST_F(Benchmarks, OtherFilesAreNotTaken) {
  const auto path = directory_ / "results.json";
  sample::write(path, R"({"schema": "fp8lab.results/9", "cells": [], "note": "\"benchmarks\""})");
  EXPECT_FALSE(load_benchmarks(path.string()));
  EXPECT_FALSE(load_benchmarks((directory_ / "absent").string()));
  EXPECT_FALSE(load_benchmarks(directory_.string()));
}

}  // namespace
}  // namespace fp8lab
