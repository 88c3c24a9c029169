#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fp8lab {

/// The units in which a claim about a metric of unit `base` may be written: "B" gives B, KiB to TiB, kB or KB, and MB
/// to TB.
std::vector<std::string> units_of(std::string_view base);

/// How many `base` one `unit` is (1 MiB is 1048576 B); nothing if the two measure different quantities.
std::optional<double> in_base_units(std::string_view unit, std::string_view base);

/// Integers with separators of thousands, "618,135,552"; other values with up to six significant digits.
std::string grouped(double value);

/// A figure for people: "589.5 MiB (618,135,552 B)", "2.1 ms", "0.25". MiB is 2^20 bytes.
std::string figure(double value, std::string_view unit);

/// figure() without the exact number of bytes: "589.5 MiB".
std::string short_figure(double value, std::string_view unit);

/// short_figure() of two values, with enough decimals to distinguish different values: "13.31 GiB" and "13.34 GiB".
std::pair<std::string, std::string> short_figures(double a, double b, std::string_view unit);

/// The shortest text that reads back as `value`: "0.5", "448", "1e-06".
std::string shortest(double value);

}  // namespace fp8lab
