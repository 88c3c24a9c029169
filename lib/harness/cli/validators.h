#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>

// Checks of the values of options. CLI11's own range check accepts NaN, because comparisons with NaN are false.
namespace fp8lab {

/// Accepts integers from `low` to `high`.
CLI::Validator integer_within(std::int64_t low, std::int64_t high);

/// Accepts sizes of memory with their unit, such as 80GiB, and numbers of bytes of at least 1 MiB.
CLI::Validator memory_size_with_unit();

/// Accepts finite decimal numbers from `low` to `high`.
CLI::Validator number_within(double low, double high);

/// Accepts "3:10", "3:", ":10" and "5", with steps from 1 and the first not after the last.
CLI::Validator range_of_steps();

}  // namespace fp8lab
