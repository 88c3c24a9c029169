#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace fp8lab {

/// A point of a matrix: values by axis, in the order in which the axes were declared.
using Axes = std::vector<std::pair<std::string, std::string>>;

/// The value on `axis`, or nullptr.
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
  /// Names of the axes in declared order, then those that only `include` provides.
  std::vector<std::string> axis_names() const;
  /// Every value that `axis` takes anywhere.
  std::vector<std::string> values_of(std::string_view axis) const;
};

/// The points, as GitHub Actions makes them: the product of the axes; less every point that agrees with all values of
/// some `exclude`; then each `include` extends every point of the product whose own values it does not contradict
/// (values added by an earlier include may be replaced), and becomes a point of its own when it extends none.
/// A matrix without axes and includes has one point, without values.
std::vector<Axes> expand(const Matrix& matrix);

/// Points by the values that they have, so that a condition costs what it may match and not a look at every point.
class PointIndex {
 public:
  /// Values by axis; a point has to have one of the listed ones on each.
  using Terms = std::vector<std::pair<std::string, std::vector<std::string>>>;

  explicit PointIndex(std::vector<Axes> points);

  const std::vector<Axes>& points() const { return points_; }

  /// Numbers of the points that `terms` hold for, ascending; without terms all of them.
  std::vector<std::size_t> matching(const Terms& terms) const;

 private:
  using ByValue = std::unordered_map<std::string, std::vector<std::size_t>>;

  const std::vector<std::size_t>& with_value(const std::string& axis, const std::string& value) const;

  std::vector<Axes> points_;
  std::unordered_map<std::string, ByValue> by_axis_;  ///< numbers of points, ascending
};

/// "name/axis=value,axis=value", or the name alone for a point without values.
std::string cell_id(std::string_view scenario, const Axes& axes);

}  // namespace fp8lab
