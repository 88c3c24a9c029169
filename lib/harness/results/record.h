#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "harness/results/effect.h"
#include "harness/results/verdict.h"
#include "harness/scenario/scenario.h"

namespace fp8lab {

/// A claim with the predicted and the measured figure, both in the metric's unit.
struct ClaimRecord {
  Claim claim;
  std::optional<double> predicted;
  std::optional<double> measured;
};

/// A finished cell: one line of results.jsonl, one entry of results.json.
struct CellRecord {
  CellConfig config;
  std::string file;  ///< the scenario's
  int line = 0;      ///< at which the scenario begins in its file; 0: unknown
  std::string title;
  std::vector<std::string> upstream;
  bool counterfactual = false;  ///< no upstream release was ever without the cell's fix
  Verdict verdict = Verdict::kInconclusive;
  std::string reason;
  double seconds = 0;
  ArmResults arms;
  std::vector<Gate> gates;
  std::vector<ClaimRecord> claims;
  std::map<Arm, std::string> timelines;  ///< paths below the run's directory
  std::optional<Effect> effect;          ///< what a confirmed cell shows; absent in records of earlier versions
  std::string text_checksum;             ///< PlannedCell::text_checksum
  std::string hash;  ///< over everything on which the verdict depends, except the program; with a script's own text
};

/// The line of the first gate that does not hold, or else of the scenario, as when an arm's end is the failure; 0:
/// unknown.
inline int line_of_failure(const CellRecord& record) {
  if (record.verdict == Verdict::kCrashed || record.verdict == Verdict::kTimeout) return record.line;
  for (const Gate& gate : record.gates)
    if (gate.pass != true && gate.line > 0) return gate.line;
  return record.line;
}

/// The finished cells of a run, in the order of its plan. A run may have more records than fit in memory, so each
/// record is read when it is needed; memory holds only a Head of each, for counting.
struct RecordList {
  struct Head {
    std::string id;
    std::string scenario;
    std::string fix;
    Verdict verdict = Verdict::kInconclusive;
    double seconds = 0;
    bool undecided_control = false;
    bool control = false;          ///< the cell tests the measurement
    bool has_before = false;       ///< the cell has a before arm
    std::string measured_on;       ///< "meta", "cuda", "transformer_engine on cuda"
    std::set<std::string> groups;  ///< groups of the metrics that its gates name: "memory"
    double peak_bytes = 0;         ///< peak of the after arm; 0: not measured
    std::optional<Effect> effect;
  };
  std::vector<Head> heads;
  std::function<CellRecord(std::size_t)> read;  ///< the record of heads[i]

  std::size_t size() const { return heads.size(); }
};

RecordList::Head head_of(const CellRecord& record);

inline std::vector<Verdict> verdicts_of(const RecordList& records) {
  std::vector<Verdict> verdicts;
  for (const RecordList::Head& head : records.heads) verdicts.push_back(head.verdict);
  return verdicts;
}

}  // namespace fp8lab
