#pragma once

#include <string>

// The JSON Schemas of the documents that the program writes, made from the tables that their writers use.
namespace fp8lab {

/// "fp8lab.results/1": the schema of results.json; its $defs/cell is the schema of a line of results.jsonl.
std::string results_schema();
/// "fp8lab.comparison/1": the schema of the output of `compare --json`.
std::string comparison_schema();

}  // namespace fp8lab
