#include "harness/scenario/matrix.h"

#include <algorithm>
#include <numeric>
#include <unordered_set>

namespace fp8lab {
namespace {

std::vector<Axes> product(const std::vector<Axis>& axes) {
  if (axes.empty()) return {};
  std::vector<Axes> points(1);
  for (const Axis& axis : axes) {
    std::vector<Axes> longer;
    for (const Axes& point : points)
      for (const std::string& value : axis.values) {
        longer.push_back(point);
        longer.back().emplace_back(axis.name, value);
      }
    points = std::move(longer);
  }
  return points;
}

bool agrees_with_all(const Axes& point, const Axes& wanted) {
  return std::all_of(wanted.begin(), wanted.end(), [&](const auto& pair) {
    const std::string* value = find_axis(point, pair.first);
    return value && *value == pair.second;
  });
}

bool contradicts(const Axes& original, const Axes& added) {
  return std::any_of(added.begin(), added.end(), [&](const auto& pair) {
    const std::string* value = find_axis(original, pair.first);
    return value && *value != pair.second;
  });
}

void put(Axes& point, const std::pair<std::string, std::string>& pair) {
  for (auto& [name, value] : point)
    if (name == pair.first) {
      value = pair.second;
      return;
    }
  point.push_back(pair);
}

}  // namespace

const std::string* find_axis(const Axes& axes, std::string_view axis) {
  for (const auto& [name, value] : axes)
    if (name == axis) return &value;
  return nullptr;
}

std::vector<std::string> Matrix::axis_names() const {
  std::vector<std::string> names;
  const auto add = [&](const std::string& name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  };
  for (const Axis& axis : axes) add(axis.name);
  for (const Axes& point : include)
    for (const auto& pair : point) add(pair.first);
  return names;
}

std::vector<std::string> Matrix::values_of(std::string_view axis) const {
  std::vector<std::string> values;
  for (const Axis& own : axes)
    if (own.name == axis) values = own.values;
  std::unordered_set<std::string> seen(values.begin(), values.end());
  for (const Axes& point : include)
    if (const std::string* value = find_axis(point, axis); value && seen.insert(*value).second)
      values.push_back(*value);
  return values;
}

std::vector<Axes> expand(const Matrix& matrix) {
  if (matrix.empty()) return {Axes{}};
  std::vector<Axes> originals = product(matrix.axes);
  originals.erase(std::remove_if(originals.begin(), originals.end(),
                                 [&](const Axes& point) {
                                   return std::any_of(
                                       matrix.exclude.begin(), matrix.exclude.end(),
                                       [&](const Axes& wanted) { return agrees_with_all(point, wanted); });
                                 }),
                  originals.end());
  std::vector<Axes> points = originals;
  std::vector<Axes> own;
  for (const Axes& added : matrix.include) {
    bool extended = false;
    for (std::size_t i = 0; i < originals.size(); ++i) {
      if (contradicts(originals[i], added)) continue;
      for (const auto& pair : added) put(points[i], pair);
      extended = true;
    }
    if (!extended) own.push_back(added);
  }
  points.insert(points.end(), own.begin(), own.end());
  const std::vector<std::string> order = matrix.axis_names();
  for (Axes& point : points)
    std::stable_sort(point.begin(), point.end(), [&](const auto& a, const auto& b) {
      return std::find(order.begin(), order.end(), a.first) < std::find(order.begin(), order.end(), b.first);
    });
  return points;
}

PointIndex::PointIndex(std::vector<Axes> points) : points_(std::move(points)) {
  for (std::size_t i = 0; i < points_.size(); ++i)
    for (const auto& [axis, value] : points_[i]) by_axis_[axis][value].push_back(i);
}

std::vector<std::size_t> PointIndex::matching(const Terms& terms) const {
  std::vector<std::unordered_set<std::string>> wanted;
  std::size_t rarest = 0, fewest = points_.size() + 1;
  for (std::size_t t = 0; t < terms.size(); ++t) {
    wanted.emplace_back(terms[t].second.begin(), terms[t].second.end());
    std::size_t count = 0;
    for (const std::string& value : wanted[t]) count += with_value(terms[t].first, value).size();
    if (count >= fewest) continue;
    fewest = count;
    rarest = t;
  }
  std::vector<std::size_t> out;
  if (terms.empty()) {
    out.resize(points_.size());
    std::iota(out.begin(), out.end(), std::size_t{0});
    return out;
  }
  for (const std::string& value : wanted[rarest]) {
    const std::vector<std::size_t>& points = with_value(terms[rarest].first, value);
    out.insert(out.end(), points.begin(), points.end());
  }
  std::sort(out.begin(), out.end());
  std::erase_if(out, [&](std::size_t point) {
    for (std::size_t t = 0; t < terms.size(); ++t) {
      const std::string* value = t == rarest ? nullptr : find_axis(points_[point], terms[t].first);
      if (t != rarest && !(value && wanted[t].contains(*value))) return true;
    }
    return false;
  });
  return out;
}

const std::vector<std::size_t>& PointIndex::with_value(const std::string& axis, const std::string& value) const {
  static const std::vector<std::size_t> kNone;
  const auto by_value = by_axis_.find(axis);
  if (by_value == by_axis_.end()) return kNone;
  const auto points = by_value->second.find(value);
  return points == by_value->second.end() ? kNone : points->second;
}

std::string cell_id(std::string_view scenario, const Axes& axes) {
  std::string id(scenario);
  char separator = '/';
  for (const auto& [axis, value] : axes) {
    id += separator;
    id += axis + "=" + value;
    separator = ',';
  }
  return id;
}

}  // namespace fp8lab
