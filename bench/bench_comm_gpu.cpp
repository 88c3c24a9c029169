#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/device.h"
#include "comm/process_groups.h"
#include "comm_beside_products.h"
#include "comm_modes.h"
#include "core/check.h"
#include "core/float16.h"
#include "median.h"
#include "over_gpus.h"

// Collectives over all GPUs of this machine, one thread per GPU. Times belong to the slowest GPU, measured by its
// own events over calls that are launched back to back. `wrong` counts bytes of the results that are wrong.
namespace fp8lab {
namespace {

std::byte pattern(int rank, std::int64_t i) { return static_cast<std::byte>((i ^ (i >> 8) ^ (i >> 17)) + 17 * rank); }

/// One GPU's part of a row: `call` launches the collective once; `count_wrong` counts the wrong bytes of the result.
struct Part {
  std::function<void()> call;
  std::function<std::int64_t()> count_wrong;
};
using MakePart = std::function<Part(Device&, ProcessGroup&)>;

/// Runs a row. An iteration is a batch of calls, and its time is the time of one call. The data passes each GPU's link
/// `times` times.
void run_row(benchmark::State& state, const Mode& mode, std::int64_t size, const MakePart& make_part, int times = 1) {
  const int ranks = gpus();
  const int calls = size >= (std::int64_t{256} << 20) ? 4 : size >= (std::int64_t{16} << 20) ? 10 : 40;
  std::vector<double> seconds(static_cast<std::size_t>(ranks));
  std::vector<double> slowest;
  std::atomic<std::int64_t> wrong = 0;
  Lockstep lockstep;
  run_ranks(mode.row, mode.options(), [&](ProcessGroup& world) {
    const GpuPart gpu_part(mode, world);
    Device& device = *gpu_part.device;
    ProcessGroup& group = *gpu_part.group;
    const Part part = make_part(device, group);
    const auto batch = [&] {
      device.synchronize();
      group.barrier("together");
      part.call();  // makes the GPUs start the timed calls together
      const auto begin = device.moment();
      for (int i = 0; i < calls; ++i) part.call();
      const auto end = device.moment();
      seconds[static_cast<std::size_t>(world.rank())] = device.seconds_between(*begin, *end) / calls;
      group.barrier("timed");
    };
    batch();
    lockstep.run(state, group, batch,
                 [&] { return slowest.emplace_back(*std::max_element(seconds.begin(), seconds.end())); });
    wrong += part.count_wrong();
    group.barrier("compared");
  });
  count_bandwidth(state, size, median_of(slowest), times);
  state.counters["wrong"] = static_cast<double>(wrong.load());
}

void all_gather(benchmark::State& state, const Mode& mode, std::int64_t size) {
  const std::vector<std::int64_t> offsets = even_offsets(size, gpus());
  run_row(state, mode, size, [&](Device& device, ProcessGroup& group) {
    const auto index = static_cast<std::size_t>(group.rank());
    const std::int64_t own = offsets[index + 1] - offsets[index];
    auto to = std::make_shared<Buffer>(device, size, mode.windows);
    auto from = mode.in_place ? nullptr : std::make_shared<Buffer>(device, own, mode.windows);
    std::vector<std::byte> values(static_cast<std::size_t>(own));
    for (std::int64_t i = 0; i < own; ++i) values[static_cast<std::size_t>(i)] = pattern(group.rank(), i);
    (from ? *from : *to).write(from ? 0 : offsets[index], values);
    const GatherPart part{
        .from = from ? from->data() : to->data() + offsets[index], .to = to->data(), .offsets_bytes = offsets};
    return Part{.call = [&group, part, from] { group.all_gather({&part, 1}, "gather"); },
                .count_wrong =
                    [&offsets, &group, to] {
                      const std::vector<std::byte> seen = to->read();
                      std::int64_t wrong = 0;
                      for (int rank = 0; rank < group.size(); ++rank)
                        for (std::int64_t i = offsets[static_cast<std::size_t>(rank)];
                             i < offsets[static_cast<std::size_t>(rank) + 1]; ++i)
                          wrong += seen[static_cast<std::size_t>(i)] !=
                                   pattern(rank, i - offsets[static_cast<std::size_t>(rank)]);
                      return wrong;
                    }};
  });
  state.SetLabel("uint8, redop none");
}

/// Gathers of the weights of a Llama-3 8B layer, alternately in sixteen and in eight bits.
void eight_beside_sixteen_bits(benchmark::State& state, const Mode& mode) {
  constexpr std::int64_t kWeights[] = {4096 * 6144, 4096 * 4096, 4096 * 28672, 4096 * 14336};
  std::vector<double> of_bytes[2];
  Lockstep lockstep;
  run_ranks(mode.row, mode.options(), [&](ProcessGroup& world) {
    const GpuPart gpu_part(mode, world);
    Device& device = *gpu_part.device;
    ProcessGroup& group = *gpu_part.group;
    std::vector<std::unique_ptr<Buffer>> buffers;
    std::vector<std::vector<std::int64_t>> offsets;
    std::vector<GatherPart> parts[2];
    offsets.reserve(2 * std::size(kWeights));
    for (const int bytes : {0, 1}) {
      for (const std::int64_t weights : kWeights) {
        const std::int64_t size = weights * (bytes + 1);
        offsets.push_back(even_offsets(size, world.size()));
        buffers.push_back(std::make_unique<Buffer>(device, size / world.size(), mode.windows));
        const std::byte* const from = buffers.back()->data();
        buffers.push_back(std::make_unique<Buffer>(device, size, mode.windows));
        parts[bytes].push_back({.from = from, .to = buffers.back()->data(), .offsets_bytes = offsets.back()});
      }
    }
    const auto batch = [&] {
      constexpr int kCalls = 5;
      for (const int bytes : {0, 1}) {
        device.synchronize();
        group.all_gather(parts[bytes], "layer");
        const auto begin = device.moment();
        for (int i = 0; i < kCalls; ++i) group.all_gather(parts[bytes], "layer");
        const auto end = device.moment();
        const double seconds = device.seconds_between(*begin, *end) / kCalls;
        if (world.rank() == 0) of_bytes[bytes].push_back(seconds);
      }
    };
    batch();
    lockstep.run(state, world, batch, [&] { return of_bytes[0].back(); });
  });
  const double eight = median_of(of_bytes[0]), sixteen = median_of(of_bytes[1]);
  state.counters["eight_bits_us"] = 1e6 * eight;
  state.counters["sixteen_bits_us"] = 1e6 * sixteen;
  state.counters["speedup"] = sixteen / eight;
}

/// The value that a rank adds to element i of a sum: a small integer, so that bf16 holds sums over a few ranks exactly.
float summand(int rank, std::int64_t i) { return static_cast<float>(1 + rank + i % 16); }

void reduce_scatter(benchmark::State& state, const Mode& mode, std::int64_t size) {
  const std::vector<std::int64_t> offsets = even_offsets(size / 2, gpus());
  run_row(state, mode, size, [&](Device& device, ProcessGroup& group) {
    auto from = std::make_shared<Buffer>(device, size, false);
    auto to = std::make_shared<Buffer>(device, size / group.size(), false);
    std::vector<BFloat16> values(static_cast<std::size_t>(size / 2));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = f32_to_bf16(summand(group.rank(), static_cast<std::int64_t>(i)));
    from->write(0, std::as_bytes(std::span(values)));
    to->write(0, std::vector<std::byte>(static_cast<std::size_t>(size / group.size()), std::byte{0xFF}));
    const ScatterPart part{.from = from->data(), .to = to->data(), .offsets_elems = offsets, .dtype = DType::kBF16};
    return Part{.call = [&group, part, from] { group.reduce_scatter({&part, 1}, "scatter"); },
                .count_wrong =
                    [to, &group, first = offsets[static_cast<std::size_t>(group.rank())]] {
                      const std::vector<std::byte> seen = to->read();
                      std::int64_t wrong = 0;
                      for (std::size_t i = 0; i < seen.size() / sizeof(BFloat16); ++i) {
                        float sum = 0.0f;
                        for (int rank = 0; rank < group.size(); ++rank)
                          sum += summand(rank, first + static_cast<std::int64_t>(i));
                        const BFloat16 expected = f32_to_bf16(sum);
                        wrong += std::memcmp(&expected, seen.data() + i * sizeof expected, sizeof expected) != 0;
                      }
                      return wrong;
                    }};
  });
  state.SetLabel("bf16, redop sum");
}

/// An all-reduce of one scalar for each of 32 tensors, like amaxes.
void all_reduce_small(benchmark::State& state, const Mode& mode) {
  constexpr std::int64_t kTensors = 32;
  run_row(
      state, mode, 4 * kTensors,
      [&](Device& device, ProcessGroup& group) {
        auto data = std::make_shared<Buffer>(device, 4 * kTensors, false);
        std::vector<float> own(kTensors, 0.0f), all(kTensors);  // one rank has the largest value of each scalar
        for (std::size_t i = 0; i < own.size(); ++i) {
          all[i] = static_cast<float>(i + 1);
          if (static_cast<int>(i) % group.size() == group.rank()) own[i] = all[i];
        }
        data->write(0, std::as_bytes(std::span(own)));
        std::vector<ReducePart> parts;
        for (std::int64_t i = 0; i < kTensors; ++i) parts.push_back({.data = data->data() + 4 * i, .elems = 1});
        return Part{.call = [&group, parts, data] { group.all_reduce(ReduceOp::kMax, parts, "amax"); },
                    .count_wrong =
                        [data, all] {
                          const std::vector<std::byte> seen = data->read();
                          std::int64_t wrong = 0;
                          for (std::size_t i = 0; i < all.size(); ++i)
                            wrong += std::memcmp(&all[i], seen.data() + 4 * i, 4) != 0;
                          return wrong;
                        }};
      },
      2);
  state.SetLabel("f32, redop max");
}

void add(const std::string& name, const std::function<void(benchmark::State&)>& row, int iterations) {
  const auto guarded = [row](benchmark::State& state) {
    try {
      row(state);
    } catch (const Error& error) {
      state.SkipWithError(error.what());
    }
  };
  set_iterations(benchmark::RegisterBenchmark(name.c_str(), guarded)->UseManualTime()->Unit(benchmark::kMicrosecond),
                 iterations);
}

void register_all() {
  for (const Mode& mode : modes()) {
    if (!process_group_row(mode.row).unavailable_reason().empty()) continue;
    for (std::int64_t mib = 1; mib <= 1024; mib *= 4)
      add(
          "all_gather/" + mode.name + "/" + std::to_string(mib) + "MiB",
          [&mode, mib](benchmark::State& state) { all_gather(state, mode, mib << 20); }, mib >= 256 ? 5 : 15);
    if (mode.in_place) continue;
    for (std::int64_t mib = 1; mib <= 1024; mib *= 16)
      add(
          "reduce_scatter/" + mode.name + "/" + std::to_string(mib) + "MiB",
          [&mode, mib](benchmark::State& state) { reduce_scatter(state, mode, mib << 20); }, mib >= 256 ? 5 : 15);
    add(
        "gather_beside_products/" + mode.name,
        [&mode](benchmark::State& state) { gather_beside_products(state, mode); }, 15);
    add(
        "products_beside_late_ranks/" + mode.name,
        [&mode](benchmark::State& state) { products_beside_late_ranks(state, mode); }, 15);
    add(
        "eight_beside_sixteen_bits/" + mode.name + "/llama_3_8b_layer",
        [&mode](benchmark::State& state) { eight_beside_sixteen_bits(state, mode); }, 15);
    add(
        "all_reduce/" + mode.name + "/32_scalars", [&mode](benchmark::State& state) { all_reduce_small(state, mode); },
        15);
  }
}

}  // namespace
}  // namespace fp8lab

int main(int argc, char** argv) { return fp8lab::run_over_gpus(argc, argv, fp8lab::register_all); }
