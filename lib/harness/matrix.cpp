#include "harness/matrix.h"

#include <algorithm>

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
  for (const Axes& point : include)
    if (const std::string* value = find_axis(point, axis);
        value && std::find(values.begin(), values.end(), *value) == values.end())
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
