#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "harness/results/json_codec.h"

// Comparison of two runs of the same scenarios, cell by cell. Pure functions, except load_run().
namespace fp8lab {

enum class ChangeKind {
  kVanished,   ///< the cell ran in the baseline, and now is absent or skipped
  kAppeared,   ///< the cell runs now, and was absent or skipped in the baseline
  kVerdict,    ///< the verdict differs
  kArm,        ///< an arm's process ended with another status, or did not run; its figures are not compared
  kFigure,     ///< the value of a metric differs
  kNoFigure,   ///< a metric that had a value has none, or the reverse
  kRedefined,  ///< the cell of this id has other keys; its figures are shown and not gated
  kGates,      ///< the cell has other gates, so that its verdict may differ without a figure that does
};

inline constexpr std::array kChangeKinds{ChangeKind::kVanished,  ChangeKind::kAppeared, ChangeKind::kVerdict,
                                         ChangeKind::kArm,       ChangeKind::kFigure,   ChangeKind::kNoFigure,
                                         ChangeKind::kRedefined, ChangeKind::kGates};

/// kNeutral: a difference that is neither worse nor better, such as in a share of a sum that did not change.
enum class Direction { kWorse, kBetter, kNeutral };
inline constexpr std::array kDirections{Direction::kWorse, Direction::kBetter, Direction::kNeutral};

std::string_view name(ChangeKind kind);
std::string_view name(Direction direction);

/// A difference of the newer run from the older one, the baseline.
struct Change {
  ChangeKind kind = ChangeKind::kFigure;
  Direction direction = Direction::kNeutral;
  bool allowed = false;           ///< the caller allowed the cell to become worse, or an entry accepts the change
  bool gated = true;              ///< false: a figure of a redefined cell, which is neither worse nor better
  std::string id;                 ///< id of the cell
  std::string file;               ///< the scenario's, in the newer run; for a vanished cell, in the baseline
  int line = 0;                   ///< in the file: the gate on this metric, else the scenario's beginning; 0: unknown
  std::string arm, metric, unit;  ///< set for kFigure and kNoFigure
  std::optional<double> was, is;  ///< set for kFigure and kNoFigure
  std::string was_text, is_text;  ///< the verdicts, the statuses of an arm, the keys or the gates that differ
  std::string reason;             ///< the newer run's reason for its verdict or missing figure, if it has one

  bool is_regression() const { return direction == Direction::kWorse && !allowed; }
};

/// What changed in a cell, in one line: the largest relative change, and the figures from which the others follow.
struct Finding {
  Direction direction = Direction::kNeutral;  ///< kNeutral: a time, which is not gated
  bool allowed = false;
  std::string id;
  std::string arm, metric, unit;  ///< "": the cell or an arm ended in another way, or it is a time
  std::optional<double> was, is;  ///< figures of the metric
  std::string phase;              ///< "after backward"; "" if the metric is not about memory
  std::string holder;             ///< "context of layers[*].attention: q, k, v"; "" if unknown
  std::int64_t holder_bytes = 0;  ///< by which the holder grew
  std::vector<std::string> also;  ///< other metrics that changed in the same direction, causes first
  std::string since;              ///< "run 3, commit 0123456789ab (not at ...)"; "" if unknown
  std::string text;               ///< in words, without the cell
  double severity = 0;            ///< larger is worse

  bool is_regression() const { return direction == Direction::kWorse && !allowed; }
};

/// A measured time in both runs. It is reported but never judged, because one run of each does not show the
/// noise.
struct Timing {
  std::string id, arm, metric, unit;
  double was = 0, is = 0;
};

/// A value of the environment that differs. `key` is a path: "cpu.model".
struct EnvironmentChange {
  std::string key, was, is;  ///< "": the run has no such value
};

struct RunComparison {
  std::size_t cells_compared = 0;   ///< cells that ran in both runs with the same keys
  std::size_t cells_redefined = 0;  ///< cells that ran in both runs with different keys
  std::vector<Change> changes;      ///< in the order of the newer run's cells; vanished cells last
  std::vector<Finding> findings;    ///< at most one for each cell, the worst first
  std::vector<Timing> timings;
  std::vector<EnvironmentChange> environment;
  bool baseline_complete = true, complete = true;

  std::size_t count(Direction direction) const;
  std::size_t regressions() const;
  /// 1: there is a regression. 5: there is none, because the runs have no cell in common: none was compared or
  /// redefined, and none vanished with the caller's permission. 0: otherwise.
  int exit_code() const;
};

/// Compares two runs. Worse are: a vanished cell; a verdict further from good; and, in any arm, an exact metric
/// (metrics.h) that is worse by more than its slack or has lost its value. Other differences are not worse: a new cell,
/// a timing, a family of shares (memory.by_holder.*), and every figure and verdict of a redefined cell, which is
/// another cell under an old name: the gates of its own run judge it. `allowed(id)`, if given, is true for cells that
/// may become worse.
RunComparison compare_runs(const StoredRun& baseline, const StoredRun& run,
                           const std::function<bool(const std::string& id)>& allowed = {});

/// The finding of a cell in both runs, one of which may lack it, with its changes; nothing if it got neither worse nor
/// better, and no time differs beyond its spread.
std::optional<Finding> finding_of(const CellRecord* was, const CellRecord* is, std::span<const Change> changes);

/// Compares the last of two or more runs with the first; findings say since which run they are there.
RunComparison compare_series(const std::vector<StoredRun>& runs,
                             const std::function<bool(const std::string& id)>& allowed = {});

/// "0123456789ab, modified": the commit of the program that made the run; "" if unknown.
std::string commit_of(const StoredRun& run);

/// The change in words, without the cell.
std::string text_of(const Change& change);

/// The comparison for people: sections of lines, the worst first; the last line is the outcome.
std::string comparison_text(const RunComparison& comparison);
/// The findings as a Markdown table, and the outcome.
std::string comparison_markdown(const RunComparison& comparison);
inline constexpr const char* kComparisonSchema = "fp8lab.comparison/1";
/// The comparison as `fp8lab schema comparison` describes it.
std::string comparison_json(const RunComparison& comparison);

/// Reads a results.json, that file compressed by gzip, or the results.json of a directory that a run wrote. Throws
/// Error, which names the file and what to pass instead.
StoredRun load_run(const std::string& path);

}  // namespace fp8lab
