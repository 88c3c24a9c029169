#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/cell/cell.h"
#include "harness/results/ratio.h"
#include "harness/scenario/scenario.h"

// The verdict of a cell from the results of its arms, and the exit code from verdicts. Pure functions.
namespace fp8lab {

enum class Verdict {
  kConfirmed,      ///< fix cell: every expectation holds, and before and after differ in a figure that one names
  kUnaffected,     ///< fix cell: every expectation holds, and no such figure differs: the fix changes nothing here
  kNotReproduced,  ///< fix cell: an expectation of the before arm, of the difference or of the BF16 control fails
  kNotFixed,       ///< fix cell: an expectation of the after arm fails
  kRegressed,      ///< fix cell: after is worse than before in an exact metric of an expectation, and no expectation
                   ///< that holds states the figure of after, or its difference from before, by `equals`
  kPass,           ///< plain cell: every expectation holds
  kFail,           ///< plain cell: an expectation fails
  kInconclusive,   ///< a figure is absent, or a fix cell has no expectation of one of its sides
  kSkipped,        ///< not run, with a reason
  kCrashed,        ///< an arm's status is neither ok nor timeout, and no expectation names it
  kTimeout,        ///< an arm exceeded its time limit, and no expectation names that
};

inline constexpr std::array kVerdicts{Verdict::kConfirmed, Verdict::kUnaffected,   Verdict::kNotReproduced,
                                      Verdict::kNotFixed,  Verdict::kRegressed,    Verdict::kPass,
                                      Verdict::kFail,      Verdict::kInconclusive, Verdict::kSkipped,
                                      Verdict::kCrashed,   Verdict::kTimeout};

std::string_view name(Verdict verdict);
std::optional<Verdict> parse_verdict(std::string_view text);
/// True for confirmed, unaffected, pass and skipped, which need no attention.
bool is_good(Verdict verdict);

/// An expectation with the observed figure.
struct Gate {
  std::string text;
  Side side = Side::kAfter;
  std::string metric;              ///< empty for an expectation on the end of an arm
  std::optional<bool> pass;        ///< absent: undecided, because a figure is absent
  std::optional<double> observed;  ///< absent: see detail
  std::optional<double> limit;     ///< for kWithin the bound that was missed, or else the lower bound
  std::string detail;              ///< why undecided, or how the arm ended
  int line = 0;                    ///< line of the expectation in the scenario's file; 0: unknown
  /// Of a timed figure that is compared with another arm's, over several processes.
  std::optional<Ratio> ratio = {};
};

/// True for a control cell whose figures were all measured, and which the machine was too noisy to decide: it is
/// counted, and nothing failed.
bool is_undecided_control(std::string_view id, Verdict verdict, const std::vector<Gate>& gates);

struct Judgement {
  Verdict verdict = Verdict::kInconclusive;
  std::string reason;  ///< one line; empty for confirmed, unaffected and pass
  std::vector<Gate> gates;
};

/// True if the expectation compares a figure that differs from run to run with another arm's, such as a time.
bool is_timed_ratio(const Expectation& expectation);
/// True if the gate is on such a figure, and the processes so far leave it open which way it goes.
bool needs_more_processes(const Expectation& expectation, const Gate& gate);

using ArmResults = std::map<Arm, ArmResult>;

/// Judges a cell. The verdict is the first that applies, in this order: timeout, crashed, regressed, not_fixed,
/// not_reproduced (plain cell: fail), inconclusive, confirmed or unaffected (plain cell: pass).
Judgement judge(const CellConfig& cell, const ArmResults& arms, const std::vector<Expectation>& expectations);

struct Figure {
  std::optional<double> value;
  std::string why;  ///< why `value` is absent
};
/// The measured or predicted figure of `metric` on a side. kDifference needs both arms. NaN stays NaN.
Figure measured(const ArmResults& arms, Side side, const std::string& metric);
Figure predicted(const ArmResults& arms, Side side, const std::string& metric);

/// The outcome of a run, from which its exit code follows.
struct RunOutcome {
  std::vector<Verdict> verdicts;
  bool bad_usage = false;   ///< bad configuration, bad usage, or results that could not be written
  int interrupted_by = 0;   ///< signal number, or 0
  bool ranks_lost = false;  ///< a process that a launcher started has died, which ended the run
  bool fix_unseen = false;  ///< a scenario whose every cell was judged shows no difference between before and after
};

/// The exit code, the first that applies: 2: bad usage; 128 + signal: interrupted; 4: a crash; 124: a timeout; 1: a
/// gate failed, or after is worse than before; 3: an inconclusive cell, or a fix that no cell shows; 5: nothing ran (no
/// cell, or all skipped); 0: every cell that ran came out as its scenario expects.
int exit_code(const RunOutcome& outcome);

/// What an exit code means, in words, without the cells of a run.
std::string_view exit_code_meaning(int code);

}  // namespace fp8lab
