#include "harness/scenario/toml_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <vector>

#include "core/check.h"
#include "harness/cell/regular_file.h"
#include "harness/cell/spelling.h"

namespace fp8lab {
namespace {

bool is_list_of_texts(const toml::node& node) {
  const toml::array* list = node.as_array();
  return list != nullptr && !list->empty() && list->is_homogeneous(toml::node_type::string);
}

bool fits(const toml::node& node, TomlKind kind) {
  switch (kind) {
    case TomlKind::kText: return node.is_string();
    case TomlKind::kTexts: return is_list_of_texts(node);
    case TomlKind::kNumber: return node.is_number() && std::isfinite(*node.value<double>());
    case TomlKind::kCount: return node.is_integer() && *node.value<std::int64_t>() >= 0;
    case TomlKind::kSwitch: return node.is_boolean();
    case TomlKind::kDate: return node.is_date();
  }
  return false;
}

std::string text_of(const toml::node& node) {
  std::ostringstream out;
  out << toml::node_view<const toml::node>(node);
  return quotable(out.str());
}

}  // namespace

toml::table read_toml(const std::filesystem::path& path) {
  std::string text;
  try {
    text = read_regular_file(path);
  } catch (const Error& error) {
    const std::string name = path.string() + ": ", what = error.what();
    fail(fmt::format("{}cannot be read: {}", name, what.starts_with(name) ? what.substr(name.size()) : what));
  }
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    fail(fmt::format("{}: not TOML: line {}: {}", path.string(), error.source().begin.line, error.description()));
  }
}

void check_toml_keys(const toml::table& table, std::span<const TomlKey> keys, const std::string& place) {
  std::vector<std::string> names;
  for (const TomlKey& key : keys) names.emplace_back(key.name);
  for (const auto& [name, node] : table) {
    const auto key = std::ranges::find(keys, name.str(), &TomlKey::name);
    if (key == keys.end()) {
      const std::string like = nearest(name.str(), names);
      fail(fmt::format(
          "{}: `{}` is not known; {}", place, quotable(name.str()),
          like.empty() ? fmt::format("there are {}", fmt::join(names, ", ")) : fmt::format("did you mean {}?", like)));
    }
    if (!fits(node, key->kind)) fail(fmt::format("{}: `{}` cannot be {}", place, key->name, text_of(node)));
  }
}

}  // namespace fp8lab
