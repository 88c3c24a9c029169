#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace fp8lab::support {

/// Calls `work(i)` once for each i below `count`, on as many threads as the machine has processors.
template <class Work>
void parallel_for(std::uint32_t count, const Work& work) {
  std::atomic<std::uint32_t> next{0};
  const auto run = [&] {
    for (std::uint32_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < std::max(1u, std::thread::hardware_concurrency()); ++i) threads.emplace_back(run);
  run();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace fp8lab::support
