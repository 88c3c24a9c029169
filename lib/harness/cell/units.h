#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fp8lab {

/// Units a claim may be written in when its metric is counted in `base`: "B" gives B, KiB, MiB, GiB, kB, MB, GB.
std::vector<std::string> units_of(std::string_view base);

/// How many `base` one `unit` is (1 MiB is 1048576 B), or nothing when they measure different things.
std::optional<double> in_base_units(std::string_view unit, std::string_view base);

/// "618,135,552"; fractions keep up to six significant digits.
std::string grouped(double value);

/// For people: "589.5 MiB (618,135,552 B)", "2.1 ms", "0.25". MiB is 2^20 bytes.
std::string figure(double value, std::string_view unit);

/// The shortest text that reads back as `value`: "0.5", "448", "1e-06".
std::string shortest(double value);

}  // namespace fp8lab
