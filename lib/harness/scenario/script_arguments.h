#pragma once

#include <string>

#include "harness/scenario/scenario_reader.h"

// Keys `arguments` and `patch` of a scenario whose subject is a script.
namespace fp8lab {

/// Reads the list, or the mapping of `before` and `after`, into `script`. A field is a name in braces, `{batch}`; two
/// braces stand for one. Throws ScenarioError for a field that names no key; text between other braces stays as it is.
void read_arguments(const NodeReader& reader, const YamlEntry& entry, ScriptConfig& script);

/// Reads the file of the after arm's diff, or the mapping of `before` and `after`.
void read_patch(const NodeReader& reader, const YamlEntry& entry, ScriptConfig& script);

/// A checksum of the script and its patches; "" if one of them cannot be read.
std::string checksum_of_files(const ScriptConfig& script);

/// Puts the cell's values of keys in place of the fields in the arguments of both arms.
void fill_arguments(CellConfig& cell);

}  // namespace fp8lab
