#pragma once

#include <string>
#include <utility>
#include <vector>

#include "harness/results/compare/compare.h"
#include "harness/results/results.h"

// Records of cells that tests of comparisons change.
namespace fp8lab::sample {

inline const std::string kPeak = "memory.peak_bytes";
inline const std::string kSqnr = "parity.output_sqnr_db";

inline CellRecord cell(const std::string& id, Verdict verdict = Verdict::kConfirmed) {
  CellRecord out;
  out.config.scenario = "sample";
  out.config.id = id;
  out.config.measure = {"memory"};
  out.file = "sample.yaml";
  out.line = 2;
  out.verdict = verdict;
  out.hash = "0011223344556677";
  for (const Arm arm : {Arm::kBefore, Arm::kAfter}) out.arms[arm].metrics[kPeak] = {1000, 1000, "B", ""};
  out.arms[Arm::kAfter].metrics["memory.by_holder.parameter"] = {400, {}, "B", ""};
  out.arms[Arm::kAfter].metrics[kSqnr] = {30, {}, "dB", ""};
  out.arms[Arm::kAfter].metrics["host.pre_forward_ns"] = {100, {}, "ns", ""};
  Gate gate;
  gate.side = Side::kAfter;
  gate.metric = kPeak;
  gate.pass = true;
  gate.line = 7;
  out.gates = {gate};
  return out;
}

inline StoredRun run_of(std::vector<CellRecord> cells) {
  return {true, R"({"cpu": {"model": "x"}})", std::move(cells)};
}

inline double& peak(CellRecord& record, Arm arm) { return *record.arms[arm].metrics[kPeak].value; }

}  // namespace fp8lab::sample
