#include "harness/scenario/scenario.h"

#include <fmt/format.h>

#include <algorithm>

#include "harness/cell/metrics.h"
#include "harness/cell/spelling.h"
#include "harness/cell/subject_keys.h"
#include "harness/scenario/scenario_reader.h"

namespace fp8lab {
namespace {

constexpr std::int64_t kVersion = 1;

/// Sections with keys of the table of keys.h; a section comes after the section that contains it.
const std::vector<std::string> kSections{"versions", "model", "training", "training.recipe_options"};

class ScenarioParser {
 public:
  ScenarioParser(const std::string& file, const Vocabulary& vocabulary) : file_(file), reader_(file, vocabulary) {}

  Scenario parse(const YamlNode& root) {
    if (!root.is_map())
      reader_.refuse(root.place, fmt::format("a scenario is a mapping of keys, but this is {}", described(root)));
    const auto read = [&](const auto& piece) { return mistakes_.collect(piece); };
    // The keys of a file of another version are not checked: they may differ.
    if (read([&] { check_version(root); })) {
      read([&] { check_top_level(root); });
      read([&] { read_name(root); });
      read([&] { out_.title = reader_.text(reader_.required(root, "title", "").value, "title"); });
      read([&] { read_upstream(root); });
      const bool has_keys = read_keys(root, "");
      for (const std::string& section : kSections) read([&] { read_section(root, section); });
      const bool has_axes = read([&] { out_.matrix = read_matrix(reader_, root, out_.places); });
      const bool measures = read([&] { read_measure(root); });
      // `expect`, `claims` and `skip_if` refer to axes, to the fix and to metrics, so those must be read first.
      if (has_keys && has_axes && measures) read([&] { read_lists(root); });
      if (const YamlEntry* entry = root.find("timeout")) read([&] { out_.timeout_s = timeout(*entry); });
    }
    mistakes_.throw_all();
    return std::move(out_);
  }

 private:
  void check_top_level(const YamlNode& root) const {
    std::vector<std::string> known{"version", "name",     "title",  "upstream", "versions",
                                   "model",   "training", "matrix", "include",  "exclude",
                                   "measure", "expect",   "claims", "skip_if",  "timeout"};
    for (const Key& key : keys())
      if (key.section().empty()) known.emplace_back(key.path);
    YamlNode named = root;
    // Keys that begin with x- hold anchors for the rest of the file, as in Compose files.
    std::erase_if(named.entries, [](const YamlEntry& entry) { return entry.key.starts_with("x-"); });
    reader_.only_keys(named, "", known);
  }

  void check_version(const YamlNode& root) const {
    const YamlNode& node = reader_.required(root, "version", "").value;
    const auto version = node.is_scalar() && !node.quoted ? integer(node.text) : std::nullopt;
    if (version != kVersion)
      reader_.refuse(node.place, fmt::format("`version` must be {}, the only one this program reads, but is {}",
                                             kVersion, described(node)));
  }

  void read_name(const YamlNode& root) {
    out_.file = file_;
    out_.name = scenario_name(root);
    out_.places["name"] = root.find("name")->place;
    out_.base.scenario = out_.name;
  }

  void read_upstream(const YamlNode& root) {
    if (const YamlEntry* entry = root.find("upstream"))
      for (const YamlNode& item : reader_.as_list(*entry, "upstream"))
        out_.upstream.push_back(reader_.text(item, "upstream"));
  }

  std::string scenario_name(const YamlNode& root) const {
    const YamlNode& node = reader_.required(root, "name", "").value;
    const std::string name = reader_.text(node, "name");
    const bool clean = std::all_of(name.begin(), name.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
    });
    if (!clean || name.size() > 80 || name.front() == '-')
      reader_.refuse(
          node.place,
          fmt::format(
              "`name` becomes part of ids and file names, so it is at most 80 of a-z, 0-9, - and _, but is \"{}\"",
              quotable(name)));
    return name;
  }

