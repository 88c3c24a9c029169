#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "backend/device.h"
#include "comm/process_groups.h"
#include "core/heap_allocations.h"
#include "fsdp/sharding.h"
#include "llama_8b.h"
#include "over_gpus.h"
#include "rows.h"

// The host work before the first kernel of a sharded layer (pre-forward), on `meta`, as rank 0 of four simulated ranks:
// steady state, no kernels, no waiting. A layer is one parameter group. `p50_ns` is the median of the pre-forwards; the
// columns Time and CPU also include the cost of the clock and the reshard.
//
// The rows `on_gpus` run two ranks in this process with a GPU each, or one GPU for both. There `issue_p50_ns` is the
// full pre-forward on rank 0 when both ranks start it together, including the ranks' barrier and the launch of all
// copies.
namespace fp8lab {
namespace {

constexpr int kRanks = 4;
constexpr int kWarmUp = 8;
constexpr std::int64_t kSeq = 8192;

struct Case {
  const char* layer;
  const char* form;
};
constexpr std::array kCases = {Case{"linear", "llama"}, Case{"layernorm_linear", "llama"},
                               Case{"layernorm_mlp", "llama"}, Case{"transformer_layer", "llama"},
                               Case{"transformer_layer", "gpt"}};

double median(std::vector<std::int64_t>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return static_cast<double>(*middle);
}

void pre_forward(benchmark::State& state, const Case& which, const char* recipe, bool reuse_quantizer) {
  run_ranks("simulated", {.ranks = kRanks}, [&](ProcessGroup& world) {
    const auto device = open_device("meta", {.arch = "hopper", .memory = {}});
    Runtime runtime{.device = *device, .behaviors = {}, .seed = 1};
    runtime.behaviors.reuse_quantizer_at_gather = reuse_quantizer;
    Model model(runtime, make_recipe(recipe),
                {.layer = which.layer,
                 .layers = 1,
                 .config = llama_8b(kSeq, which.form),
                 .eight_bit_weights = true,
                 .deferred_init = true});
    Mesh mesh(world, {.replicas = 1, .shards = kRanks});
    Sharding sharding(runtime, model, mesh, {});
    state.SetLabel(shape_of(llama_8b(kSeq, which.form)));
    for (int i = 0; i < kWarmUp; ++i) {
      sharding.unshard(runtime);
      sharding.reshard();
    }

    std::vector<PreForwardSample> samples;
    samples.reserve(static_cast<std::size_t>(state.max_iterations));
    runtime.host.samples = &samples;
    runtime.host.heap_allocations = heap_allocations;
    for (auto _ : state) {
      {
        const HostCounters::PreForward measured(runtime.host);
        sharding.unshard(runtime);
      }
      state.PauseTiming();
      sharding.reshard();
      state.ResumeTiming();
    }

    std::vector<std::int64_t> nanoseconds;
    std::int64_t allocations = 0, copies = 0;
    for (const PreForwardSample& sample : samples) {
      nanoseconds.push_back(sample.nanoseconds);
      allocations = std::max(allocations, sample.heap_allocations);
      copies = std::max(copies, sample.quantizer_copies);
    }
    const double p50 = median(nanoseconds);
    const auto parameters = static_cast<double>(model.parameters().size());
    state.counters["p50_ns"] = p50;
    state.counters["parameters"] = parameters;
    state.counters["p50_ns_per_parameter"] = p50 / parameters;
    state.counters["heap_allocations"] = static_cast<double>(allocations);
    state.counters["quantizer_copies"] = static_cast<double>(copies);
  });
}

void pre_forward_on_gpus(benchmark::State& state, const Case& which, const char* recipe, const char* row) {
  constexpr int kOnGpus = 2;
  Lockstep lockstep;
  run_ranks(row, {.ranks = kOnGpus}, [&](ProcessGroup& world) {
    const auto device = open_device("cuda", {.arch = "hopper", .rank = world.local_rank(), .memory = {}});
    const auto ranks = world.for_device(*device);
    Runtime runtime{.device = *device, .behaviors = {}, .seed = 1};
    Model model(runtime, make_recipe(recipe),
                {.layer = which.layer,
                 .layers = 1,
                 .config = llama_8b(kSeq, which.form),
                 .eight_bit_weights = true,
                 .deferred_init = true});
    Mesh mesh(*ranks, {.replicas = 1, .shards = kOnGpus});
    Sharding sharding(runtime, model, mesh, {});
    std::vector<PreForwardSample> samples;
    std::vector<std::int64_t> issued;
    samples.reserve(static_cast<std::size_t>(state.max_iterations) + kWarmUp);
    issued.reserve(samples.capacity());
    const auto round = [&] {
      world.barrier("together");
      const auto begin = std::chrono::steady_clock::now();
      {
        const HostCounters::PreForward measured(runtime.host);
        sharding.unshard(runtime);
      }
      issued.push_back((std::chrono::steady_clock::now() - begin) / std::chrono::nanoseconds(1));
      sharding.reshard();
      device->synchronize();
    };
    for (int i = 0; i < kWarmUp; ++i) round();
    issued.clear();
    runtime.host.samples = &samples;
    runtime.host.heap_allocations = heap_allocations;
    lockstep.run(state, world, round, [&] { return 1e-9 * static_cast<double>(issued.back()); });
    if (world.rank() != 0) return;
    state.SetLabel(shape_of(llama_8b(kSeq, which.form)));
    std::vector<std::int64_t> nanoseconds;
    std::int64_t allocations = 0;
    for (const PreForwardSample& sample : samples) {
      nanoseconds.push_back(sample.nanoseconds);
      allocations = std::max(allocations, sample.heap_allocations);
    }
    state.counters["p50_ns"] = median(nanoseconds);
    state.counters["issue_p50_ns"] = median(issued);
    state.counters["parameters"] = static_cast<double>(model.parameters().size());
    state.counters["heap_allocations"] = static_cast<double>(allocations);
  });
}

void register_on_gpus() {
  for (const char* row : {"in_process", "nccl"}) {
    if (!process_group_row(row).unavailable_reason().empty()) continue;
    for (const char* recipe : {"bf16", "delayed", "current", "mxfp8"}) {
      const Case& which = kCases[3];
      const std::string name =
          std::string("pre_forward/on_gpus/") + row + "/" + recipe + "/" + which.layer + "_" + which.form;
      set_iterations(benchmark::RegisterBenchmark(
                         name.c_str(), [=](benchmark::State& state) { pre_forward_on_gpus(state, which, recipe, row); })
                         ->UseManualTime()
                         ->Unit(benchmark::kMicrosecond),
                     300);
    }
  }
}

void register_all() {
  for (const char* recipe : {"bf16", "delayed", "current", "mxfp8"})
    for (const Case& which : kCases)
      for (const bool reuse : {true, false}) {
        if (!reuse && std::string(recipe) == "bf16") continue;
        const std::string name = std::string("pre_forward/") + recipe + "/" + which.layer + "_" + which.form +
                                 (reuse ? "" : "/quantizer_copied_at_gather");
        benchmark::RegisterBenchmark(name.c_str(),
                                     [=](benchmark::State& state) { pre_forward(state, which, recipe, reuse); });
      }
}

}  // namespace
}  // namespace fp8lab

int main(int argc, char** argv) {
  if (!fp8lab::read_options(argc, argv)) return 1;
  setenv("NCCL_NVLS_ENABLE", "0", 0);  // no NVLink multicast
  fp8lab::register_all();
  if (fp8lab::device_row("cuda").unavailable_reason().empty()) fp8lab::register_on_gpus();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
