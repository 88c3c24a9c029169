#pragma once

#include <string>
#include <vector>

#include "harness/cell/cell.h"
#include "harness/subjects/watched/watch_documents.h"
#include "harness/subjects/watched/watched_program.h"

// A training program under the instruments of fp8lab_subjects/watching, from its start to its figures. `fp8lab watch`
// and cells of subject script both run programs by this.
namespace fp8lab {

struct WatchSession {
  WatchedProgram program;            ///< its environment gets the variables of the instruments
  std::string instruments;           ///< the folder with the package fp8lab_subjects; FP8LAB_WORKER names another one
  std::vector<std::string> folders;  ///< come first on the program's PYTHONPATH, after the instruments
  std::vector<std::string> measure;  ///< groups of metrics: memory, traffic, host, parity
  std::string steps;                 ///< "3:10": the steps that are measured, the first is 1; empty: all
};

/// What the program did, from its start to its end.
struct Watched {
  WatchedEnd end;
  std::string failure;  ///< how the program failed; empty: it ended with status 0
  std::vector<WatchedProcess> processes;
  const WatchedProcess* worst = nullptr;  ///< in `processes`; null: no process measured anything
  std::vector<WatchFinding> findings;
  std::vector<WatchFinding> failed;  ///< what was not measured to its end
  std::string missing;               ///< "ranks 2, 3 of 4 left no figures"; empty: all left some
  std::size_t ranks = 1;             ///< number of the program's ranks on this host
  double seconds = 0;
};

/// Runs the program until it ends, and reads what its processes left. Throws Error if the instruments are absent, if
/// no process can be started, and for a file that is none of theirs.
Watched watch(const WatchSession& session);

/// True if every rank left figures and every instrument ran to the end: else it may have missed a finding.
bool is_complete(const Watched& watched);

/// The figures of the worst process, with its notes; figures of weights and of growth are the worst of all ranks.
/// Figures of an instrument that failed on a rank are absent.
/// `watched.worst` must not be null.
ArmResult figures_of(const Watched& watched);

/// The sentence for a program that left no figures.
std::string why_nothing(const Watched& watched);

/// " (rank 1 of 2)", " (every rank)"; "" if there is one.
std::string ranks_text(const WatchFinding& finding, const Watched& watched);

}  // namespace fp8lab
