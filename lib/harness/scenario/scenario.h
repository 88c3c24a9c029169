#pragma once

#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "harness/cell/cell.h"
#include "harness/cell/keys.h"
#include "harness/cell/vocabulary.h"
#include "harness/scenario/matrix.h"
#include "harness/scenario/scenario_error.h"

// A scenario file as data, fully checked. The keys that set fields of a cell are in keys.h; the other keys are here.
namespace fp8lab {

/// Key `when`: matches a cell if each named axis has one of the listed values.
struct Condition {
  PointIndex::Terms terms;
};

/// The figures that an expectation or a claim is about: an arm's, or kDifference, before minus after.
enum class Side { kBefore, kAfter, kBf16, kDifference };
inline constexpr std::array kSides{Side::kBefore, Side::kAfter, Side::kBf16, Side::kDifference};

/// The words of ArmResult::status.
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
  std::optional<Arm> of;   ///< the limit is `factor` times the figure of the same metric of this arm
  double factor = 1;       ///< above 0; 1 unless `of`
  double low = 0;          ///< the limit; for kWithin the lower one
  double high = 0;         ///< for kWithin the upper limit
  std::string unit{};      ///< in which the limits are written; empty: the metric's
  double abs = 0;          ///< tolerance: the larger of abs and rel * |limit|
  double rel = 0;
  std::string status;  ///< kEnds: the ArmResult::status that the arm must have
  std::string signal;  ///< kEnds: "SIGSEGV", or empty for any
  Condition when;
  int line = 0;           ///< in the scenario's file, from 1; 0: written in no file
  bool of_group = false;  ///< implied by a group of metrics; `line` is the line of `measure`
};

/// "before memory.retained_bytes equals predicted", "after ends crashed by SIGSEGV".
std::string text_of(const Expectation& expectation);

/// One entry of `claims`: a figure that a source states. Results list it next to the prediction and the measurement.
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
  CellConfig base;  ///< the cell before any axis is applied
  Matrix matrix;
  std::vector<Expectation> expect;
  std::vector<Expectation> otherwise;  ///< what cells expect that no entry of `expect` about this metric and arm gates
  std::vector<Claim> claims;
  std::vector<SkipRule> skip_if;
  std::optional<double> timeout_s;      ///< key `timeout`: seconds that one arm may run
  std::map<std::string, Place> places;  ///< by path of a key, its place in the file
  /// Keys that the file gives outside of `matrix` and `include`, with their places.
  std::vector<std::pair<const Key*, Place>> given;
};

/// A cell with everything needed to run and to judge it.
struct PlannedCell {
  CellConfig config;
  std::string file;
  int line = 0;  ///< in the file, at which the scenario begins
  std::string title;
  std::vector<std::string> upstream;
  bool counterfactual = false;      ///< no upstream release was ever without the cell's fix
  std::vector<Expectation> expect;  ///< those whose `when` matches the cell
  std::vector<Claim> claims;        ///< those whose `when` matches the cell
  std::string skip_reason;          ///< empty: the cell is run
  bool skipped_here = false;        ///< the reason is what this machine lacks: another one may run the cell
  std::optional<double> timeout_s;
  std::string text_checksum;   ///< checksum of the text that the cell trains on; empty: it reads none
  std::string files_checksum;  ///< checksum of the cell's script and patches; empty: it has none that can be read
  std::string inconclusive;    ///< why the verdict can only be inconclusive, known before the cell runs; or ""
  /// Keys that the file gives and that this cell does not read; `config` has their defaults.
  std::vector<const Key*> unread;
};

/// The arms that a cell runs: before and after if it names a fix or `versions.before` (a "fix cell"), else only
/// after. Also bf16, if memory or parity is measured and the recipe quantizes, or if an expectation or a claim
/// names it.
std::vector<Arm> arms_of(const PlannedCell& cell, const Vocabulary& vocabulary);

/// The scenario of a file, and then its `variants`. Throws ScenarioError with all mistakes of the file that do not
/// follow from others.
std::vector<Scenario> parse_scenarios(const std::string& text, const std::string& file, const Vocabulary& vocabulary);

/// The cells of a scenario in matrix order. Throws ScenarioError with every rule of layer, recipe, ranks or
/// training that cells break.
std::vector<PlannedCell> plan_cells(const Scenario& scenario, const Vocabulary& vocabulary);

/// A note on a file that has no mistake, about something that its reader may not expect.
struct Remark {
  std::string file;
  Place place;
  std::string text;  ///< "`model.heads`: read by 6 of 12 cells"
};

struct LoadedScenarios {
  std::vector<Scenario> scenarios;
  std::vector<PlannedCell> cells;  ///< cells of all scenarios, in order
  std::vector<ScenarioError> errors;
  std::vector<Remark> remarks;
};

/// Reads every file. A file with mistakes adds errors, and the others are still read. Two scenarios of the same name
/// are an error.
LoadedScenarios load_scenarios(const std::vector<std::filesystem::path>& files, const Vocabulary& vocabulary);

/// The scenario files of `paths`: a file stands for itself, a directory for the *.yaml and *.yml below it, sorted.
/// Throws Error for a directory without scenarios. Does not check that files exist: load_scenarios() does, and reports
/// the directories among the results, which cannot be read.
std::vector<std::filesystem::path> find_scenario_files(const std::vector<std::string>& paths);

}  // namespace fp8lab
