#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>

// Checks of the values of options. CLI11's own range check accepts NaN, because comparisons with NaN are false.
namespace fp8lab {

/// Accepts integers from `low` to `high`.
CLI::Validator integer_within(std::int64_t low, std::int64_t high);

/// Accepts finite decimal numbers from `low` to `high`.
CLI::Validator number_within(double low, double high);

}  // namespace fp8lab
