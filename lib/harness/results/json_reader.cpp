#include "harness/results/json_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/check.h"
#include "harness/cell/escape.h"
#include "harness/cell/spelling.h"

namespace fp8lab {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostDepth = 64;
constexpr std::size_t kMostMembers = 10000;

/// Throws Error if `text` exceeds the limits. Runs before the library parses the text, and does not check whether it is
/// JSON.
void refuse_excess(std::string_view text) {
  std::vector<std::size_t> members;  // the number of members of each open object or list
  int line = 1;
  for (std::size_t i = 0; i < text.size(); ++i) {
    switch (text[i]) {
      case '\n': ++line; break;
      case '"':
        for (++i; i < text.size() && text[i] != '"'; ++i) i += text[i] == '\\';
        break;
      case '[':
      case '{':
        members.push_back(0);
        if (members.size() > kMostDepth) fail(fmt::format("line {}: nested deeper than {} levels", line, kMostDepth));
        break;
      case ']':
      case '}':
        if (!members.empty()) members.pop_back();
        break;
      case ':':
        if (!members.empty() && ++members.back() > kMostMembers)
          fail(fmt::format("line {}: an object of more than {} members", line, kMostMembers));
        break;
      default: break;
    }
  }
}

std::string described(const Json& json) {
  if (json.is_null()) return "null";
  if (json.is_string()) return fmt::format("the text \"{}\"", quotable(json.get_ref<const std::string&>()));
  if (json.is_array()) return fmt::format("a list of {}", json.size());
  if (json.is_object()) return fmt::format("an object of {}", counted(json.size(), "member"));
  return (json.is_number() ? "the number " : "") + quotable(json.dump());
}

bool is_plain(const std::string& key) {
  return !key.empty() && std::all_of(key.begin(), key.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

std::string step(const std::string& path, const std::string& key) {
  return path + (path.empty() ? "" : ".") + (is_plain(key) ? key : '"' + quotable(key) + '"');
}

struct Found {
  std::string path, cell;
};

/// Finds `wanted` below `json`. Readers keep no paths: only an error searches for the place.
std::optional<Found> search(const Json& json, const Json* wanted, Found here) {
  if (json.is_object())
    if (const auto id = json.find("id"); id != json.end() && id->is_string()) here.cell = id->get<std::string>();
  if (&json == wanted) return here;
  if (json.is_object()) {
    for (const auto& [key, value] : json.items())
      if (auto found = search(value, wanted, {step(here.path, key), here.cell})) return found;
  } else if (json.is_array()) {
    for (std::size_t i = 0; i < json.size(); ++i)
      if (auto found = search(json[i], wanted, {fmt::format("{}[{}]", here.path, i), here.cell})) return found;
  }
  return std::nullopt;
}

[[noreturn]] void refuse_at(const Found& place, std::string_view problem) {
  fail(fmt::format("{}{} {}", place.cell.empty() ? "" : fmt::format("cell {}: ", quotable(place.cell)),
                   place.path.empty() ? "the document" : fmt::format("`{}`", place.path), problem));
}

const Json& json(const void* value) { return *static_cast<const Json*>(value); }

void flatten(const Json& value, const std::string& path, std::map<std::string, std::string>& out) {
  const auto below = [&](const std::string& key) { return path.empty() ? key : path + "." + key; };
  if (value.is_object()) {
    for (const auto& [key, inner] : value.items()) flatten(inner, below(key), out);
  } else if (value.is_array()) {
    for (std::size_t i = 0; i < value.size(); ++i) flatten(value[i], below(std::to_string(i)), out);
  } else if (!value.is_null()) {
    out[path] = value.is_string() ? value.get<std::string>() : value.dump();
  }
}

}  // namespace

struct JsonReader::Tree {
  Json root;
  std::string path;  ///< path of the root, which may be a part of the document
};

JsonDocument::JsonDocument(std::string_view text) : JsonDocument(text, "", {}) {}

JsonDocument::JsonDocument(std::string_view text, std::string_view list,
                           const std::function<void(const JsonReader&)>& visit) {
  refuse_excess(text);
  bool within = false;  // the list
  std::size_t items = 0;
  const Json::parser_callback_t visit_and_drop = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth == 1 && event == Json::parse_event_t::key) within = value == list;
    const bool is_item = within && depth == 2 && event != Json::parse_event_t::object_start &&
                         event != Json::parse_event_t::array_start && event != Json::parse_event_t::key;
    if (!is_item) return true;
    const JsonReader::Tree item{std::move(value), fmt::format("{}[{}]", list, items++)};
    visit(JsonReader(&item, &item.root));
    return false;
  };
  try {
    tree_ = std::make_unique<const JsonReader::Tree>(
        JsonReader::Tree{visit ? Json::parse(text, visit_and_drop) : Json::parse(text), ""});
  } catch (const Json::exception& error) {
    // Drop the prefix "[json.exception.parse_error.101] ", which does not help users.
    const std::string_view problem = error.what();
    const std::size_t end = problem.find("] ");
    // It quotes what it read last, a number of a million digits as well.
    fail(fmt::format("this is not JSON: {}",
                     printable(shortened(end == std::string_view::npos ? problem : problem.substr(end + 2), 300))));
  }
}

