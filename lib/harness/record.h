#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/scenario.h"
#include "harness/verdict.h"

namespace fp8lab {

/// A claim beside what was predicted and measured, both in the metric's own unit.
struct ClaimRecord {
  Claim claim;
  std::optional<double> predicted;
  std::optional<double> measured;
};

/// A finished cell: one line of results.jsonl, one entry of results.json.
struct CellRecord {
  CellConfig config;
  std::string file;  ///< the scenario's
  int line = 0;      ///< where the scenario begins in its file; 0: unknown
  std::string title;
  std::vector<std::string> upstream;
  Verdict verdict = Verdict::kInconclusive;
  std::string reason;
  double seconds = 0;
  ArmResults arms;
  std::vector<Gate> gates;
  std::vector<ClaimRecord> claims;
  std::string hash;  ///< of everything that the verdict depends on except the program itself
};

}  // namespace fp8lab
