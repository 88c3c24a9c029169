#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "on_gpu.h"
#include "optim/adam.h"

// A step of Adam on the GPU over 24 matrices of 4096 x 4096, relative to device copies (on_gpu.h). Bytes are those that
// a step must read and write, each counted once: with FP8 weights and FP32 masters 27 per parameter (gradient 2; master
// and both moments 4 read and 4 written each; quantized weight 1), 28 with the transpose. Current scaling reads the
// master once more, between its amax and its cast; that is not counted.
//
// The rows adam_host time the host's work for a step over many small parameters, until everything is launched.
namespace fp8lab {
namespace {

constexpr std::int64_t kSide = 4096;
constexpr int kTensors = 24;
constexpr std::int64_t kParameters = kTensors * kSide * kSide;
const std::string kShape = fmt::format("{} tensors of {}x{}", kTensors, kSide, kSide);

struct Row {
  const char* name;
  DType dtype;
  const char* recipe;  ///< bf16: weights in high precision
  bool transpose;
  AdamOptions options;
  std::int64_t bytes_per_parameter;
};

constexpr auto kMaster = MasterWeights::kF32;
const Row kTable[] = {
    {"f32", DType::kF32, "bf16", false, {}, 28},
    {"bf16/f32_master", DType::kBF16, "bf16", false, {.master = kMaster}, 28},
    {"bf16/remainder", DType::kBF16, "bf16", false, {.master = MasterWeights::kRemainder}, 26},
    {"bf16/f32_master/bf16_moments",
     DType::kBF16,
     "bf16",
     false,
     {.master = kMaster, .exp_avg = DType::kBF16, .exp_avg_sq = DType::kBF16},
     20},
    {"fp8_delayed/f32_master", DType::kBF16, "delayed", false, {.master = kMaster}, 27},
    {"fp8_delayed/f32_master/transpose", DType::kBF16, "delayed", true, {.master = kMaster}, 28},
    {"fp8_delayed/f32_master/transpose/clipped",
     DType::kBF16,
     "delayed",
     true,
     {.master = kMaster, .max_grad_norm = 1.0},
     30},
    {"fp8_current/f32_master", DType::kBF16, "current", false, {.master = kMaster}, 27},
    {"fp8_current/f32_master/transpose", DType::kBF16, "current", true, {.master = kMaster}, 28},
    {"fp8_delayed/f32_master/bf16_moments",
     DType::kBF16,
     "delayed",
     false,
     {.master = kMaster, .exp_avg = DType::kBF16, .exp_avg_sq = DType::kBF16},
     19},
    {"fp8_delayed/f32_master/e4m3_f16_moments",
     DType::kBF16,
     "delayed",
     false,
     {.master = kMaster, .exp_avg = DType::kE4M3, .exp_avg_sq = DType::kF16},
     17},
};

/// Parameters with gradients, and their optimizer.
struct Bench {
  Runtime runtime{.device = *gpu(), .behaviors = {}};
  HolderId holder = runtime.device.holder(HolderKind::kInput, "bench");
  std::vector<std::unique_ptr<Parameter>> parameters;
  std::unique_ptr<Adam> adam;

