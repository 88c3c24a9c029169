#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "harness/results/record.h"

// JSON of the harness's own structures. The JSON library stays behind json_codec.cpp and a few other .cpp files.
namespace fp8lab {

/// What a child reads: every key of the table of keys.h, and the cell's names.
std::string cell_to_json(const CellConfig& cell);
/// Throws Error for anything that cell_to_json did not write.
CellConfig cell_from_json(const std::string& text);

/// What a child writes: a line of JSON, then the timeline as it is. Exact: NaN and infinities survive, so that the
/// judge sees them.
std::string arm_to_json(const ArmResult& result);
/// Throws Error for anything that arm_to_json did not write.
ArmResult arm_from_json(std::string text);

/// One line of results.jsonl, without the newline. A figure that is not finite is null with a reason; bytes that are
/// not UTF-8 are replaced; timelines are left out (they are files of their own).
std::string record_to_json(const CellRecord& record);
/// Throws Error for anything that record_to_json did not write.
CellRecord record_from_json(const std::string& text);

/// results.json as it was read back.
struct StoredRun {
  bool complete = true;          ///< false: stopped before its last cell
  std::string environment_json;  ///< of the machine and the program that ran
  std::vector<CellRecord> cells;
};

/// The value of key `schema` in results.json.
inline constexpr const char* kResultsSchema = "fp8lab.results/1";

/// Throws Error for anything that write_results_json() did not write.
StoredRun run_from_json(const std::string& text);

/// Sixteen hex digits over the cell, its expectations, its claims and its time limit.
std::string hash_of(const PlannedCell& cell);

}  // namespace fp8lab