  void read_section(const YamlNode& root, const std::string& section) {
    const auto dot = section.find('.');
    const YamlEntry* outer = root.find(section.substr(0, dot));
    if (!outer) return;
    const YamlNode* map = &reader_.as_map(*outer, outer->key);
    if (dot != std::string::npos) {
      const YamlEntry* inner = map->find(section.substr(dot + 1));
      if (!inner) return;
      map = &reader_.as_map(*inner, section);
    }
    std::vector<std::string> known;
    for (const Key& key : keys())
      if (key.section() == section) known.emplace_back(key.last());
    for (const std::string& other : kSections)
      if (other.starts_with(section + ".")) known.push_back(other.substr(section.size() + 1));
    mistakes_.collect([&] { reader_.only_keys(*map, section, known); });
    out_.places[section] = outer->place;
    read_keys(*map, section);
  }

  /// Returns false if a key was refused.
  bool read_keys(const YamlNode& map, const std::string& section) {
    bool all = true;
    for (const Key& key : keys()) {
      if (key.section() != section) continue;
      const YamlEntry* entry = map.find(key.last());
      if (!entry) continue;
      all &= mistakes_.collect([&] { key.set(out_.base, reader_.value(key, entry->value, std::string(key.path))); });
      out_.places[std::string(key.path)] = entry->place;
    }
    return all;
  }

  void read_measure(const YamlNode& root) {
    std::vector<std::string> groups;
    for (const MetricGroup& group : metric_groups()) groups.emplace_back(group.name);
    for (const YamlNode& item : reader_.as_list(reader_.required(root, "measure", ""), "measure")) {
      const std::string group = reader_.one_of(item, "measure", groups);
      auto& measure = out_.base.measure;
      if (std::find(measure.begin(), measure.end(), group) != measure.end())
        reader_.refuse(item.place, fmt::format("`measure` lists {} twice", group));
      measure.push_back(group);
    }
  }

  void read_lists(const YamlNode& root) {
    const std::vector<std::string> axes = out_.matrix.axis_names();
    const bool before_axis = std::any_of(axes.begin(), axes.end(), [](const auto& axis) {
      return find_key(axis) == find_key("fix") || find_key(axis) == find_key("versions.before");
    });
    const EntryContext context(out_.matrix, out_.base.measure, before_axis || has_before(out_.base));
    if (const YamlEntry* entry = root.find("expect"))
      for (const YamlNode& item : reader_.as_list(*entry, "expect"))
        mistakes_.collect([&] { out_.expect.push_back(read_expectation(reader_, item, context)); });
    if (const YamlEntry* entry = root.find("claims"))
      for (const YamlNode& item : reader_.as_list(*entry, "claims"))
        mistakes_.collect([&] { out_.claims.push_back(read_claim(reader_, item, context)); });
    if (const YamlEntry* entry = root.find("skip_if"))
      for (const YamlNode& item : reader_.as_list(*entry, "skip_if"))
        mistakes_.collect([&] { out_.skip_if.push_back(read_skip_rule(reader_, item, context)); });
  }

  double timeout(const YamlEntry& entry) const {
    const double seconds = reader_.number(entry.value, "timeout");
    if (!(seconds > 0 && seconds <= kMostTimeoutSeconds))
      reader_.refuse(entry.value.place, fmt::format("`timeout` is in seconds, above 0 and up to {}, but is {}",
                                                    kMostTimeoutSeconds, entry.value.text));
    return seconds;
  }

  const std::string& file_;
  NodeReader reader_;
  Mistakes mistakes_;
  Scenario out_;
};

}  // namespace

Scenario parse_scenario(const std::string& text, const std::string& file, const Vocabulary& vocabulary) {
  const YamlNode root = parse_yaml(text, file);
  return ScenarioParser(file, vocabulary).parse(root);
}

}  // namespace fp8lab
