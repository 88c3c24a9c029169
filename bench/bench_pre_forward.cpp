#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/device.h"
#include "comm/process_groups.h"
#include "core/heap_allocations.h"
#include "fsdp/sharding.h"

// What the host does before a sharded layer's first kernel, on `meta`, as rank 0 of four that are not there: steady state, no
// kernels, no waiting. A layer is one parameter group. `p50_ns` is the median of its pre-forwards; the columns Time and CPU
// have the clock's own cost and the reshard in between.
namespace fp8lab {
namespace {

constexpr int kRanks = 4;
constexpr int kWarmUp = 8;

struct Case {
  const char* layer;
  const char* form;
};
constexpr std::array kCases = {Case{"linear", "llama"}, Case{"layernorm_linear", "llama"},
                               Case{"layernorm_mlp", "llama"}, Case{"transformer_layer", "llama"},
                               Case{"transformer_layer", "gpt"}};

LayerConfig llama_8b(const char* form) {
  LayerConfig config;
  config.form = layer_form(form);
  config.hidden = 4096;
  config.heads = 32;
  config.kv_heads = 8;
  config.ffn = 14336;
  config.seq = 8192;
  return config;
}

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
                 .config = llama_8b(which.form),
                 .eight_bit_weights = true,
                 .deferred_init = true});
    Mesh mesh(world, {.replicas = 1, .shards = kRanks});
    Sharding sharding(runtime, model, mesh, {});
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
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  fp8lab::register_all();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
