#pragma once

#include <string>

// JSON Schemas, made from the tables that readers and writers of the documents use.
namespace fp8lab {

struct Vocabulary;

/// "fp8lab.scenario/1": the schema of a scenario file, with the words of `vocabulary`.
std::string scenario_schema(const Vocabulary& vocabulary);
/// "fp8lab.results/1": the schema of results.json; its $defs/cell is the schema of a line of results.jsonl.
std::string results_schema();
/// "fp8lab.comparison/1": the schema of the output of `compare --json`.
std::string comparison_schema();

}  // namespace fp8lab
