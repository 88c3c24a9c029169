#include "harness/scenario/scenario.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "harness/cell/file_keys.h"
#include "harness/cell/metrics.h"
#include "harness/cell/spelling.h"
#include "harness/cell/subject_keys.h"
#include "harness/scenario/scenario_reader.h"
#include "harness/scenario/script_arguments.h"
#include "harness/scenario/variants.h"

namespace fp8lab {
namespace {

constexpr std::int64_t kVersion = 1;

/// Sections with keys of the table of keys.h; a section comes after the section that contains it.
const std::vector<std::string> kSections{"versions", "model", "training", "training.recipe_options"};

class ScenarioParser {
 public:
  ScenarioParser(const std::string& file, const Vocabulary& vocabulary) : file_(file), reader_(file, vocabulary) {}

  Scenario parse(const YamlNode& file) {
    if (!file.is_map())
      reader_.refuse(file.place, fmt::format("a scenario is a mapping of keys, but this is {}", described(file)));
    const auto read = [&](const auto& piece) { return mistakes_.collect(piece); };
    // The keys of a file of another version are not checked: they may differ.
    if (read([&] { check_version(file); })) {
      YamlNode root = top_level(file);
      read([&] { read_name(root); });
      read([&] { out_.title = reader_.text(reader_.required(root, "title", "").value, "title"); });
      read([&] { read_upstream(root); });
      read_keys(root, "");
      for (const std::string& section : kSections) read([&] { read_section(root, section); });
      if (const YamlEntry* entry = root.find("arguments")) {
        out_.places["arguments"] = entry->place;
        understood_ &= read([&] { read_arguments(reader_, *entry, out_.base.script); });
      }
      if (const YamlEntry* entry = root.find("patch")) {
        out_.places["patch"] = entry->place;
        understood_ &= read([&] { read_patch(reader_, *entry, out_.base.script); });
      }
      const bool has_axes = read([&] { out_.matrix = read_matrix(reader_, root, out_.places); });
      const bool measures = read([&] { read_measure(root); });
      // `expect`, `claims` and `skip_if` refer to axes, to the fix and to metrics, so those must be read first.
      const EntryContext context(has_axes ? &out_.matrix : nullptr, measures ? &out_.base.measure : nullptr,
                                 before_arm(root, has_axes));
      read_list(root, "expect", [&](const YamlNode& item) { read_expectation(reader_, item, context, out_); });
      read_list(root, "claims",
                [&](const YamlNode& item) { out_.claims.push_back(read_claim(reader_, item, context)); });
      read_list(root, "skip_if",
                [&](const YamlNode& item) { out_.skip_if.push_back(read_skip_rule(reader_, item, context)); });
      if (!root.find("expect") && names_fix())
        read([&] {
          reader_.refuse(out_.places["fix"],
                         "`fix` makes an arm `before`, of which nothing is expected; add an `expect` entry with "
                         "`arm: before` or `arm: difference`");
        });
      if (const YamlEntry* entry = root.find("timeout")) read([&] { out_.timeout_s = timeout(*entry); });
      // Rules of cells are known to be broken only if every key was understood.
      if (!mistakes_.empty() && understood_ && has_axes) read([&] { plan_cells(out_, reader_.vocabulary()); });
    }
    mistakes_.throw_all();
    return std::move(out_);
  }

 private:
  YamlNode top_level(const YamlNode& file) {
    std::vector<std::string> known;
    for (const FileKey& key : file_keys()) known.emplace_back(key.name);
    for (const std::string& section : kSections)
      if (section.find('.') == std::string::npos) known.push_back(section);
    for (const Key& key : keys())
      if (key.section().empty()) known.emplace_back(key.path);
    YamlNode named = file;
    // Keys that begin with x- hold anchors for the rest of the file, as in Compose files.
    std::erase_if(named.entries, [](const YamlEntry& entry) { return entry.key.starts_with("x-"); });
    return known_keys(named, "", known);
  }

