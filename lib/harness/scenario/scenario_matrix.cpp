#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "harness/cell/spelling.h"
#include "harness/scenario/scenario_reader.h"

namespace fp8lab {
namespace {

/// The most points of a matrix: far more cells than anybody would wait for.
constexpr std::size_t kMostPoints = 100000;
/// The most comparisons while a matrix is expanded: every entry of `exclude` and `include` with every point.
constexpr std::size_t kMostComparisons = 10000000;

const Key& axis_key(const NodeReader& reader, const YamlEntry& entry, std::string_view where) {
  if (const Key* key = find_key(entry.key)) return *key;
  reader.refuse(entry.place, fmt::format("`{}.{}`: no key of this name can be an axis.{}", where, quotable(entry.key),
                                         suggestion(entry.key, axis_names())));
}

/// The axis that sets `key`, whether it is named by full path or by last part; nullptr if there is none.
const Axis* axis_of(const std::vector<Axis>& axes, const Key& key) {
  for (const Axis& axis : axes)
    if (find_key(axis.name) == &key) return &axis;
  return nullptr;
}

Axis read_axis(const NodeReader& reader, const YamlEntry& entry, const Key& key) {
  const std::string where = "matrix." + entry.key;
  Axis axis{entry.key, {}};
  std::unordered_set<std::string> seen;
  for (const YamlNode& item : reader.as_list(entry, where)) {
    const std::string value = to_text(reader.value(key, item, where));
    if (!seen.insert(value).second) reader.refuse(item.place, fmt::format("`{}` lists {} twice", where, value));
    axis.values.push_back(value);
  }
  return axis;
}

Axes read_exclude(const NodeReader& reader, const YamlNode& item, const std::vector<Axis>& axes) {
  Axes wanted;
  std::map<const Axis*, std::string> given;
  for (const YamlEntry& entry : reader.item_as_map(item, "exclude").entries) {
    const Key* key = find_key(entry.key);
    const Axis* axis = key ? axis_of(axes, *key) : nullptr;
    if (!axis) {
      std::vector<std::string> names;
      for (const Axis& known : axes) names.push_back(known.name);
      reader.refuse(entry.place, fmt::format("`exclude.{}`: the matrix has no axis of this name.{}",
                                             quotable(entry.key), suggestion(entry.key, names)));
    }
    if (const auto [other, first] = given.emplace(axis, entry.key); !first)
      reader.refuse(entry.place,
                    fmt::format("`exclude.{}` and `exclude.{}` both set `{}`", other->second, entry.key, key->path));
    const std::string value = to_text(reader.value(*key, entry.value, "exclude." + entry.key));
    if (std::find(axis->values.begin(), axis->values.end(), value) == axis->values.end())
      reader.refuse(entry.value.place, fmt::format("`exclude.{}`: the axis never is {}, so this excludes nothing.{}",
                                                   entry.key, value, suggestion(value, axis->values)));
    wanted.emplace_back(axis->name, value);
  }
  return wanted;
}

/// Reads one entry of `include`. `names`: for each key without an axis, the name of its first occurrence, which all
/// entries then use.
Axes read_include(const NodeReader& reader, const YamlNode& item, const std::vector<Axis>& axes,
                  std::map<const Key*, std::string>& names, std::map<std::string, Place>& places) {
  Axes added;
  std::map<const Key*, std::string> given;
  for (const YamlEntry& entry : reader.item_as_map(item, "include").entries) {
    const Key& key = axis_key(reader, entry, "include");
    if (const auto [other, first] = given.emplace(&key, entry.key); !first)
      reader.refuse(entry.place,
                    fmt::format("`include.{}` and `include.{}` both set `{}`", other->second, entry.key, key.path));
    const Axis* axis = axis_of(axes, key);
    const std::string value = to_text(reader.value(key, entry.value, "include." + entry.key));
    added.emplace_back(axis ? axis->name : names.emplace(&key, entry.key).first->second, value);
    places.emplace(key.path, entry.place);
  }
  return added;
}

}  // namespace

Matrix read_matrix(const NodeReader& reader, const YamlNode& root, std::map<std::string, Place>& places) {
  Matrix matrix;
  Mistakes mistakes;
  const YamlEntry* include = root.find("include");
  const YamlEntry* exclude = root.find("exclude");
  if (const YamlEntry* entry = root.find("matrix")) {
    const YamlNode& map = reader.as_map(*entry, "matrix");
    places["matrix"] = entry->place;
    if (map.entries.empty()) reader.refuse(entry->place, "`matrix` is empty; remove it or give it an axis");
    const auto read = [&](const YamlEntry& axis) {
      if (axis.key == "include" || axis.key == "exclude") {
        const YamlEntry*& slot = axis.key == "include" ? include : exclude;
        if (slot)
          reader.refuse(axis.place,
                        fmt::format("`{}` is given both outside and inside of `matrix`; keep one", axis.key));
        slot = &axis;
        return;
      }
      const Key& key = axis_key(reader, axis, "matrix");
      if (const Axis* other = axis_of(matrix.axes, key))
        reader.refuse(axis.place,
                      fmt::format("`matrix.{}` and `matrix.{}` both set `{}`", other->name, axis.key, key.path));
      matrix.axes.push_back(read_axis(reader, axis, key));
      places[std::string(key.path)] = axis.place;
    };
    for (const YamlEntry& axis : map.entries) mistakes.collect([&] { read(axis); });
  }
  mistakes.throw_all();  // entries of `exclude` and `include` refer to the axes
  // Count before expanding: `exclude` may leave few points, but their product would fill the memory first.
  std::size_t points = 1;
  for (const Axis& axis : matrix.axes)
    if ((points *= axis.values.size()) > kMostPoints)
      reader.refuse(
          places["matrix"],
          fmt::format("the matrix has more than {} points; shorten its axes, or write several files", kMostPoints));
  const auto comparisons = [&](const YamlEntry* entry) { return entry ? entry->value.items.size() * points : 0; };
  for (const YamlEntry* entry : {exclude, include})
    if (comparisons(exclude) + comparisons(include) > kMostComparisons && comparisons(entry) > 0)
      reader.refuse(entry->place, fmt::format("`{}` has {} entries, each for {} points; write fewer, or several files",
                                              entry->key, entry->value.items.size(), points));
  const auto read_each = [&](const YamlEntry* list, const auto& read_item) {
    if (!list) return;
    mistakes.collect([&] {
      for (const YamlNode& item : reader.as_list(*list, list->key)) mistakes.collect([&] { read_item(item); });
    });
  };
  read_each(exclude, [&](const YamlNode& item) { matrix.exclude.push_back(read_exclude(reader, item, matrix.axes)); });
  if (include) places["include"] = include->place;
  std::map<const Key*, std::string> names;
  read_each(include, [&](const YamlNode& item) {
    matrix.include.push_back(read_include(reader, item, matrix.axes, names, places));
  });
  mistakes.throw_all();
  if (expand(matrix).empty()) reader.refuse(exclude->place, "the matrix is empty: `exclude` removes every point of it");
  return matrix;
}

}  // namespace fp8lab
