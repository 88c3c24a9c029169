#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/results/record.h"

// What a run established, in a few sentences: `findings` of results.json, the end of `run`, summary.md. (Findings of
// `compare`, which are differences between two runs, are in compare.h.)
namespace fp8lab {

/// What a run established about one fix over all its scenarios, about a scenario without a fix that needs attention, or
/// about all other cells without a fix.
struct RunFinding {
  std::string text;  ///< "release_attention_tensors: 589.5 MiB retained after backward -> 0, as predicted (9 of 9 ..."
  std::string kind;  ///< the name of an EffectKind, or "failed", "undecided", "held", "unseen"
  std::string fix;   ///< empty: of cells without a fix
  std::vector<std::string> scenarios;
  std::optional<Effect> effect;  ///< effect of `cell`
  double size = 0;               ///< orders findings of one kind: the size of the effect, or a number of cells
  bool shown = false;            ///< a cell shows the difference, or every cell holds
  std::string reason;            ///< why not `shown`
  std::size_t cells = 0;         ///< cells that show it
  std::size_t of = 0;            ///< cells of the finding that ran
  std::string cell;              ///< id of the cell whose figures these are; empty for "held"
};

/// The findings of a run, largest effect first: cells that failed; inconclusive cells; effects in the order of
/// is_larger(); cells without a fix that hold their expectations; fixes that no cell shows. Equal ones are in the order
/// of the run. Control cells count only if they failed.
std::vector<RunFinding> run_findings(const RecordList& records);

/// The findings as a list of JSON.
std::string findings_to_json(const std::vector<RunFinding>& findings);

/// `findings` as at most `most` lines (at least 3), each escaped for a terminal, at most 300 characters long: failed
/// and inconclusive first, then the largest effects, then the number of those that are left out.
std::vector<std::string> finding_lines(const std::vector<RunFinding>& findings, std::size_t most);

}  // namespace fp8lab