  YamlNode known_keys(const YamlNode& map, const std::string& where, const std::vector<std::string>& known) {
    YamlNode out = reader_.known_keys(map, where, known, mistakes_);
    understood_ &= out.entries.size() == map.entries.size();
    return out;
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

  /// Puts misspelt keys of the section right in `root`, since a section inside it may be among them.
  void read_section(YamlNode& root, const std::string& section) {
    const auto dot = section.find('.');
    YamlEntry* outer = root.find(section.substr(0, dot));
    YamlEntry* entry = outer && dot != std::string::npos ? outer->value.find(section.substr(dot + 1)) : outer;
    if (!entry) return;
    reader_.as_map(*entry, section);
    std::vector<std::string> known;
    for (const Key& key : keys())
      if (key.section() == section) known.emplace_back(key.last());
    for (const std::string& other : kSections)
      if (other.starts_with(section + ".")) known.push_back(other.substr(section.size() + 1));
    out_.places[section] = entry->place;
    entry->value = known_keys(entry->value, section, known);
    read_keys(entry->value, section);
  }

  void read_keys(const YamlNode& map, const std::string& section) {
    for (const Key& key : keys()) {
      if (key.section() != section) continue;
      const YamlEntry* entry = map.find(key.last());
      if (!entry) continue;
      understood_ &=
          mistakes_.collect([&] { key.set(out_.base, reader_.value(key, entry->value, std::string(key.path))); });
      out_.places[std::string(key.path)] = entry->place;
      out_.given.emplace_back(&key, entry->place);
    }
  }

  void read_measure(const YamlNode& root) {
    std::vector<std::string> groups;
    for (const MetricGroup& group : metric_groups()) groups.emplace_back(group.name);
    const YamlEntry* entry = root.find("measure");
    if (entry == nullptr)
      reader_.refuse(root.place, fmt::format("`measure` is missing; every scenario needs a list of some of {}",
                                             fmt::join(groups, ", ")));
    out_.places["measure"] = entry->place;
    for (const YamlNode& item : reader_.as_list(*entry, "measure")) {
      const std::string group = reader_.one_of(item, "measure", groups);
      auto& measure = out_.base.measure;
      if (std::find(measure.begin(), measure.end(), group) != measure.end())
        reader_.refuse(item.place, fmt::format("`measure` lists {} twice", group));
      measure.push_back(group);
    }
  }

  /// True if the file or an axis names a fix that is known.
  bool names_fix() const {
    const std::vector<std::string> axes = out_.matrix.axis_names();
    return !out_.base.fix.empty() ||
           std::any_of(axes.begin(), axes.end(), [](const auto& axis) { return find_key(axis) == find_key("fix"); });
  }

  /// Whether some cells have an arm `before`; nothing if mistakes hide it.
  std::optional<bool> before_arm(const YamlNode& root, bool has_axes) const {
    const std::vector<std::string> axes = out_.matrix.axis_names();
    const bool before_axis = std::any_of(axes.begin(), axes.end(), [](const auto& axis) {
      return find_key(axis) == find_key("fix") || find_key(axis) == find_key("versions.before") ||
             find_key(axis) == find_key("control");
    });
    if (before_axis || has_before(out_.base) || root.find("fix")) return true;
    return has_axes && understood_ ? std::optional(false) : std::nullopt;
  }

  template <class Read>
  void read_list(const YamlNode& root, const std::string& key, const Read& read) {
    const YamlEntry* entry = root.find(key);
    if (!entry) return;
    mistakes_.collect([&] {
      for (const YamlNode& item : reader_.as_list(*entry, key)) mistakes_.collect([&] { read(item); });
    });
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
  bool understood_ = true;  ///< every key that sets a field of the cell was read, or its meaning guessed
  Scenario out_;
};

/// A scenario without `name` is called as its file.
void name_by_file(YamlNode& root, const std::string& file) {
  if (!root.is_map() || root.entries.empty() || root.find("name")) return;
  const Place place = root.entries.front().place;
  YamlEntry name{.key = "name", .place = place, .value = {}};
  name.value.kind = YamlNode::Kind::kScalar;
  name.value.place = place;
  name.value.text = std::filesystem::path(file).stem().string();
  root.entries.push_back(std::move(name));
}

}  // namespace

std::vector<Scenario> parse_scenarios(const std::string& text, const std::string& file, const Vocabulary& vocabulary) {
  YamlNode root = parse_yaml(text, file);
  name_by_file(root, file);
  Mistakes mistakes;
  std::vector<Scenario> out;
  for (const YamlNode& one : scenarios_of_file(NodeReader(file, vocabulary), root, mistakes))
    mistakes.collect([&] { out.push_back(ScenarioParser(file, vocabulary).parse(one)); });
  mistakes.throw_all();
  return out;
}

}  // namespace fp8lab
