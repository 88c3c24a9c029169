#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace fp8lab {

/// A point of a matrix: (axis, value) pairs in the order in which the axes were declared.
using Axes = std::vector<std::pair<std::string, std::string>>;

/// The point's value on `axis`, or nullptr.
const std::string* find_axis(const Axes& axes, std::string_view axis);

struct Axis {
  std::string name;
  std::vector<std::string> values;
};

/// A scenario's `matrix`, `exclude` and `include`.
struct Matrix {
  std::vector<Axis> axes;
  std::vector<Axes> exclude;
  std::vector<Axes> include;

  bool empty() const { return axes.empty() && include.empty(); }
  /// Names of the axes in declared order, then names that only `include` has.
  std::vector<std::string> axis_names() const;
  /// Every value of `axis` in the axes and in `include`.
  std::vector<std::string> values_of(std::string_view axis) const;
};

/// Computes the points by the rules of GitHub Actions. Start with the product of the axes. Remove every point that
/// agrees with all values of an `exclude`. Then each `include` extends every point of the product whose own values it
/// does not contradict (it may replace values that an earlier include added); an include that extends no point becomes
/// a point of its own. A matrix without axes and includes has one point, without values.
std::vector<Axes> expand(const Matrix& matrix);

/// An index of points by their values, so that evaluating a condition reads only points that may match.
class PointIndex {
 public:
  /// (axis, values): a point matches if it has one of the values on every axis.
  using Terms = std::vector<std::pair<std::string, std::vector<std::string>>>;

  explicit PointIndex(std::vector<Axes> points);

  const std::vector<Axes>& points() const { return points_; }

  /// Numbers of the points that match `terms`, ascending; without terms all points.
  std::vector<std::size_t> matching(const Terms& terms) const;

 private:
  using ByValue = std::unordered_map<std::string, std::vector<std::size_t>>;

  const std::vector<std::size_t>& with_value(const std::string& axis, const std::string& value) const;

  std::vector<Axes> points_;
  std::unordered_map<std::string, ByValue> by_axis_;  ///< numbers of points, ascending
};

/// "name/axis=value,axis=value", or only the name for a point without values.
std::string cell_id(std::string_view scenario, const Axes& axes);

}  // namespace fp8lab