JsonDocument::~JsonDocument() = default;

JsonReader JsonDocument::root() const { return {tree_.get(), &tree_->root}; }

JsonReader JsonReader::at(std::string_view key) const {
  if (!json(value_).is_object()) refuse("an object");
  const auto it = json(value_).find(key);
  if (it != json(value_).end()) return {tree_, &*it};
  Found place = search(tree_->root, &json(value_), {tree_->path, ""}).value_or(Found{});
  place.path = step(place.path, std::string(key));
  refuse_at(place, "is missing");
}

std::optional<JsonReader> JsonReader::find(std::string_view key) const {
  if (!json(value_).is_object()) refuse("an object");
  const auto it = json(value_).find(key);
  if (it == json(value_).end() || it->is_null()) return std::nullopt;
  return JsonReader(tree_, &*it);
}

bool JsonReader::is_null() const { return json(value_).is_null(); }

bool JsonReader::is_text(std::string_view text) const {
  return json(value_).is_string() && json(value_).get_ref<const std::string&>() == text;
}

std::string JsonReader::text() const {
  if (!json(value_).is_string()) refuse("text");
  return json(value_).get<std::string>();
}

std::string JsonReader::text_or_empty(std::string_view key) const {
  const std::optional<JsonReader> found = find(key);
  return found ? found->text() : "";
}

std::string JsonReader::text_of_scalar() const {
  if (json(value_).is_structured()) refuse("text or a number");
  return json(value_).is_string() ? json(value_).get<std::string>() : json(value_).dump();
}

bool JsonReader::flag() const {
  if (!json(value_).is_boolean()) refuse("true or false");
  return json(value_).get<bool>();
}

double JsonReader::number() const {
  if (!json(value_).is_number()) refuse("a number");
  return json(value_).get<double>();
}

std::optional<double> JsonReader::number_or_null() const {
  if (json(value_).is_null()) return std::nullopt;
  if (!json(value_).is_number()) refuse("a number or null");
  return json(value_).get<double>();
}

std::int64_t JsonReader::integer(std::int64_t low, std::int64_t high) const {
  const Json& value = json(value_);
  const bool beyond = value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX;
  const bool fits = value.is_number_integer() && !beyond;
  const std::int64_t number = fits ? value.get<std::int64_t>() : 0;
  if (fits && number >= low && number <= high) return number;
  if (low == INT64_MIN && high == INT64_MAX) refuse("an integer");
  refuse(fmt::format("an integer from {} to {}", low, high));
}

std::string JsonReader::object_json() const {
  if (!json(value_).is_object()) refuse("an object");
  return json(value_).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::map<std::string, std::string> JsonReader::flattened() const {
  if (!json(value_).is_object()) refuse("an object");
  std::map<std::string, std::string> out;
  flatten(json(value_), "", out);
  return out;
}

void JsonReader::each_item(const std::function<void(const JsonReader&)>& visit) const {
  if (!json(value_).is_array()) refuse("a list");
  for (const Json& item : json(value_)) visit(JsonReader(tree_, &item));
}

void JsonReader::each_member(const std::function<void(const std::string&, const JsonReader&)>& visit) const {
  if (!json(value_).is_object()) refuse("an object");
  for (const auto& [key, value] : json(value_).items()) visit(key, JsonReader(tree_, &value));
}

void JsonReader::refuse(std::string_view expected) const {
  refuse_for(fmt::format("must be {}, but is {}", expected, described(json(value_))));
}

void JsonReader::refuse_for(std::string_view problem) const {
  refuse_at(search(tree_->root, &json(value_), {tree_->path, ""}).value_or(Found{}), problem);
}

}  // namespace fp8lab
