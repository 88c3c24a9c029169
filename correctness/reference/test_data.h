#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

/// Test data as a pure function of (seed, global index), so that the data of a shard are a slice of the full tensor's.
/// Shares no code with the generator under test.
namespace fp8lab::reference {

/// SplitMix64's output function: every input bit reaches every output bit.
std::uint64_t scramble(std::uint64_t x);

/// Uniform in the open interval (0, 1).
double uniform(std::uint64_t seed, std::uint64_t index);

/// Standard normal.
double gaussian(std::uint64_t seed, std::uint64_t index);

/// `count` values of normal(0, deviation), from global index `first` on.
std::vector<float> gaussian_values(std::int64_t count, std::uint64_t seed, double deviation = 1.0,
                                   std::uint64_t first = 0);

/// Values of many magnitudes, with zeros of both signs, from (seed, global index).
std::vector<float> varied_values(std::int64_t count, std::uint64_t seed);

/// `count` bytes, each of any value.
std::vector<std::byte> any_bytes(std::int64_t count, std::uint64_t seed);

}  // namespace fp8lab::reference
