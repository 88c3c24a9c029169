#include "harness/cli/run/run_end.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "harness/cell/escape.h"
#include "harness/cell/spelling.h"

namespace fp8lab {
namespace {

struct Counts {
  std::size_t ran = 0, failed = 0, crashed = 0, late = 0, undecided = 0;
  std::vector<std::size_t> skipped;
};

Counts counts_in(const RecordList& records) {
  Counts out;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const Verdict verdict = records.heads[i].verdict;
    if (verdict == Verdict::kSkipped) {
      out.skipped.push_back(i);
      continue;
    }
    ++out.ran;
    out.crashed += verdict == Verdict::kCrashed;
    out.late += verdict == Verdict::kTimeout;
    out.undecided += verdict == Verdict::kInconclusive;
    out.failed += !is_good(verdict) && verdict != Verdict::kInconclusive;
  }
  return out;
}

std::string decided_by(int code, const Counts& counts) {
  const auto some = [&](std::size_t count, const char* one, const char* many) {
    return fmt::format("{} of {} {}", count, counted(counts.ran, "cell"), count == 1 ? one : many);
  };
  if (code == 0 && counts.undecided == 0)
    return counts.ran == 1 ? "the cell came out as its scenario expects"
                           : fmt::format("all {} cells{} came out as their scenarios expect", counts.ran,
                                         counts.skipped.empty() ? "" : " that ran");
  if (code == 0)  // control cells that the machine is too noisy to decide
    return fmt::format("{} came out as their scenarios expect", counted(counts.ran - counts.undecided, "cell"));
  if (code == 1 && counts.failed > 0)
    return some(counts.failed, "did not come out as its scenario expects",
                "did not come out as their scenarios expect");
  if (code == 3 && counts.undecided == 0) return "no cell of a scenario shows what its fix fixes";
  if (code == 3) return "no cell failed, and not every cell is decided";
  if (code == 4 && counts.crashed > 0)
    return some(counts.crashed, "ended early, and its scenario does not expect it",
                "ended early, and their scenarios do not expect it");
  if (code == 124) return some(counts.late, "took longer than its time limit", "took longer than their time limit");
  return std::string(exit_code_meaning(code));
}

/// "22 did not run: torch is not installed; no device cuda"
std::string not_run(const RecordList& records, const std::vector<std::size_t>& skipped) {
  constexpr std::size_t kMostReasons = 2;
  std::vector<std::string> reasons;
  std::size_t others = 0;
  std::set<std::string> seen;
  for (const std::size_t i : skipped) {
    const std::string reason = records.read(i).reason;
    if (!seen.insert(reason).second) continue;
    if (reasons.size() < kMostReasons)
      reasons.push_back(for_terminal(quotable(reason)));
    else
      ++others;
  }
  return fmt::format("; {} did not run: {}{}", skipped.size(), fmt::join(reasons, "; "),
                     others > 0 ? fmt::format("; {} more reasons", others) : "");
}

}  // namespace

std::string exit_words(int code, const RecordList& records) {
  const Counts counts = counts_in(records);
  std::string out = decided_by(code, counts);
  if (!counts.skipped.empty()) out += not_run(records, counts.skipped);
  if (counts.undecided > 0)
    out += fmt::format("; {} {} inconclusive", counts.undecided, counts.undecided == 1 ? "is" : "are");
  return out;
}

std::string end_of_run(const std::vector<RunFinding>& findings, const std::vector<std::string>& tail) {
  std::string out;
  const std::size_t room = std::max<std::size_t>(3, kMostEndLines - std::min(kMostEndLines, tail.size()));
  for (const std::string& line : finding_lines(findings, room)) out += line + "\n";
  for (const std::string& line : tail) out += line + "\n";
  return out;
}

}  // namespace fp8lab
