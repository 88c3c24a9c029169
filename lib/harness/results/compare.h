#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "harness/results/json_codec.h"

// Two runs of the same scenarios, cell by cell: what got better, worse, appeared, vanished. Pure functions.
namespace fp8lab {

enum class ChangeKind {
  kVanished,   ///< ran before; now not there or skipped
  kAppeared,   ///< the reverse
  kVerdict,    ///< another verdict
  kArm,        ///< an arm's process ended otherwise, or did not run; its figures are not compared
  kFigure,     ///< another value of a metric
  kNoFigure,   ///< a metric that had a value has none, or the reverse
  kRedefined,  ///< the scenario says something else under the same id; figures are not compared
};

inline constexpr std::array kChangeKinds{ChangeKind::kVanished, ChangeKind::kAppeared, ChangeKind::kVerdict,
                                         ChangeKind::kArm,      ChangeKind::kFigure,   ChangeKind::kNoFigure,
                                         ChangeKind::kRedefined};

/// kNeutral: another figure that counts for neither, such as a share of a sum that did not change.
enum class Direction { kWorse, kBetter, kNeutral };
inline constexpr std::array kDirections{Direction::kWorse, Direction::kBetter, Direction::kNeutral};

std::string_view name(ChangeKind kind);
std::string_view name(Direction direction);

/// A place where the newer run differs from the older one, which is the baseline.
struct Change {
  ChangeKind kind = ChangeKind::kFigure;
  Direction direction = Direction::kNeutral;
  bool allowed = false;           ///< worse, and the caller allowed it
  std::string id;                 ///< the cell's
  std::string file;               ///< the scenario's; where it vanished the older run's
  int line = 0;                   ///< of the file: the gate on this metric, else where the scenario begins; 0: unknown
  std::string arm, metric, unit;  ///< kFigure and kNoFigure
  std::optional<double> was, is;  ///< likewise
  std::string was_text, is_text;  ///< verdicts, how an arm ended, or the keys that a scenario set otherwise
  std::string reason;             ///< why a verdict or a missing figure, where the newer run says so

  bool is_regression() const { return direction == Direction::kWorse && !allowed; }
};

/// A clock's figure in both runs: reported, never judged, because one run of each says nothing about the noise.
struct Timing {
  std::string id, arm, metric, unit;
  double was = 0, is = 0;
};

/// A value of the environment that differs: "cpu.model".
struct EnvironmentChange {
  std::string key, was, is;  ///< "" where there is none
};

struct RunComparison {
  std::size_t cells_compared = 0;  ///< that ran in both, and are the same there
  std::vector<Change> changes;     ///< in the order of the newer run's cells; vanished ones last
  std::vector<Timing> timings;
  std::vector<EnvironmentChange> environment;
  bool baseline_complete = true, complete = true;

  std::size_t count(Direction direction) const;
  std::size_t regressions() const;
  /// 1 a regression; 5 none, and no cell ran in both runs that is the same there; 0 else.
  int exit_code() const;
};

/// Worse is: a cell that vanished, a verdict further from good, and in any arm an exact metric (metrics.h) that has
/// become worse by more than its slack, or has lost its value. Every other difference is not: a new cell, a timing, a
/// family of shares (memory.by_holder.*). `allowed`, where given, says of a cell's id that it may become worse.
RunComparison compare_runs(const StoredRun& baseline, const StoredRun& run,
                           const std::function<bool(const std::string& id)>& allowed = {});

/// For people: sections of lines, worst first; the last line says how it came out.
std::string comparison_text(const RunComparison& comparison);
inline constexpr const char* kComparisonSchema = "fp8lab.comparison/1";
/// As scenarios/schema/comparison.schema.json describes it.
std::string comparison_json(const RunComparison& comparison);

/// Reads results.json, or that of a directory that a run left behind. Throws Error that names the file and what to
/// give.
StoredRun load_run(const std::string& path);

}  // namespace fp8lab
