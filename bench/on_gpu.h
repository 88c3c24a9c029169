#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/device.h"
#include "median.h"
#include "ops/elementwise.h"
#include "rows.h"

// Times operations on the GPU: random data, inputs that rotate past the L2, times from events, medians. Every round
// runs a large device-to-device copy, the work, and a copy of the number of bytes that the work moves, so that all
// three see the same state of the GPU. `of_copy` is the work's bandwidth relative to the large copy's. `of_equal_copy`
// is relative to the equal copy, in which the start and the end of a kernel weigh as much as in the work.
namespace fp8lab {

/// The work of one call; 0 for a figure that a row does not count.
struct WorkDone {
  std::int64_t bytes = 0;  ///< bytes that it must read plus bytes that it must write, each once
  double flops = 0.0;
};

/// The GPU, opened once for all rows; null if there is none, and then no row is registered.
inline Device* gpu() {
  static const std::unique_ptr<Device> kGpu =
      device_row("cuda").unavailable_reason().empty() ? open_device("cuda") : nullptr;
  return kGpu.get();
}

/// A tensor of normally distributed values.
inline Tensor random_tensor(Device& device, const Shape& shape, DType dtype, std::uint64_t seed = 1,
                            float scale = 1.0f) {
  Tensor tensor = device.allocate({shape, dtype}, device.holder(HolderKind::kInput));
  random_fill(device, tensor, {.seed = seed, .scale = scale});
  return tensor;
}

/// The number of sets of inputs, of `bytes` each, after which a set is no longer in the L2 when it is used again.
inline int rotations_past_l2(std::int64_t bytes) {
  constexpr std::int64_t kWellPastTheL2 = std::int64_t{192} << 20;
  return static_cast<int>(std::clamp<std::int64_t>(kWellPastTheL2 / std::max<std::int64_t>(bytes, 1) + 1, 1, 64));
}

/// The main function of a benchmark. Without a GPU it registers no rows and prints the reason on standard error.
inline int run_on_gpu(int argc, char** argv, const std::function<void()>& register_rows) {
  if (!read_options(argc, argv)) return 1;
  if (gpu() == nullptr) {
    std::fprintf(stderr, "no row can run here: %s\n", device_row("cuda").unavailable_reason().c_str());
    return 0;
  }
  register_rows();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

/// Times `work(i)` for i = 0, 1, ...; the caller should use set i % rotations of its inputs. One iteration of the
/// benchmark is one call. Use with ->UseManualTime(). Counters: p50_us; bytes_per_second, of_copy and of_equal_copy
/// if the row counts bytes; flops if it counts flops.
inline void time_on_gpu(benchmark::State& state, const WorkDone& done, const std::function<void(int)>& work) {
  Device& device = *gpu();
  constexpr std::int64_t kCopyBytes = std::int64_t{1} << 30;
  constexpr int kWarmUp = 3;
  constexpr std::int64_t kRowBytes = 4096;
  const Tensor from = random_tensor(device, {kCopyBytes / kRowBytes, kRowBytes / 2}, DType::kBF16, 3);
  const Tensor to = device.allocate(from.spec(), device.holder(HolderKind::kWorkspace));
  // The equal copy moves the beginning of the large copy's arrays, which the large copy has evicted from the L2.
  const std::int64_t equal_rows = done.bytes / 2 / kRowBytes;
  const bool has_equal = equal_rows > 0 && equal_rows <= from.rows();
  const Tensor equal_from = from.row_range(0, has_equal ? equal_rows : 1),
               equal_to = to.row_range(0, equal_from.rows());
  int call = 0;
  for (int i = 0; i < kWarmUp; ++i) {
    work(call++);
    device.copy_bytes(from, to);
  }
  std::vector<double> works, copies, equal_copies;
  for (auto _ : state) {
    // The work is launched while the copy runs, so that its time does not include the launch.
    const auto begin = device.moment();
    device.copy_bytes(from, to);
    const auto middle = device.moment();
    work(call++);
    const auto end = device.moment();
    if (has_equal) device.copy_bytes(equal_from, equal_to);
    const auto last = device.moment();
    works.push_back(device.seconds_between(*middle, *end));
    copies.push_back(device.seconds_between(*begin, *middle));
    equal_copies.push_back(device.seconds_between(*end, *last));
    state.SetIterationTime(works.back());
  }
  const double seconds = median_of(works);
  state.counters["p50_us"] = 1e6 * seconds;
  const double copy_bandwidth = 2.0 * static_cast<double>(kCopyBytes) / median_of(copies);
  state.counters["copy_bytes_per_second"] = copy_bandwidth;
  if (done.bytes > 0) {
    const double bandwidth = static_cast<double>(done.bytes) / seconds;
    state.counters["bytes_per_second"] = bandwidth;
    state.counters["of_copy"] = bandwidth / copy_bandwidth;
    if (has_equal) state.counters["of_equal_copy"] = median_of(equal_copies) / seconds;
  }
  if (done.flops > 0.0) state.counters["flops"] = done.flops / seconds;
}

}  // namespace fp8lab
