#pragma once

#include <benchmark/benchmark.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/check.h"
#include "rows.h"

// Measures the bandwidth of an operation relative to memcpy: one thread pinned to one core, on memory well beyond the
// last-level cache. Every repetition runs memcpy and then the operation, so that both see the same state of the
// machine; `of_memcpy` is the ratio of the two bandwidths, each from a median.
//
// Times are the thread's processor time: equal to wall time on an idle machine, and not disturbed by other processes on
// the core.
namespace fp8lab {

inline double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <class Work>
double seconds_of(const Work& work) {
  const double start = thread_seconds();
  work();
  benchmark::ClobberMemory();
  return thread_seconds() - start;
}

inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Bytes read plus bytes written, each counted once.
struct BytesMoved {
  std::int64_t by_copy = 0;
  std::int64_t by_work = 0;
};

/// Times `copy` and `work` alternately and sets the counters.
template <class Copy, class Work>
void measure_beside(benchmark::State& state, const BytesMoved& bytes, const Copy& copy, const Work& work) {
  std::vector<double> copies, works;
  copy();
  work();  // the first call maps the pages of the results
  for (auto _ : state) {
    copies.push_back(seconds_of(copy));
    works.push_back(seconds_of(work));
    state.SetIterationTime(works.back());
  }
  const auto rate = [](double value) {
    return benchmark::Counter(value, benchmark::Counter::kDefaults, benchmark::Counter::kIs1024);
  };
  const double copy_bandwidth = static_cast<double>(bytes.by_copy) / median(copies);
  const double bandwidth = static_cast<double>(bytes.by_work) / median(works);
  state.counters["bytes_per_second"] = rate(bandwidth);
  state.counters["memcpy_per_second"] = rate(copy_bandwidth);
  state.counters["of_memcpy"] = bandwidth / copy_bandwidth;
}

/// Pins the thread to the last core that this process may use, since the first one tends to serve interrupts. Returns
/// the core's number.
inline int pin_to_one_core() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  check(sched_getaffinity(0, sizeof allowed, &allowed) == 0, "sched_getaffinity failed");
  int core = 0;
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &allowed)) core = i;
  cpu_set_t chosen;
  CPU_ZERO(&chosen);
  CPU_SET(core, &chosen);
  check(sched_setaffinity(0, sizeof chosen, &chosen) == 0, "sched_setaffinity failed");
  return core;
}

/// The main() of a benchmark on one core: registers the rows by `register_rows` and runs them. Returns its exit code.
/// What rows refer to must outlive this call.
template <class RegisterRows>
int run_on_one_core(int argc, char** argv, const RegisterRows& register_rows) {
  if (!read_options(argc, argv)) return 2;
  benchmark::AddCustomContext("single thread, pinned to core", std::to_string(pin_to_one_core()));
  register_rows();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace fp8lab
