#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "comm/process_groups.h"

// In-process collectives: bandwidth beside memcpy's of the same threads, measured in turns, and the cost of small ones.
namespace fp8lab {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<std::int64_t> even_offsets(std::int64_t total, int ranks) {
  std::vector<std::int64_t> offsets;
  for (int rank = 0; rank <= ranks; ++rank) offsets.push_back(total * rank / ranks);
  return offsets;
}

/// Runs `step` on every rank once per iteration of `state`, which rank 0 drives.
void run_lock_step(benchmark::State& state, int ranks, const std::function<std::function<void()>(ProcessGroup&)>& prepare) {
  std::atomic<bool> more{true};
  run_ranks("in_process", {.ranks = ranks}, [&](ProcessGroup& group) {
    const std::function<void()> step = prepare(group);
    step();  // grows what grows
    if (group.rank() != 0) {
      for (group.barrier("next"); more; group.barrier("next")) step();
      return;
    }
    for (auto _ : state) {
      group.barrier("next");
      step();
    }
    more = false;
    group.barrier("next");
  });
}

/// Every rank gathers `total` bytes and then copies as many from a buffer of its own. Rates are bytes written by all ranks
/// per second; `of_memcpy` is their quotient.
void gather_and_memcpy(benchmark::State& state) {
  const int ranks = static_cast<int>(state.range(0));
  const std::int64_t total = state.range(1) << 20;
  const bool in_place = state.range(2) != 0;
  const std::vector<std::int64_t> offsets = even_offsets(total, ranks);
  double gather_seconds = 0;
  double memcpy_seconds = 0;
  run_lock_step(state, ranks, [&](ProcessGroup& group) -> std::function<void()> {
    const std::int64_t own = offsets[static_cast<std::size_t>(group.rank())];
    auto from = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(total), std::byte{1});
    auto to = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(total), std::byte{2});
    return [&, own, from, to, &group_ = group] {
      const GatherPart part{.from = (in_place ? to : from)->data() + (in_place ? own : 0),
                            .to = to->data(),
                            .offsets_bytes = offsets};
      const auto start = Clock::now();
      group_.all_gather({&part, 1}, "gather");
      group_.barrier("gathered");
      const auto middle = Clock::now();
      std::memcpy(to->data(), from->data(), static_cast<std::size_t>(total));
      benchmark::ClobberMemory();
      group_.barrier("copied");
      if (group_.rank() != 0) return;
      gather_seconds += std::chrono::duration<double>(middle - start).count();
      memcpy_seconds += std::chrono::duration<double>(Clock::now() - middle).count();
    };
  });
  const double steps = static_cast<double>(state.iterations() + 1);
  const double moved = static_cast<double>(total) * ranks * steps;
  // A gather in place leaves each rank's own bytes where they are.
  const double gathered = moved - (in_place ? static_cast<double>(total) * steps : 0);
  using benchmark::Counter;
  state.counters["gather"] = Counter(gathered / gather_seconds, Counter::kDefaults, Counter::kIs1024);
  state.counters["memcpy"] = Counter(moved / memcpy_seconds, Counter::kDefaults, Counter::kIs1024);
  state.counters["of_memcpy"] = gathered / gather_seconds / (moved / memcpy_seconds);
}
BENCHMARK(gather_and_memcpy)
    ->ArgNames({"ranks", "MiB", "in_place"})
    ->ArgsProduct({{1, 2, 4, 8, 16}, {64}, {0, 1}})
    ->ArgsProduct({{4}, {1, 4, 16, 256}, {0}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace fp8lab

BENCHMARK_MAIN();
