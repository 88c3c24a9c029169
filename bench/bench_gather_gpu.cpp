#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backend/device.h"
#include "comm/process_groups.h"
#include "fsdp/sharding.h"
#include "llama_8b.h"
#include "median.h"
#include "over_gpus.h"

// The all-gather of one sharded Llama-3 8B layer, as sharded training does it: one thread and one GPU per rank, weights
// in eight bits if the recipe quantizes, all parameters in one call. `size` includes the scales. Times belong to the
// slowest GPU, measured by its own events over gathers that are launched back to back.
namespace fp8lab {
namespace {

constexpr std::int64_t kSeq = 8192;
constexpr std::int64_t kNever = std::int64_t{1} << 60;

struct Mode {
  std::string_view name;
  std::string_view row;
  bool windows = true;
  std::int64_t writes_from_bytes = RunOptions().writes_from_bytes;
};

// Modes named `symmetric` use NCCL's own symmetric-memory kernels.
const Mode kModes[] = {
    {.name = "threads", .row = "in_process"},
    {.name = "nccl/any_memory", .row = "nccl", .windows = false},
    {.name = "nccl/windows", .row = "nccl"},
    {.name = "nccl/windows/symmetric", .row = "nccl", .writes_from_bytes = kNever},
};

/// One rank's layer.
class Layer {
 public:
  Layer(Device& device, ProcessGroup& ranks, std::string_view recipe)
      : runtime_{.device = device, .behaviors = {}, .seed = 1},
        model_(runtime_, make_recipe(recipe),
               {.layer = "transformer_layer",
                .layers = 1,
                .config = llama_8b(kSeq),
                .eight_bit_weights = true,
                .deferred_init = true}),
        mesh_(ranks, {.replicas = 1, .shards = ranks.size()}),
        sharding_(runtime_, model_, mesh_, {}) {}

  void gather() {
    sharding_.unshard(runtime_);
    sharding_.reshard();
  }
  /// The bytes of all gathers so far.
  std::int64_t bytes() {
    const TrafficCount& count = mesh_.shard_group().traffic().of(CollectiveKind::kAllGather);
    return count.payload_bytes + count.scale_bytes;
  }

 private:
  Runtime runtime_;
  Model model_;
  Mesh mesh_;
  Sharding sharding_;
};

void gather_layer(benchmark::State& state, const Mode& mode, std::string_view recipe) {
  constexpr int kCalls = 10;
  std::vector<double> seconds(static_cast<std::size_t>(gpus()));
  std::vector<double> slowest;
  std::atomic<std::int64_t> size = 0;
  Lockstep lockstep;
  RunOptions options{.ranks = gpus()};
  options.writes_from_bytes = mode.writes_from_bytes;
  options.gather_windows = mode.windows;
  run_ranks(mode.row, options, [&](ProcessGroup& world) {
    const auto device = open_device("cuda", {.rank = world.local_rank(), .memory = {}});
    const auto ranks = world.for_device(*device);
    Layer layer(*device, *ranks, recipe);
    layer.gather();
    size = layer.bytes();
    const auto batch = [&] {
      device->synchronize();
      world.barrier("together");
      layer.gather();  // makes the GPUs start the timed gathers together
      const auto begin = device->moment();
      for (int i = 0; i < kCalls; ++i) layer.gather();
      const auto end = device->moment();
      seconds[static_cast<std::size_t>(world.rank())] = device->seconds_between(*begin, *end) / kCalls;
      world.barrier("timed");
    };
    batch();
    lockstep.run(state, world, batch,
                 [&] { return slowest.emplace_back(*std::max_element(seconds.begin(), seconds.end())); });
  });
  state.SetLabel(shape_of(llama_8b(kSeq)));
  count_bandwidth(state, size.load(), median_of(slowest));
}

void register_all() {
  for (const char* recipe : {"bf16", "delayed", "current", "mxfp8"})
    for (const Mode& mode : kModes) {
      if (!process_group_row(mode.row).unavailable_reason().empty()) continue;
      const std::string name = "gather/" + std::string(recipe) + "/" + std::string(mode.name);
      set_iterations(benchmark::RegisterBenchmark(
                         name.c_str(), [&mode, recipe](benchmark::State& state) { gather_layer(state, mode, recipe); })
                         ->UseManualTime()
                         ->Unit(benchmark::kMicrosecond),
                     15);
    }
}

}  // namespace
}  // namespace fp8lab

int main(int argc, char** argv) { return fp8lab::run_over_gpus(argc, argv, fp8lab::register_all); }
