#include <benchmark/benchmark.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "autograd/node.h"
#include "llama_8b.h"
#include "nn/model.h"
#include "on_gpu.h"

// Forward and backward of a Llama-3 8B layer of 2 x 4096 tokens on the GPU; weights are cast in every forward. The rows
// are the rows of the layer table, with equal bits on every run or, named `any_order`, without that guarantee, which is
// Transformer Engine's default. There is no loss: the gradient of the layer's output is given. Steps are launched back
// to back, so that the time of a step is the GPU's, or the host's time if it is longer; `host_ms` is the time to launch
// one step, `forward_ms` the part of forward. `flops` counts the products and causal attention: 2 m n k each, once for
// forward and twice for backward (attention two and a half times).
namespace fp8lab {
namespace {

constexpr std::int64_t kSeq = 4096, kBatch = 2;
constexpr int kStepsAtOnce = 4;

struct Case {
  const char* name;
  const char* recipe;
  bool fp8_attention;
};
constexpr Case kCases[] = {
    {"bf16", "bf16", false},   {"delayed", "delayed", false},      {"current", "current", false},
    {"block", "block", false}, {"mxfp8_emulated", "mxfp8", false}, {"delayed_fp8_attention", "delayed", true}};

double flops_of(const LayerConfig& c) {
  const double tokens = static_cast<double>(c.seq * c.batch), hidden = static_cast<double>(c.hidden);
  const double head_dim = hidden / static_cast<double>(c.heads);
  const double weights = hidden * (hidden + 2.0 * head_dim * static_cast<double>(c.kv_heads)) + hidden * hidden +
                         3.0 * hidden * static_cast<double>(c.ffn);
  const double attention = 2.0 * tokens * static_cast<double>(c.seq) * hidden;  // the mask leaves half of both products
  return 3.0 * 2.0 * tokens * weights + 3.5 * attention;
}

double ms_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

void train_layer(benchmark::State& state, const Case& which, bool deterministic) {
  Device& device = *gpu();
  device.context().set_deterministic(deterministic);
  Runtime runtime{.device = device, .behaviors = {}, .seed = 1};
  LayerConfig config = llama_8b(kSeq);
  config.batch = kBatch;
  config.fp8_attention = which.fp8_attention;
  state.SetLabel(shape_of(config));
  Model model(runtime, make_recipe(which.recipe), {.layers = 1, .config = config});
  const Shape shape{kSeq * kBatch, config.hidden};
  const Variable x{random_tensor(device, shape, DType::kBF16, 2), nullptr};
  const Tensor grad_y = random_tensor(device, shape, DType::kBF16, 3);
  std::vector<double> host_ms, step_seconds, forward_seconds;
  std::unique_ptr<Moment> forward_done;
  const auto step = [&] {
    const Variable y = model.forward(runtime, x);
    model.update_forward_scales(runtime);
    forward_done = device.moment();
    run_backward(runtime, y, grad_y);
    model.update_backward_scales(runtime);
    model.zero_grad();
    ++runtime.step;
  };
  for (int i = 0; i < 3; ++i) step();
  for (auto _ : state) {
    device.synchronize();
    const auto start = std::chrono::steady_clock::now();
    step();
    host_ms.push_back(ms_since(start));
    double seconds = 0.0;
    for (int i = 0; i < kStepsAtOnce; ++i) {
      const auto begin = device.moment();
      step();
      const auto end = device.moment();
      if (i + 1 < kStepsAtOnce) continue;  // time the last step only: the GPU is busy when it is launched
      seconds = device.seconds_between(*begin, *end);
      forward_seconds.push_back(device.seconds_between(*begin, *forward_done));
    }
    step_seconds.push_back(seconds);
    state.SetIterationTime(seconds);
  }
  const double seconds = median_of(step_seconds);
  state.counters["step_ms"] = 1e3 * seconds;
  state.counters["forward_ms"] = 1e3 * median_of(forward_seconds);
  state.counters["host_ms"] = median_of(host_ms);
  state.counters["flops"] = flops_of(config) / seconds;
}

}  // namespace
}  // namespace fp8lab

int main(int argc, char** argv) {
  return fp8lab::run_on_gpu(argc, argv, [] {
    for (const fp8lab::Case& which : fp8lab::kCases)
      for (const bool deterministic : {true, false})
        fp8lab::set_iterations(
            benchmark::RegisterBenchmark(
                (std::string("layer/llama_8b_2x4096/") + which.name + (deterministic ? "" : "/any_order")).c_str(),
                [&which, deterministic](benchmark::State& state) { fp8lab::train_layer(state, which, deterministic); })
                ->UseManualTime()
                ->Unit(benchmark::kMillisecond),
            10);
  });
}
