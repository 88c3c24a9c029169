#pragma once

#include <vector>

#include "harness/scenario/scenario_reader.h"
#include "harness/scenario/yaml_tree.h"

namespace fp8lab {

/// The scenarios of a file: `root` without its key `variants`, and then one for each variant, in the file's order. A
/// variant is a mapping of top-level keys. Its scenario is the file's with these keys in place of the file's, and is
/// called NAME-VARIANT. A key without a value (`include:`) removes the file's, and the file's claims are about its own
/// sizes: a variant has none of them. Mistakes of `variants` itself are added
/// to `mistakes`, and those variants are left out; the scenarios are not checked.
std::vector<YamlNode> scenarios_of_file(const NodeReader& reader, const YamlNode& root, Mistakes& mistakes);

}  // namespace fp8lab
