#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>

#include "harness/cell/escape.h"
#include "harness/cell/keys.h"
#include "harness/cell/sharding_keys.h"
#include "harness/cell/spelling.h"
#include "harness/cell/units.h"

namespace fp8lab {

std::string to_text(const Value& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return std::to_string(*integer);
  if (const auto* real = std::get_if<double>(&value)) return shortest(*real);
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  return "";
}

Value word_value(std::string_view word) {
  if (word == "true" || word == "false") return word == "true";
  return std::string(word);
}

std::optional<std::int64_t> integer(const std::string& text) {
  const std::size_t sign = text.starts_with('-') ? 1 : 0;
  if (text.size() > sign + 1 && text[sign] == '0')
    return std::nullopt;  // some YAML readers read 010 as 8, others as 10
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<double> decimal_number(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<std::int64_t> memory_size(const std::string& text) {
  const std::size_t end = std::min(text.find_first_not_of("0123456789.eE+-"), text.size());
  const auto number = decimal_number(text.substr(0, end));
  const std::string unit = text.substr(std::min(text.find_first_not_of(' ', end), text.size()));
  const auto factor = in_base_units(unit.empty() ? "B" : unit, "B");
  if (!number || !factor) return std::nullopt;
  if (unit.empty() && !integer(text)) return std::nullopt;
  const double bytes = *number * *factor;
  if (bytes != 0 && !(bytes >= static_cast<double>(kSmallestSize) && bytes <= 0x1p53)) return std::nullopt;
  return static_cast<std::int64_t>(bytes);
}

std::string expected_memory_size() {
  return fmt::format("a size of at least 1 MiB with its unit (80GiB; {})", listed(units_of("B")));
}

std::optional<Value> value_of(const Key& key, const std::string& text, const Vocabulary& vocabulary) {
  switch (key.type) {
    case KeyType::kSwitch:
      if (text == "true" || text == "false") return Value{text == "true"};
      return std::nullopt;
    case KeyType::kInteger: {
      const auto value = key.is_size ? memory_size(text) : integer(text);
      if (!value || static_cast<double>(*value) < key.low || static_cast<double>(*value) > key.high)
        return std::nullopt;
      return Value{*value};
    }
    case KeyType::kNumber: {
      const auto value = decimal_number(text);
      if (!value || *value < key.low || *value > key.high) return std::nullopt;
      return Value{*value};
    }
    case KeyType::kWord: {
      const std::vector<std::string> allowed = key.words(vocabulary);
      if (std::find(allowed.begin(), allowed.end(), text) == allowed.end()) return std::nullopt;
      return word_value(text);
    }
    case KeyType::kMesh:
      if (!parse_mesh(text)) return std::nullopt;
      return Value{text};
    case KeyType::kText:
    case KeyType::kFile:
      if (text.empty() || printable(text) != text) return std::nullopt;
      return Value{text};
  }
  return std::nullopt;
}

std::string expected_of(const Key& key, const Vocabulary& vocabulary) {
  switch (key.type) {
    case KeyType::kSwitch: return "true or false";
    case KeyType::kInteger:
      if (key.is_size) return expected_memory_size() + ", or 0";
      return fmt::format("an integer from {:.0f} to {:.0f}", key.low, key.high);
    case KeyType::kNumber: return fmt::format("a number from {} to {}", shortest(key.low), shortest(key.high));
    case KeyType::kWord: return "one of " + listed(key.words(vocabulary));
    case KeyType::kMesh: return "shards (4) or replicas x shards (2x4)";
    case KeyType::kText:
      return key.section() == "versions" ? "a release (2.14.1) or a folder (./TransformerEngine)" : "text";
    case KeyType::kFile: return key.path == "script" ? "a file's path (train.py)" : "a file's path (corpora/prose.txt)";
  }
  return "";
}

}  // namespace fp8lab
