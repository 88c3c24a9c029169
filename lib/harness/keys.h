#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "harness/cell.h"
#include "harness/vocabulary.h"

// Every key of a scenario that sets a field of a cell, in one table. Parsing, axes, conditions, the cell's own JSON, the
// nearest spelling in messages and the key list of the JSON Schema all come from it; a new key is a new row.
namespace fp8lab {

/// A key's value; empty means left out.
using Value = std::variant<std::monostate, bool, std::int64_t, double, std::string>;

/// As written in ids and conditions: "true", "2048", "0.1", "mxfp8".
std::string to_text(const Value& value);

enum class KeyType { kSwitch, kWhole, kNumber, kWord };

struct Key {
  std::string_view path;  ///< "training.recipe"; its last part alone also names it, on an axis
  KeyType type;
  double low, high;       ///< bounds of kWhole and kNumber, both allowed
  std::vector<std::string> (*words)(const Vocabulary&);  ///< what a kWord may be
  std::string_view meaning;
  void (*set)(CellConfig&, const Value&);  ///< `value` holds the alternative of `type`
  Value (*get)(const CellConfig&);

  std::string_view section() const;  ///< "training", or "" for a top-level key
  std::string_view last() const;     ///< "recipe"
};

std::span<const Key> keys();

/// By full path or by last part; nullptr for no key.
const Key* find_key(std::string_view name);

/// "a whole number from 1 to 1048576", "one of gpt or llama", for messages.
std::string expected_of(const Key& key, const Vocabulary& vocabulary);

/// Names that an axis may have: every last part.
std::vector<std::string> axis_names();

}  // namespace fp8lab
