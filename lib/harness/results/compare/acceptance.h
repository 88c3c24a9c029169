#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "harness/results/compare/compare.h"

// The reviewed file of changes that a comparison accepts, each until a date and for a reason:
//
//   [[accept]]
//   cells = "attention.*device=cpu"   # regular expression on the ids of cells
//   metric = "memory.peak_bytes"
//   at_most = 1048576                 # limit for the newer run, in the metric's unit; at_least if more is better
//   expires = 2027-03-31              # the last day on which it counts
//   why = "#123: the cache is kept over two steps"
//
//   [[accept]]
//   cells = "^mixtral/"
//   kind = "redefined"                # in place of a metric and its limit: every change of this kind
//   expires = 2027-03-31
//   why = "#125: 8 experts instead of 4"
//
// Kinds are vanished, verdict, arm and no_figure; and redefined and gates, of which a run warns until they are
// accepted.
namespace fp8lab {

/// An entry of the file.
struct Acceptance {
  std::string place;  ///< "FILE: entry 1"
  std::function<bool(const std::string& id)> cells;
  ChangeKind kind = ChangeKind::kFigure;
  std::string metric;                ///< for kFigure
  double at_least = 0, at_most = 0;  ///< the limits of kFigure, of which one is infinite
  std::string expires;               ///< ISO 8601
  std::string why;

  bool covers(const Change& change) const;
};

/// The entries of a file. Throws Error, which names file and entry, for the first mistake.
std::vector<Acceptance> read_acceptances(const std::filesystem::path& file);

struct AcceptedChange {
  std::string id, text;      ///< id and text of the change
  std::string expires, why;  ///< keys of the entry
};

struct Accepted {
  std::vector<AcceptedChange> changes;
  std::vector<std::string> warnings;  ///< for entries that have expired or accept nothing
};

/// Allows the changes that an entry covers on the day `today`, which are then no regressions.
Accepted accept(std::span<const Acceptance> entries, RunComparison& comparison, const std::string& today);

}  // namespace fp8lab
