#include "harness/cell/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace fp8lab {
namespace {

struct Unit {
  std::string_view name;
  std::string_view base;
  double factor;
};

constexpr double kMiB = 1024.0 * 1024.0;

constexpr std::array kUnits{
    Unit{"B", "B", 1},
    Unit{"KiB", "B", 1024},
    Unit{"MiB", "B", kMiB},
    Unit{"GiB", "B", 1024 * kMiB},
    Unit{"TiB", "B", kMiB* kMiB},
    Unit{"kB", "B", 1e3},
    Unit{"KB", "B", 1e3},
    Unit{"MB", "B", 1e6},
    Unit{"GB", "B", 1e9},
    Unit{"TB", "B", 1e12},
    Unit{"ns", "ns", 1},
    Unit{"us", "ns", 1e3},
    Unit{"ms", "ns", 1e6},
    Unit{"s", "ns", 1e9},
    Unit{"us", "ms", 1e-3},
    Unit{"ms", "ms", 1},
    Unit{"s", "ms", 1e3},
    Unit{"dB", "dB", 1},
    Unit{"1", "1", 1},
    Unit{"%", "1", 0.01},
};

/// Above this every double is an integer.
constexpr double kAllIntegers = 9007199254740992.0;

constexpr int kMostDecimals = 4;

bool is_integer(double value) { return std::abs(value) < kAllIntegers && value == std::trunc(value); }

/// "13.3 GiB" of 1024 bytes or more, with `more` decimals than that.
std::string binary_bytes(double value, int more) {
  const bool gibi = std::abs(value) >= 1024.0 * kMiB;
  const bool mebi = std::abs(value) >= kMiB;
  const double scaled = value / (gibi ? 1024.0 * kMiB : mebi ? kMiB : 1024.0);
  return fmt::format("{:.{}f} {}", scaled, (std::abs(scaled) < 10 ? 2 : 1) + more, gibi ? "GiB" : mebi ? "MiB" : "KiB");
}

}  // namespace

std::vector<std::string> units_of(std::string_view base) {
  std::vector<std::string> names;
  for (const Unit& unit : kUnits)
    if (unit.base == base) names.emplace_back(unit.name);
  return names;
}

std::optional<double> in_base_units(std::string_view unit, std::string_view base) {
  for (const Unit& row : kUnits)
    if (row.name == unit && row.base == base) return row.factor;
  return std::nullopt;
}

std::string grouped(double value) {
  const double size = std::abs(value);
  const bool plain = is_integer(value) || (size >= 1000 && size < kAllIntegers);
  if (!plain) return fmt::format("{:.6g}", value);
  // Six digits, and at least the first decimal, which distinguishes a fraction from an integer.
  const int decimals = is_integer(value) ? 0 : size >= 1e4 ? 1 : 2;
  std::string digits = fmt::format("{:.{}f}", size, decimals);
  if (decimals == 2 && digits.ends_with('0')) digits.pop_back();
  for (std::size_t end = std::min(digits.find('.'), digits.size()); end > 3; end -= 3) digits.insert(end - 3, 1, ',');
  return value < 0 ? "-" + digits : digits;
}

std::string figure(double value, std::string_view unit) {
  if (unit == "B" && std::abs(value) >= 1024.0) return fmt::format("{} ({} B)", binary_bytes(value, 0), grouped(value));
  return unit == "1" ? grouped(value) : fmt::format("{} {}", grouped(value), unit);
}

std::string short_figure(double value, std::string_view unit) {
  const std::string text = figure(value, unit);
  return text.substr(0, text.find(" ("));
}

std::pair<std::string, std::string> short_figures(double a, double b, std::string_view unit) {
  std::pair<std::string, std::string> out{short_figure(a, unit), short_figure(b, unit)};
  if (a == b || out.first != out.second) return out;
  if (unit == "B")
    for (int more = 1; more <= kMostDecimals && out.first == out.second; ++more)
      out = {binary_bytes(a, more), binary_bytes(b, more)};
  const std::string suffix = unit == "1" ? "" : fmt::format(" {}", unit);
  if (out.first == out.second) out = {shortest(a) + suffix, shortest(b) + suffix};
  return out;
}

std::string shortest(double value) {
  return is_integer(value) ? std::to_string(static_cast<std::int64_t>(value)) : fmt::format("{}", value);
}

}  // namespace fp8lab
