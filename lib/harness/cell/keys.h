#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "harness/cell/cell.h"
#include "harness/cell/vocabulary.h"

// Every key of a scenario that sets a field of a cell, in one table. Parsing, axes, conditions, the cell's own JSON,
// the nearest spelling in messages and the key list of the JSON Schema all come from it; a new key is a new row.
namespace fp8lab {

/// A key's value; empty means left out.
using Value = std::variant<std::monostate, bool, std::int64_t, double, std::string>;

/// As written in ids and conditions: "true", "2048", "0.1", "mxfp8".
std::string to_text(const Value& value);

enum class KeyType { kSwitch, kInteger, kNumber, kWord, kMesh };

struct Key {
  std::string_view path;  ///< "training.recipe"; its last part alone also names it, on an axis
  KeyType type;
  std::string_view meaning;
  double low, high;  ///< bounds of kInteger and kNumber, both allowed
  std::vector<std::string> fixed_words;
  std::vector<std::string> (*table_words)(const Vocabulary&);  ///< instead of fixed_words: rows of a lower room's table
  void (*set)(CellConfig&, const Value&);  ///< the value holds the alternative that belongs to `type`
  Value (*get)(const CellConfig&);

  /// What a kWord may be.
  std::vector<std::string> words(const Vocabulary& vocabulary) const;

  std::string_view section() const;  ///< "training", or "" for a top-level key
  std::string_view last() const;     ///< "recipe"
};

std::span<const Key> keys();

/// By full path or by last part; nullptr for no key.
const Key* find_key(std::string_view name);

/// The value that `text` (unquoted YAML) spells for `key`, or nothing when it spells none that the key may have.
std::optional<Value> value_of(const Key& key, const std::string& text, const Vocabulary& vocabulary);

/// A full decimal number, without leading zeros, exponents or anything else around it.
std::optional<std::int64_t> integer(const std::string& text);
/// A finite decimal number.
std::optional<double> decimal_number(const std::string& text);

/// "an integer from 1 to 1048576", "one of gpt or llama", for messages.
std::string expected_of(const Key& key, const Vocabulary& vocabulary);

/// Names that an axis may have: every last part.
std::vector<std::string> axis_names();

}  // namespace fp8lab