  Bench(const Row& row, int tensors, const Shape& shape) {
    std::vector<Parameter*> list;
    for (int i = 0; i < tensors; ++i) {
      parameters.push_back(make(row, shape, static_cast<std::uint64_t>(i)));
      list.push_back(parameters.back().get());
    }
    adam = std::make_unique<Adam>(list, row.options);
    adam->step(runtime);
  }
  std::unique_ptr<Parameter> make(const Row& row, const Shape& shape, std::uint64_t index) const {
    Device& device = runtime.device;
    auto parameter = std::make_unique<Parameter>();
    parameter->name = "w" + std::to_string(index);
    parameter->spec = {shape, row.dtype};
    const Tensor values = random_tensor(device, shape, row.dtype, 2 * index);
    parameter->grad = random_tensor(device, shape, row.dtype, 2 * index + 1);
    const Recipe recipe = make_recipe(row.recipe);
    if (!recipe.quantized) {
      parameter->value = values;
      return parameter;
    }
    parameter->quantizer = std::make_unique<Quantizer>();
    Quantizer& quantizer = *parameter->quantizer;
    quantizer.format = recipe.weight;
    quantizer.orientations.columnwise = row.transpose;
    quantizer.holder = holder;
    if (recipe.weight.amax_source == AmaxSource::kHistory) {
      quantizer.scale = device.allocate({Shape{1}, DType::kF32}, holder);
      quantizer.amax = device.allocate({Shape{1}, DType::kF32}, holder);
      fill(device, quantizer.scale, 64.0f);
      fill(device, quantizer.amax, 0.0f);
    }
    parameter->quantized = quantize(device, values, quantizer);
    return parameter;
  }
};

void step(benchmark::State& state, const Row& row) {
  Bench bench(row, kTensors, {kSide, kSide});
  state.SetLabel(kShape);
  time_on_gpu(state, {.bytes = row.bytes_per_parameter * kParameters}, [&](int) { bench.adam->step(bench.runtime); });
}

void host_step(benchmark::State& state, const Row& row) {
  Bench bench(row, static_cast<int>(state.range(0)), {64, 64});
  state.SetLabel(fmt::format("{} tensors of 64x64", state.range(0)));
  for (auto _ : state) {
    const auto begin = std::chrono::steady_clock::now();
    bench.adam->step(bench.runtime);
    state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    bench.runtime.device.synchronize();
  }
}

void gradient_norm(benchmark::State& state, DType dtype) {
  Device& device = *gpu();
  std::vector<Tensor> gradients;
  std::vector<MatrixView> views;
  for (int i = 0; i < kTensors; ++i) {
    gradients.push_back(random_tensor(device, {kSide, kSide}, dtype, static_cast<std::uint64_t>(i)));
    views.push_back(gradients.back().view());
  }
  const Tensor sum = device.allocate({Shape{1}, DType::kF32}, device.holder(HolderKind::kInput));
  const auto bytes = static_cast<std::int64_t>(size_bytes(dtype));
  state.SetLabel(kShape);
  time_on_gpu(state, {.bytes = bytes * kParameters}, [&](int) {
    device.launch(&KernelTable::square_sum, SquareSumArgs{.tensors = views, .sum = sum.data<float>()});
  });
}

void list_operation(benchmark::State& state, ListOp op, std::int64_t arrays) {
  constexpr float kScalar = -1.0f;  // keeps magnitudes when values are scaled in place again and again
  Device& device = *gpu();
  std::vector<Tensor> tensors;
  std::vector<ListOpTensor> list;
  for (int i = 0; i < kTensors; ++i) {
    for (int k = 0; k < 3; ++k)
      tensors.push_back(random_tensor(device, {kSide, kSide}, DType::kF32, static_cast<std::uint64_t>(i)));
    list.push_back({.out = tensors.end()[-3].view(), .a = tensors.end()[-2].view(), .b = tensors.end()[-1].view()});
  }
  state.SetLabel(kShape);
  time_on_gpu(state, {.bytes = 4 * arrays * kParameters}, [&](int) {
    device.launch(&KernelTable::list_op, ListOpArgs{.op = op, .tensors = list, .scalar = kScalar});
  });
}

void register_rows() {
  const auto on_gpu = [](const std::string& name, auto work) {
    set_iterations(benchmark::RegisterBenchmark(name.c_str(), work)->UseManualTime()->Unit(benchmark::kMicrosecond),
                   11);
  };
  for (const Row& row : kTable)
    on_gpu("adam/" + std::string(row.name), [&row](benchmark::State& state) { step(state, row); });
  on_gpu("gradient_norm/bf16", [](benchmark::State& state) { gradient_norm(state, DType::kBF16); });
  on_gpu("gradient_norm/f32", [](benchmark::State& state) { gradient_norm(state, DType::kF32); });
  on_gpu("list_op/scale", [](benchmark::State& state) { list_operation(state, ListOp::kScale, 2); });
  on_gpu("list_op/addcdiv", [](benchmark::State& state) { list_operation(state, ListOp::kAddcdiv, 4); });
  for (const Row& row : kTable)
    set_iterations(benchmark::RegisterBenchmark(("adam_host/" + std::string(row.name)).c_str(),
                                                [&row](benchmark::State& state) { host_step(state, row); })
                       ->Arg(300)
                       ->UseManualTime()
                       ->Unit(benchmark::kMicrosecond),
                   200);
}

}  // namespace
}  // namespace fp8lab

int main(int argc, char** argv) { return fp8lab::run_on_gpu(argc, argv, fp8lab::register_rows); }
