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

/// Every rank sends every rank equally many bytes; `size` is what a rank receives.
void all_to_all(benchmark::State& state, const Mode& mode, std::int64_t size) {
  const std::int64_t ranks = gpus(), each = size / ranks;
  const std::vector<std::int64_t> bytes(static_cast<std::size_t>(ranks * ranks), each);
  const auto sent = [each](int sender, int receiver, std::int64_t i) { return pattern(sender, i + each * receiver); };
  run_row(state, mode, size, [&](Device& device, ProcessGroup& group) {
    auto from = std::make_shared<Buffer>(device, size, false);
    auto to = std::make_shared<Buffer>(device, size, false);
    std::vector<std::byte> values(static_cast<std::size_t>(size));
    for (std::int64_t i = 0; i < each * ranks; ++i)
      values[static_cast<std::size_t>(i)] = sent(group.rank(), static_cast<int>(i / each), i % each);
    from->write(0, values);
    const AllToAllPart part{.from = from->data(), .to = to->data(), .bytes = bytes};
    return Part{.call = [&group, part, from] { group.all_to_all({&part, 1}, "exchange"); },
                .count_wrong =
                    [&group, to, each, ranks, sent] {
                      const std::vector<std::byte> seen = to->read();
                      std::int64_t wrong = 0;
                      for (std::int64_t i = 0; i < each * ranks; ++i)
                        wrong += seen[static_cast<std::size_t>(i)] !=
                                 sent(static_cast<int>(i / each), group.rank(), i % each);
                      return wrong;
                    }};
  });
  state.SetLabel("uint8, redop none");
}

/// Times of two collectives that alternate, measured on rank 0.
class Alternating {
 public:
  /// Collective: calls each of the two a few times.
  template <class Call>
  void run(benchmark::State& state, Device& device, ProcessGroup& group, ProcessGroup& world, const Call& call) {
    const auto batch = [&] {
      constexpr int kCalls = 5;
      for (const int bytes : {0, 1}) {
        device.synchronize();
        call(group, bytes);
        const auto begin = device.moment();
        for (int i = 0; i < kCalls; ++i) call(group, bytes);
        const auto end = device.moment();
        const double seconds = device.seconds_between(*begin, *end) / kCalls;
        if (world.rank() == 0) seconds_[bytes].push_back(seconds);
      }
    };
    batch();
    lockstep_.run(state, world, batch, [&] { return seconds_[0].back(); });
  }
  void count(benchmark::State& state) const {
    const double eight = median_of(seconds_[0]), sixteen = median_of(seconds_[1]);
    state.counters["eight_bits_us"] = 1e6 * eight;
    state.counters["sixteen_bits_us"] = 1e6 * sixteen;
    state.counters["speedup"] = sixteen / eight;
  }

 private:
  std::vector<double> seconds_[2];  ///< in eight and in sixteen bits
  Lockstep lockstep_;
};

/// Gathers of the weights of a Llama-3 8B layer, alternately in sixteen and in eight bits.
void eight_beside_sixteen_bits(benchmark::State& state, const Mode& mode) {
  constexpr std::int64_t kWeights[] = {4096 * 6144, 4096 * 4096, 4096 * 28672, 4096 * 14336};
  Alternating alternating;
  run_ranks(mode.row, mode.options(), [&](ProcessGroup& world) {
    const GpuPart gpu_part(mode, world);
    std::vector<std::unique_ptr<Buffer>> buffers;
    std::vector<std::vector<std::int64_t>> offsets;
    std::vector<GatherPart> parts[2];
    offsets.reserve(2 * std::size(kWeights));
    for (const int bytes : {0, 1}) {
      for (const std::int64_t weights : kWeights) {
        const std::int64_t size = weights * (bytes + 1);
        offsets.push_back(even_offsets(size, world.size()));
        buffers.push_back(std::make_unique<Buffer>(*gpu_part.device, size / world.size(), mode.windows));
        const std::byte* const from = buffers.back()->data();
        buffers.push_back(std::make_unique<Buffer>(*gpu_part.device, size, mode.windows));
        parts[bytes].push_back({.from = from, .to = buffers.back()->data(), .offsets_bytes = offsets.back()});
      }
    }
    alternating.run(state, *gpu_part.device, *gpu_part.group, world,
                    [&](ProcessGroup& group, int bytes) { group.all_gather(parts[bytes], "layer"); });
  });
  alternating.count(state);
}

/// Tokens of a Mixtral 8x7B layer on their way to the experts of all ranks, alternately in sixteen bits, and in eight
/// bits with a scale for each 128 columns. Each rank has 8192 tokens with two experts each, and the last rank's experts
/// get a quarter more than the first rank's.
void tokens_to_experts(benchmark::State& state, const Mode& mode) {
  constexpr std::int64_t kRows = 2 * 8192, kColumns = 4096, kScaleBytes = 4 * kColumns / 128;
  Alternating alternating;
  run_ranks(mode.row, mode.options(), [&](ProcessGroup& world) {
    const GpuPart gpu_part(mode, world);
    const std::int64_t ranks = world.size();
    const auto place = [&](std::int64_t to) {
      return kRows * to * (8 * (ranks - 1) + to - 1) / (9 * ranks * (ranks - 1));
    };
    std::vector<std::int64_t> bytes_of[3];  // in rows of eight-bit numbers, of sixteen-bit numbers, and of scales
    std::int64_t received = 0;
    for (std::int64_t from = 0; from < ranks; ++from)
      for (std::int64_t to = 0; to < ranks; ++to) {
        const std::int64_t rows = place(to + 1) - place(to);
        bytes_of[0].push_back(rows * kColumns);
        bytes_of[1].push_back(2 * rows * kColumns);
        bytes_of[2].push_back(rows * kScaleBytes);
        received = std::max(received, ranks * rows);
      }
    std::vector<std::unique_ptr<Buffer>> buffers;
    const auto part_of = [&](int kind, std::int64_t row_bytes) {
      buffers.push_back(std::make_unique<Buffer>(*gpu_part.device, kRows * row_bytes, false));
      const std::byte* const from = buffers.back()->data();
      buffers.push_back(std::make_unique<Buffer>(*gpu_part.device, received * row_bytes, false));
      return AllToAllPart{.from = from, .to = buffers.back()->data(), .bytes = bytes_of[kind]};
    };
    const std::vector<AllToAllPart> parts[2] = {{part_of(0, kColumns), part_of(2, kScaleBytes)},
                                                {part_of(1, 2 * kColumns)}};
    alternating.run(state, *gpu_part.device, *gpu_part.group, world,
                    [&](ProcessGroup& group, int bytes) { group.all_to_all(parts[bytes], "tokens"); });
  });
  alternating.count(state);
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
    if (!mode.windows) {
      for (std::int64_t mib = 1; mib <= 1024; mib *= 4)
        add(
            "all_to_all/" + mode.name + "/" + std::to_string(mib) + "MiB",
            [&mode, mib](benchmark::State& state) { all_to_all(state, mode, mib << 20); }, mib >= 256 ? 5 : 15);
      add(
          "tokens_to_experts/" + mode.name + "/mixtral_8x7b_layer",
          [&mode](benchmark::State& state) { tokens_to_experts(state, mode); }, 15);
    }
    add(
        "all_reduce/" + mode.name + "/32_scalars", [&mode](benchmark::State& state) { all_reduce_small(state, mode); },
        15);
  }
}

}  // namespace
}  // namespace fp8lab

int main(int argc, char** argv) { return fp8lab::run_over_gpus(argc, argv, fp8lab::register_all); }
