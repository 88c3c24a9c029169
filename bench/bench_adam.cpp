#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <string>

#include "beside_memcpy.h"
#include "ops/elementwise.h"
#include "optim/adam.h"

// A step of Adam on the host, relative to memcpy (beside_memcpy.h). Bytes are those that a step must read and write,
// each counted once: with FP8 weights and FP32 masters 27 per parameter (gradient 2; master and both moments 4 read and
// 4 written each; quantized weight 1). Current scaling reads the master once more, between its amax and its cast; that
// is not counted.
namespace fp8lab {
namespace {

constexpr std::int64_t kRows = 4096;
constexpr std::int64_t kCols = 4096;
constexpr int kRepetitions = 11;

struct Row {
  const char* name;
  DType dtype;
  const char* recipe;  ///< bf16: weights in high precision
  AdamOptions options;
  std::int64_t bytes_per_parameter;
};

const Row kTable[] = {
    {"f32", DType::kF32, "bf16", {}, 28},
    {"bf16/f32_master", DType::kBF16, "bf16", {.master = MasterWeights::kF32}, 28},
    {"bf16/remainder", DType::kBF16, "bf16", {.master = MasterWeights::kRemainder}, 26},
    {"bf16/f32_master/bf16_moments",
     DType::kBF16,
     "bf16",
     {.master = MasterWeights::kF32, .exp_avg = DType::kBF16, .exp_avg_sq = DType::kBF16},
     20},
    {"fp8_delayed/f32_master", DType::kBF16, "delayed", {.master = MasterWeights::kF32}, 27},
    {"fp8_current/f32_master", DType::kBF16, "current", {.master = MasterWeights::kF32}, 27},
};

/// One parameter, its gradient, and buffers for a memcpy of the size of a moment.
struct Bench {
  std::unique_ptr<Device> device = open_device("cpu");
  Runtime runtime{.device = *device, .behaviors = {}};
  HolderId holder = device->holder(HolderKind::kInput, "bench");
  Parameter parameter;
  Tensor from = device->allocate({Shape{kRows, kCols}, DType::kF32}, holder);
  Tensor to = device->allocate(from.spec(), holder);

  explicit Bench(const Row& row) {
    parameter.name = "w";
    parameter.spec = {Shape{kRows, kCols}, row.dtype};
    const Tensor values = device->allocate(parameter.spec, holder);
    parameter.grad = device->allocate(parameter.spec, holder);
    random_fill(*device, values, {.seed = 1});
    random_fill(*device, parameter.grad, {.seed = 2});
    fill(*device, from, 1.0f);
    const Recipe recipe = make_recipe(row.recipe);
    if (!recipe.quantized) {
      parameter.value = values;
      return;
    }
    parameter.quantizer = std::make_unique<Quantizer>();
    parameter.quantizer->format = recipe.weight;
    parameter.quantizer->holder = holder;
    if (recipe.weight.amax_source == AmaxSource::kHistory) {
      parameter.quantizer->scale = device->allocate({Shape{1}, DType::kF32}, holder);
      fill(*device, parameter.quantizer->scale, 64.0f);
    }
    parameter.quantized = quantize(*device, values, *parameter.quantizer);
  }
  void copy_once() { std::memcpy(to.data<char>(), from.data<char>(), static_cast<std::size_t>(from.bytes())); }
};

void step(benchmark::State& state, const Row& row) {
  Bench bench(row);
  state.SetLabel(fmt::format("1 tensor of {}x{}, {}", kRows, kCols, name(row.dtype)));
  Adam adam({&bench.parameter}, row.options);
  measure_beside(
      state, {.by_copy = 2 * bench.from.bytes(), .by_work = row.bytes_per_parameter * kRows * kCols},
      [&] { bench.copy_once(); }, [&] { adam.step(bench.runtime); });
}

}  // namespace
}  // namespace fp8lab

int main(int argc, char** argv) {
  return fp8lab::run_on_one_core(argc, argv, [] {
    for (const fp8lab::Row& row : fp8lab::kTable)
      fp8lab::set_iterations(benchmark::RegisterBenchmark(("adam/" + std::string(row.name)).c_str(), fp8lab::step, row)
                                 ->UseManualTime()
                                 ->Unit(benchmark::kMillisecond),
                             fp8lab::kRepetitions);
  });
}
