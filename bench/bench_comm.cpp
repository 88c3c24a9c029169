#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <functional>
#include <vector>

#include "comm/process_groups.h"

// In-process collectives: the bandwidth of gathers relative to memcpy by the same threads, and the latency of small
// collectives.
namespace fp8lab {
namespace {

using benchmark::Counter;
using Clock = std::chrono::steady_clock;

std::vector<std::int64_t> even_offsets(std::int64_t total, int ranks) {
  std::vector<std::int64_t> offsets;
  for (int rank = 0; rank <= ranks; ++rank) offsets.push_back(total * rank / ranks);
  return offsets;
}

/// Makes the step function of a rank. The group outlives it.
using MakeStep = std::function<std::function<void()>(ProcessGroup&)>;

/// Runs every rank's step once per iteration of `state`, which rank 0 drives. The time of an iteration is the time of
/// rank 0's step, without the barrier before it.
void run_in_step(benchmark::State& state, int ranks, const MakeStep& make_step) {
  std::atomic<bool> more{true};
  run_ranks("in_process", {.ranks = ranks}, [&](ProcessGroup& group) {
    const std::function<void()> step = make_step(group);
    step();  // warm-up: buffers grow to their final size
    if (group.rank() != 0) {
      for (group.barrier("next"); more; group.barrier("next")) step();
      return;
    }
    for (auto _ : state) {
      group.barrier("next");
      const auto start = Clock::now();
      step();
      state.SetIterationTime(std::chrono::duration<double>(Clock::now() - start).count());
    }
    more = false;
    group.barrier("next");
  });
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

/// The processor time of the calling thread.
double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Every rank gathers `MiB` in total, then copies as much from a buffer of its own. The rates are the bytes written by
/// all ranks over the median time; `of_memcpy` is their quotient. `of_memcpy_cpu` is the quotient over processor time,
/// which excludes waiting but is also valid on a machine that others use.
void all_gather_beside_memcpy(benchmark::State& state) {
  const int ranks = static_cast<int>(state.range(0));
  const std::int64_t total = state.range(1) << 20;
  const bool in_place = state.range(2) != 0;
  const std::vector<std::int64_t> offsets = even_offsets(total, ranks);
  const auto bytes = static_cast<std::size_t>(total);
  struct Buffers {
    std::vector<std::byte> from;
    std::vector<std::byte> to;
    double gather_cpu = 0;
    double memcpy_cpu = 0;
  };
  std::vector<Buffers> buffers(static_cast<std::size_t>(ranks));
  std::vector<double> gather_seconds;
  std::vector<double> memcpy_seconds;
  run_in_step(state, ranks, [&](ProcessGroup& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    Buffers& own = buffers[rank];
    own.from.assign(bytes, std::byte{1});
    own.to.assign(bytes, std::byte{2});
    const GatherPart part{.from = in_place ? own.to.data() + offsets[rank] : own.from.data(),
                          .to = own.to.data(),
                          .offsets_bytes = offsets};
    return [&, rank, part] {
      Buffers& mine = buffers[rank];
      const auto start = Clock::now();
      double cpu = thread_seconds();
      group.all_gather({&part, 1}, "gather");
      mine.gather_cpu += thread_seconds() - cpu;
      const auto middle = Clock::now();
      cpu = thread_seconds();
      std::memcpy(mine.to.data(), mine.from.data(), bytes);
      benchmark::ClobberMemory();
      mine.memcpy_cpu += thread_seconds() - cpu;
      group.barrier("copied");
      if (rank != 0) return;
      gather_seconds.push_back(std::chrono::duration<double>(middle - start).count());
      memcpy_seconds.push_back(std::chrono::duration<double>(Clock::now() - middle).count());
    };
  });
  // In place, each rank's own bytes are already in the output and are not copied.
  const double copied = static_cast<double>(total) * ranks;
  const double gathered = in_place ? static_cast<double>(total) * (ranks - 1) : copied;
  const double gather_rate = gathered / median(gather_seconds);
  const double memcpy_rate = copied / median(memcpy_seconds);
  state.counters["gather_rate"] = Counter(gather_rate, Counter::kDefaults, Counter::kIs1024);
  state.counters["memcpy_rate"] = Counter(memcpy_rate, Counter::kDefaults, Counter::kIs1024);
  state.counters["of_memcpy"] = gather_rate / memcpy_rate;
  double gather_cpu = 0;
  double memcpy_cpu = 0;
  for (const Buffers& own : buffers) {
    gather_cpu += own.gather_cpu;
    memcpy_cpu += own.memcpy_cpu;
  }
  state.counters["of_memcpy_cpu"] = gathered / gather_cpu / (copied / memcpy_cpu);
}
BENCHMARK(all_gather_beside_memcpy)
    ->ArgNames({"ranks", "MiB", "in_place"})
    ->ArgsProduct({{2, 4, 8, 16}, {64}, {0, 1}})
    ->ArgsProduct({{4}, {1, 16, 256}, {0}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

/// An all-gather of `parts` tensors that moves no data: the host time that one rank spends on the call.
void host_cost_of_all_gather(benchmark::State& state) {
  const int ranks = static_cast<int>(state.range(0));
  const std::vector<std::int64_t> offsets = even_offsets(std::int64_t{ranks} << 20, ranks);
  auto* const nowhere = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40);
  const GatherPart part{.from = nowhere, .to = nowhere + (std::int64_t{1} << 40), .offsets_bytes = offsets};
  const std::vector<GatherPart> parts(static_cast<std::size_t>(state.range(1)), part);
  run_ranks("simulated", {.ranks = ranks}, [&](ProcessGroup& group) {
    for (auto _ : state) group.all_gather(parts, "layers.17.self_attention");
  });
}
BENCHMARK(host_cost_of_all_gather)->ArgNames({"ranks", "parts"})->ArgsProduct({{4, 64, 512}, {1, 9, 18}});

/// The latency of small all-gathers over real threads, including waiting.
void latency_of_all_gather(benchmark::State& state) {
  const int ranks = static_cast<int>(state.range(0));
  const std::vector<std::int64_t> offsets = even_offsets(std::int64_t{ranks} * 64, ranks);
  run_in_step(state, ranks, [&](ProcessGroup& group) {
    return [&group, &offsets, own = std::vector<std::byte>(64),
            all = std::vector<std::byte>(static_cast<std::size_t>(offsets.back()))]() mutable {
      const GatherPart part{.from = own.data(), .to = all.data(), .offsets_bytes = offsets};
      group.all_gather({&part, 1}, "small");
    };
  });
}
BENCHMARK(latency_of_all_gather)
    ->ArgName("ranks")
    ->Arg(2)
    ->Arg(4)
    ->Arg(16)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

/// A reduce-scatter, which reads every rank's summands once and writes each result once. The rate counts bytes read.
void reduce_scatter(benchmark::State& state) {
  const int ranks = static_cast<int>(state.range(0));
  const std::int64_t elems = state.range(1) << 18;
  const std::vector<std::int64_t> offsets = even_offsets(elems, ranks);
  const auto count = static_cast<std::size_t>(elems);
  run_in_step(state, ranks, [&](ProcessGroup& group) {
    return [&group, &offsets, from = std::vector<float>(count, 1.0f), to = std::vector<float>(count)]() mutable {
      const ScatterPart part{.from = reinterpret_cast<const std::byte*>(from.data()),
                             .to = reinterpret_cast<std::byte*>(to.data()),
                             .offsets_elems = offsets};
      group.reduce_scatter({&part, 1}, "grads");
    };
  });
  state.SetBytesProcessed(state.iterations() * ranks * elems * 4);
}
BENCHMARK(reduce_scatter)
    ->ArgNames({"ranks", "MiB"})
    ->ArgsProduct({{2, 4, 16}, {64}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace fp8lab

BENCHMARK_MAIN();
