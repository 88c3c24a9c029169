#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "harness/results/record.h"

// JSON of the harness's own structures: json_encode.cpp writes it, json_decode.cpp reads it. No header includes the
// JSON library.
namespace fp8lab {

/// A cell for a child process: every key of the table of keys.h, and the cell's names.
std::string cell_to_json(const CellConfig& cell);
/// Reads it back. Throws Error for anything that cell_to_json() did not write.
CellConfig cell_from_json(const std::string& text);

/// An arm's result from a child process: a line of JSON, then the timeline document. NaN and infinities are preserved,
/// so that gates see them.
std::string arm_to_json(const ArmResult& result);
/// Reads it back. Throws Error for anything that arm_to_json() did not write.
ArmResult arm_from_json(std::string text);

/// One line of results.jsonl, without the newline. A figure that is not finite is null with a reason; bytes that are
/// not UTF-8 are replaced; timelines are omitted, as they are files of their own.
std::string record_to_json(const CellRecord& record);
/// Reads it back. Throws Error for anything that record_to_json() did not write.
CellRecord record_from_json(const std::string& text);

/// A run as read from results.json.
struct StoredRun {
  bool complete = true;          ///< false: the run stopped before its last cell
  std::string environment_json;  ///< the machine and the program of the run
  std::vector<CellRecord> cells;
};

/// A list of texts.
std::string texts_to_json(const std::vector<std::string>& texts);

/// The value of key `schema` in results.json.
inline constexpr const char* kResultsSchema = "fp8lab.results/1";

/// Reads results.json. Throws Error for anything that write_results_json() did not write.
StoredRun run_from_json(const std::string& text);

/// A hash, in sixteen hex digits, over the cell, its expectations, its claims and its time limit.
std::string hash_of(const PlannedCell& cell);

}  // namespace fp8lab
