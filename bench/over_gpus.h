#pragma once

#include <benchmark/benchmark.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include "backend/device.h"
#include "comm/process_group.h"
#include "rows.h"

// Benchmarks of several ranks with a GPU each.
namespace fp8lab {

/// The number of GPUs of this machine.
inline int gpus() {
  static const int kGpus = count_gpus("cuda");
  return kGpus;
}

/// Runs the iterations of rank 0's benchmark on all ranks. The ranks of a run share one object.
class Lockstep {
 public:
  /// Collective: calls `batch` on every rank once per iteration. `took` returns the seconds of the last batch; only
  /// rank 0 calls it.
  void run(benchmark::State& state, ProcessGroup& ranks, const std::function<void()>& batch,
           const std::function<double()>& took) {
    if (ranks.rank() != 0) {
      for (ranks.barrier("next"); more_; ranks.barrier("next")) batch();
      return;
    }
    for (auto _ : state) {
      ranks.barrier("next");
      batch();
      state.SetIterationTime(took());
    }
    more_ = false;
    ranks.barrier("next");
  }

 private:
  std::atomic<bool> more_{true};
};

/// Sets the counters of nccl-tests: `size` is the entire output in bytes; algbw is size / time; busbw is the bandwidth
/// of each GPU's link, over which the data passes `times` times (2 for an all-reduce). Both are in 1e9 bytes per
/// second.
inline void count_bandwidth(benchmark::State& state, std::int64_t size, double seconds, int times = 1) {
  const double algbw = static_cast<double>(size) / seconds / 1e9;
  state.counters["size"] = static_cast<double>(size);
  state.counters["time_us"] = 1e6 * seconds;
  state.counters["algbw"] = algbw;
  state.counters["busbw"] = algbw * times * (gpus() - 1) / gpus();
}

/// The main function of a benchmark. With fewer than two GPUs it registers no rows and prints the reason on standard
/// error.
inline int run_over_gpus(int argc, char** argv, const std::function<void()>& register_rows) {
  setenv("NCCL_NVLS_ENABLE", "0", 0);  // no NVLink multicast
  if (!read_options(argc, argv)) return 1;
  if (gpus() < 2) {
    std::fprintf(stderr, "no row can run here: two GPUs are needed, and there are %d\n", gpus());
    return 0;
  }
  register_rows();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace fp8lab
