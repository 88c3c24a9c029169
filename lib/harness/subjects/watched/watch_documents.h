#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "harness/cell/cell.h"

// What the processes of a watched program left: a file of each (lib/subjects/fp8lab_subjects/watching/documents.py).
namespace fp8lab {

struct WatchFinding {
  std::string kind;  ///< "growth", "retained", "still", "not_finite"; "failed"
  std::string
      subject;  ///< what it is about: a holder, an instrument, or ""; findings of one kind and subject are the same one
  std::string text;
  double size = 0;         ///< if several findings are the same, the largest is shown
  std::vector<int> ranks;  ///< those that have it; the rank of `text` first
};

struct WatchedProcess {
  int pid = 0;
  int rank = 0;
  int world = 1;
  int on_this_host = 1;  ///< ranks of the program on this host
  int others = 0;      ///< further processes of this rank that ended steps; their findings count, their figures do not
  std::string state;   ///< started | running | ended | error
  std::string error;   ///< the exception that ended it
  std::string where;   ///< the place at which it stood still when it was last written; else ""
  std::string device;  ///< cpu | cuda
  std::string torch, python;
  int steps = 0;  ///< that have ended
  std::vector<std::string> guesses;
  std::vector<std::pair<std::string, std::string>> lines;  ///< topic, text
  std::vector<WatchFinding> findings;
  std::vector<WatchFinding> failed;  ///< instruments that raised an error; they stopped there
  std::string overhead;
  std::string
      trained;  ///< JSON of what `fp8lab plan` needs of its model (watching/trained_model.py); "": no step ended
  bool has_result = false;
  ArmResult result;
};

/// The processes of `folder` that imported PyTorch, one for each rank (the one with most steps, else
/// with the lowest pid), by rank. Throws Error,
/// which names the file, for a file that no process has written.
std::vector<WatchedProcess> read_watched(const std::filesystem::path& folder);

/// The process whose peak of memory is the largest, among those that ended a step; of equal ones, and if memory was not
/// measured, the lowest rank.
const WatchedProcess& worst_of(const std::vector<WatchedProcess>& processes);

/// The findings (`list`: &WatchedProcess::findings, or failed) of all processes, each once, with the ranks that have
/// it.
std::vector<WatchFinding> merged(const std::vector<WatchedProcess>& processes,
                                 std::vector<WatchFinding> WatchedProcess::* list);

}  // namespace fp8lab
