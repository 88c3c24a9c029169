#pragma once

#include <benchmark/benchmark.h>

#include <cstdlib>
#include <string_view>

// The options that every program here reads in the same way.
namespace fp8lab {

/// Whether --benchmark_min_time, or the variable that Google Benchmark reads for it, is given.
inline bool& min_time_is_given() {
  static bool given = std::getenv("BENCHMARK_MIN_TIME") != nullptr;
  return given;
}

/// Reads the options; call it before rows are registered. Returns false, after a message, if one is unknown.
inline bool read_options(int argc, char** argv) {
  for (int i = 1; i < argc; ++i)
    if (std::string_view(argv[i]).starts_with("--benchmark_min_time")) min_time_is_given() = true;
  benchmark::Initialize(&argc, argv);
  return !benchmark::ReportUnrecognizedArguments(argc, argv);
}

/// Gives a row `count` iterations, unless --benchmark_min_time is given: the library ignores it for such rows.
inline void set_iterations(benchmark::internal::Benchmark* row, int count) {
  if (!min_time_is_given()) row->Iterations(count);
}

}  // namespace fp8lab
