#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/cell/cell.h"
#include "harness/scenario/scenario.h"

// From what the arms of a cell measured to its verdict, and from verdicts to the exit code. Pure functions.
namespace fp8lab {

enum class Verdict {
  kConfirmed,      ///< fix cell: the defect shows before and is gone after
  kNotReproduced,  ///< fix cell: an expectation of the before arm, of the difference or of the BF16 control fails
  kNotFixed,       ///< fix cell: an expectation of the after arm fails
  kRegressed,      ///< fix cell: after is worse than before in an exact metric that the scenario speaks of
  kPass,           ///< plain cell: every expectation holds
  kFail,           ///< plain cell: an expectation fails
  kInconclusive,   ///< a figure is absent, or a fix cell has no expectation of one of its sides
  kSkipped,        ///< not run, with a reason
  kCrashed,        ///< an arm ended otherwise than by a result, and no expectation says so
  kTimeout,        ///< an arm took longer than it may, and no expectation says so
};

inline constexpr std::array kVerdicts{
    Verdict::kConfirmed, Verdict::kNotReproduced, Verdict::kNotFixed, Verdict::kRegressed, Verdict::kPass,
    Verdict::kFail,      Verdict::kInconclusive,  Verdict::kSkipped,  Verdict::kCrashed,   Verdict::kTimeout};

std::string_view name(Verdict verdict);
std::optional<Verdict> parse_verdict(std::string_view text);
/// True for confirmed, pass and skipped: nothing to look at.
bool is_good(Verdict verdict);

/// An expectation with what was observed.
struct Gate {
  std::string text;
  Side side = Side::kAfter;
  std::string metric;              ///< empty for an expectation of how an arm ends
  std::optional<bool> pass;        ///< absent: undecided, because a figure is absent
  std::optional<double> observed;  ///< absent: see detail
  std::optional<double> limit;     ///< of kWithin the bound that was missed, or the lower one
  std::string detail;              ///< why undecided, or how the arm ended
  int line = 0;                    ///< of the expectation in its scenario's file; 0: unknown
};

struct Judgement {
  Verdict verdict = Verdict::kInconclusive;
  std::string reason;  ///< one line; empty for confirmed and pass
  std::vector<Gate> gates;
};

using ArmResults = std::map<Arm, ArmResult>;

/// Arms that a cell runs: before and after for a fix, after alone otherwise; and bf16 where memory or parity is
/// measured and the recipe quantizes, or where an expectation or a claim names it.
std::vector<Arm> arms_of(const PlannedCell& cell, const Vocabulary& vocabulary);

/// The first that applies, in this order: an arm that ended unexpectedly (timeout before crashed), regressed,
/// not_fixed, not_reproduced (plain: fail), inconclusive, confirmed (plain: pass).
Judgement judge(const CellConfig& cell, const ArmResults& arms, const std::vector<Expectation>& expectations);

/// The figure of `metric` on a side; kDifference needs both arms. NaN stays NaN. Absent: `why` says why.
struct Figure {
  std::optional<double> value;
  std::string why;
};
Figure measured(const ArmResults& arms, Side side, const std::string& metric);
Figure predicted(const ArmResults& arms, Side side, const std::string& metric);

/// What a run came to, for its exit code.
struct RunOutcome {
  std::vector<Verdict> verdicts;
  bool bad_usage = false;   ///< bad configuration, bad usage, or results that could not be written
  int interrupted_by = 0;   ///< signal number, or 0
  bool ranks_lost = false;  ///< a process that a launcher had started died, and took the run with it
};

/// 2 bad usage; else 128 + signal when interrupted; else, the worst first: 4 a crash; 124 a timeout; 1 a gate failed;
/// 3 something inconclusive; 5 nothing ran (no cell, or all skipped); 0 all good.
int exit_code(const RunOutcome& outcome);

/// "a gate failed" and so on, for the last line of a run.
std::string_view exit_code_meaning(int code);

}  // namespace fp8lab
