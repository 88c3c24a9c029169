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

// The table of the scenario keys that set a field of a cell. Parsing, axes, conditions, the JSON of a cell, suggestions
// in messages and the JSON Schema all read this table; a new key is a new row.
namespace fp8lab {

/// A key's value; std::monostate: the key was left out.
using Value = std::variant<std::monostate, bool, std::int64_t, double, std::string>;

/// The value as ids and conditions write it: "true", "2048", "0.1", "mxfp8".
std::string to_text(const Value& value);
/// The value of a key that allows words: the words true and false are what YAML and JSON have without quotes.
Value word_value(std::string_view word);

enum class KeyType { kSwitch, kInteger, kNumber, kWord, kMesh, kText, kFile };

struct Key {
  std::string_view path;  ///< "training.recipe"; on an axis the last part is enough to name the key
  KeyType type;
  std::string_view meaning;
  double low, high;  ///< inclusive bounds of kInteger and kNumber
  bool is_size;      ///< kInteger: bytes, also with a unit (80GiB); 0, or at least kSmallestSize
  std::vector<std::string> fixed_words;
  std::vector<std::string> (*table_words)(const Vocabulary&);  ///< used instead of fixed_words if not null
  void (*set)(CellConfig&, const Value&);                      ///< the value must have the type that `type` names
  Value (*get)(const CellConfig&);
  void (*copy)(CellConfig& to, const CellConfig& from);

  /// The allowed words of a kWord.
  std::vector<std::string> words(const Vocabulary& vocabulary) const;

  std::string_view section() const;  ///< "training", or "" for a top-level key
  std::string_view last() const;     ///< "recipe"
};

std::span<const Key> keys();

/// A smaller size of memory is a number whose unit was forgotten.
inline constexpr std::int64_t kSmallestSize = 1 << 20;

/// The key with this full path or last part, or nullptr.
const Key* find_key(std::string_view name);

/// Parses `text` (unquoted YAML) as a value of `key`; nothing if the key does not allow it.
std::optional<Value> value_of(const Key& key, const std::string& text, const Vocabulary& vocabulary);

/// Parses a decimal integer without leading zeros, exponent or surrounding text; nothing for any other text.
std::optional<std::int64_t> integer(const std::string& text);
/// Parses a finite decimal number; nothing for any other text.
std::optional<double> decimal_number(const std::string& text);

/// Bytes of a size of memory, "80GiB", "1.5 GB" or a number without unit, rounded down. Nothing for other text, for
/// sizes that are not 0 and smaller than kSmallestSize, and for sizes larger than 2^53.
std::optional<std::int64_t> memory_size(const std::string& text);
/// What memory_size() takes, for messages.
std::string expected_memory_size();

/// What the key allows, for messages: "an integer from 1 to 1048576", "one of gpt or llama".
std::string expected_of(const Key& key, const Vocabulary& vocabulary);

/// The names that an axis may have: the last part of every key.
std::vector<std::string> axis_names();

}  // namespace fp8lab
