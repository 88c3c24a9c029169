#pragma once

#include <string>
#include <vector>

#include "harness/results/json_codec.h"
#include "harness/results/reports.h"
#include "harness/results/results.h"

// The documents of a run as strings, made from records in memory.
namespace fp8lab {

inline RecordList record_list(const std::vector<CellRecord>& records) {
  RecordList out;
  for (const CellRecord& record : records) out.heads.push_back(head_of(record));
  out.read = [records](std::size_t i) { return records.at(i); };
  return out;
}

inline std::string junit_xml(const std::vector<CellRecord>& records, const RunSummary& run) {
  std::string out;
  write_junit_xml(record_list(records), run, [&](std::string_view text) { out += text; });
  return out;
}

inline std::string summary_markdown(const std::vector<CellRecord>& records, const RunSummary& run) {
  std::string out;
  write_summary_markdown(record_list(records), run, [&](std::string_view text) { out += text; });
  return out;
}

inline std::string results_json(const std::vector<CellRecord>& records, const std::string& environment_json,
                                bool complete) {
  std::string out;
  write_results_json(
      records.size(), [&](std::size_t i) { return record_to_json(records[i]); }, environment_json,
      {.date = "", .environment = "", .complete = complete, .planned = records.size(), .seconds = 0},
      [&](std::string_view text) { out += text; });
  return out;
}

}  // namespace fp8lab
