#include "harness/cli/run/tiers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/check.h"
#include "harness/cell/spelling.h"
#include "harness/cell/units.h"
#include "harness/scenario/toml_file.h"

namespace fp8lab {
namespace {

constexpr std::array kKeys{TomlKey{"title"},
                           TomlKey{"scenarios", TomlKind::kTexts},
                           TomlKey{"devices", TomlKind::kTexts},
                           TomlKey{"filter"},
                           TomlKey{"sample", TomlKind::kCount},
                           TomlKey{"controls", TomlKind::kSwitch},
                           TomlKey{"limit_s", TomlKind::kNumber}};

std::vector<std::string> texts(const toml::node* node) {
  std::vector<std::string> out;
  if (node != nullptr)
    for (const toml::node& one : *node->as_array()) out.push_back(*one.value<std::string>());
  return out;
}

Tier tier_of(const std::string& name, const toml::table& table, const std::string& place) {
  check_toml_keys(table, kKeys, place);
  for (const char* key : {"title", "scenarios", "limit_s"})
    if (!table.contains(key)) fail(fmt::format("{}: `{}` is missing", place, key));
  return {.name = name,
          .title = table["title"].value_or(std::string()),
          .scenarios = texts(table.get("scenarios")),
          .devices = texts(table.get("devices")),
          .filter = table["filter"].value_or(std::string()),
          .sample = table["sample"].value_or(0),
          .controls = table["controls"].value_or(false),
          .limit_s = table["limit_s"].value_or(0.0)};
}

/// "did you mean smoke?", or all names.
std::string hint(const std::string& word, const std::vector<std::string>& known) {
  const std::string like = nearest(word, known);
  return like.empty() ? fmt::format("there are {}", fmt::join(known, ", ")) : fmt::format("did you mean {}?", like);
}

}  // namespace

std::vector<Tier> read_tiers(const std::string& file) {
  const toml::table document = read_toml(file);
  std::vector<std::pair<toml::source_position, Tier>> found;
  for (const auto& [key, node] : document) {
    const std::string name(key.str());
    if (!node.is_table())
      fail(fmt::format("{}: `{}` is not the table of a tier; write [{}] and its keys below", file, name, name));
    found.emplace_back(node.source().begin,
                       tier_of(name, *node.as_table(), fmt::format("{}: [{}]", file, quotable(name))));
  }
  std::ranges::sort(found, {}, [](const auto& one) { return one.first.line; });  // toml++ sorts by name
  std::vector<Tier> out;
  for (auto& [position, tier] : found) out.push_back(std::move(tier));
  return out;
}

std::string tier_lines(const std::vector<Tier>& tiers) {
  std::string out;
  for (const Tier& tier : tiers)
    out += fmt::format("{:<8} {} (up to {} s on two cores)\n", tier.name, tier.title, shortest(tier.limit_s));
  return out;
}

Tier apply_tier(RunRequest& request) {
  const std::vector<Tier> tiers = read_tiers(request.tiers);
  std::vector<std::string> names;
  for (const Tier& tier : tiers) names.push_back(tier.name);
  if (request.tier.empty()) fail(fmt::format("which tier? There are {}", fmt::join(names, ", ")));
  const auto tier = std::ranges::find(tiers, request.tier, &Tier::name);
  if (tier == tiers.end())
    fail(fmt::format("{}: not a tier of {}; {}", quotable(request.tier), request.tiers, hint(request.tier, names)));
  for (const std::string& device : request.devices)
    if (!tier->devices.empty() && std::ranges::find(tier->devices, device) == tier->devices.end())
      fail(fmt::format("--device {}: not of this tier; {}", quotable(device), hint(device, tier->devices)));
  if (request.devices.empty()) request.devices = tier->devices;
  request.paths = tier->scenarios;
  if (!tier->filter.empty()) request.filters.push_back(tier->filter);
  if (request.sample == 0) request.sample = tier->sample;
  request.controls = request.controls || tier->controls;
  return *tier;
}

}  // namespace fp8lab
