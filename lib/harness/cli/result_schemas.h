#pragma once

#include <string>

// The JSON Schemas of the documents that the program writes. Their words come from the tables of the rooms that write
// them.
namespace fp8lab {

/// "fp8lab.results/1": results.json, and in $defs/cell a line of results.jsonl.
std::string results_schema();
/// "fp8lab.comparison/1": what `compare --json` prints.
std::string comparison_schema();

}  // namespace fp8lab
