#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace fp8lab::reference {

/// Calls `work(i)` once for each i below `count`, on one thread for each of the machine's processors.
template <class Work>
void parallel_for(std::uint32_t count, const Work& work) {
  std::atomic<std::uint32_t> next{0};
  const auto run = [&] {
    for (std::uint32_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::thread> threads;
  const std::uint32_t most = std::min(count, std::max(1u, std::thread::hardware_concurrency()));
  for (std::uint32_t i = 1; i < most; ++i) threads.emplace_back(run);
  run();
  for (std::thread& thread : threads) thread.join();
}

/// Calls `work(i)` once for each i below `count`, in parts that are worth a thread.
template <class Work>
void parallel_parts(std::int64_t count, const Work& work) {
  constexpr std::int64_t kPart = 1 << 16;
  const auto run = [&](std::int64_t part) {
    for (std::int64_t i = part * kPart; i < std::min(count, (part + 1) * kPart); ++i) work(i);
  };
  if (count <= kPart) return run(0);
  parallel_for(static_cast<std::uint32_t>((count + kPart - 1) / kPart), run);
}

}  // namespace fp8lab::reference
