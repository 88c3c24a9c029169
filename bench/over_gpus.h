#pragma once

#include <benchmark/benchmark.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include "backend/device.h"
#include "comm/process_group.h"

// What several ranks, a GPU each, do together for one row.
namespace fp8lab {

/// Of this machine.
inline int gpus() {
  static const int kGpus = count_gpus("cuda");
  return kGpus;
}

/// Has all ranks of a run go through the iterations that rank 0's benchmark counts. One for a run, shared by its ranks.
class Lockstep {
 public:
  /// `batch` on every rank, once for each iteration; its seconds are what `took` then says on rank 0.
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

/// As nccl-tests counts: `size` is the entire output in bytes, algbw size / time, busbw what each GPU's link moves of
/// it, `times` over (2 for an all-reduce), in 1e9 bytes a second.
inline void count_bandwidth(benchmark::State& state, std::int64_t size, double seconds, int times = 1) {
  const double algbw = static_cast<double>(size) / seconds / 1e9;
  state.counters["size"] = static_cast<double>(size);
  state.counters["time_us"] = 1e6 * seconds;
  state.counters["algbw"] = algbw;
  state.counters["busbw"] = algbw * times * (gpus() - 1) / gpus();
}

/// Registers nothing and says why on standard error where there are no two GPUs.
inline int run_over_gpus(int argc, char** argv, const std::function<void()>& register_rows) {
  setenv("NCCL_NVLS_ENABLE", "0", 0);  // no NVLink multicast
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
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
