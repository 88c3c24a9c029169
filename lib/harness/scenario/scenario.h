#pragma once

#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "harness/cell/cell.h"
#include "harness/cell/vocabulary.h"
#include "harness/scenario/matrix.h"
#include "harness/scenario/scenario_error.h"

// A scenario file as data, every word of it checked. The keys that set fields of a cell are in keys.h; the rest are
// here.
namespace fp8lab {

/// Key `when`: holds for a cell in which each named axis has one of the listed values.
struct Condition {
  PointIndex::Terms terms;
};

/// What an expectation or a claim speaks of. kDifference is before minus after.
enum class Side { kBefore, kAfter, kBf16, kDifference };
inline constexpr std::array kSides{Side::kBefore, Side::kAfter, Side::kBf16, Side::kDifference};

/// How the process of an arm may end: ArmResult::status.
const std::vector<std::string>& arm_statuses();
/// The signals that an expectation may name.
const std::vector<std::string>& expected_signals();
/// The largest value of key `timeout`.
inline constexpr double kMostTimeoutSeconds = 86400;

std::string_view name(Side side);
std::string_view name(Arm arm);

enum class Comparison { kEquals, kAtLeast, kAtMost, kWithin, kEnds };

/// One entry of `expect`.
struct Expectation {
  Side side = Side::kAfter;
  std::string metric;
  Comparison comparison = Comparison::kEquals;
  bool predicted = false;  ///< the limit is the closed form of the same metric and side
  double low = 0;          ///< the limit; the lower one of kWithin
  double high = 0;         ///< the upper one of kWithin
  double abs = 0;          ///< the limit may be missed by the larger of abs and rel * |limit|
  double rel = 0;
  std::string status;  ///< kEnds: how the arm's process must end, a status of ArmResult
  std::string signal;  ///< kEnds: "SIGSEGV", or empty for any
  Condition when;
  int line = 0;  ///< of the scenario's file, from 1; 0: written in no file
};

/// "before memory.retained_bytes equals predicted", "after ends crashed by SIGSEGV".
std::string text_of(const Expectation& expectation);

/// One entry of `claims`: what a source states, for the results to carry beside the prediction and the measurement.
struct Claim {
  std::string source;
  std::string words;
  std::string metric;
  Side side = Side::kBefore;
  double value = 0;
  std::string unit;
  std::string note;
  Condition when;
};

/// One entry of `skip_if`.
struct SkipRule {
  Condition when;
  std::string reason;
};

struct Scenario {
  std::string file;
  std::string name;
  std::string title;
  std::vector<std::string> upstream;
  CellConfig base;  ///< before any axis
  Matrix matrix;
  std::vector<Expectation> expect;
  std::vector<Claim> claims;
  std::vector<SkipRule> skip_if;
  std::optional<double> timeout_s;      ///< key `timeout`: seconds that one arm may take
  std::map<std::string, Place> places;  ///< where each key, by path, was written
};

/// One cell with all that is needed to run it and to judge it.
struct PlannedCell {
  CellConfig config;
  std::string file;
  int line = 0;  ///< of the file, where the scenario begins
  std::string title;
  std::vector<std::string> upstream;
  std::vector<Expectation> expect;  ///< those whose `when` holds
  std::vector<Claim> claims;        ///< likewise
  std::string skip_reason;          ///< empty: run it
  std::optional<double> timeout_s;
};

/// Throws ScenarioError, with all mistakes that do not follow from others.
Scenario parse_scenario(const std::string& text, const std::string& file, const Vocabulary& vocabulary);

/// The cells of a scenario in matrix order, each checked for shapes its layer and recipe can take. Throws
/// ScenarioError.
std::vector<PlannedCell> plan_cells(const Scenario& scenario, const Vocabulary& vocabulary);

struct LoadedScenarios {
  std::vector<Scenario> scenarios;
  std::vector<PlannedCell> cells;  ///< of all scenarios, in order
  std::vector<ScenarioError> errors;
};

/// Reads every file; a bad one adds an error and the others are still read. Two scenarios of one name are an error.
LoadedScenarios load_scenarios(const std::vector<std::filesystem::path>& files, const Vocabulary& vocabulary);

/// Files among `paths`, and *.yaml and *.yml under directories among them, sorted; folders named `schema` are passed
/// over. Throws Error for a directory that holds no scenario; of a path that does not exist load_scenarios() tells.
std::vector<std::filesystem::path> find_scenario_files(const std::vector<std::string>& paths);

}  // namespace fp8lab
