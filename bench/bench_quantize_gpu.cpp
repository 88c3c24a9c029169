#include <fmt/format.h>

#include <string>
#include <vector>

#include "on_gpu.h"
#include "ops/quantize.h"

// Quantization on the GPU, relative to device copies (on_gpu.h). Bytes are those that the recipe must move: the input
// once, or twice if the amax is measured first, and the output. The second read finds part of the input in the L2,
// so `of_copy` may exceed the limit of memory bandwidth.
namespace fp8lab {
namespace {

struct Format {
  const char* name;
  QuantFormat format;
};
std::vector<Format> formats() {
  const Recipe delayed = make_recipe("delayed"), current = make_recipe("current"), block = make_recipe("block");
  return {{"delayed", delayed.activation}, {"delayed_e5m2", delayed.gradient},
          {"current", current.activation}, {"block_1x128", block.activation},
          {"block_128x128", block.weight}, {"mxfp8", make_recipe("mxfp8").activation}};
}

struct Direction {
  const char* name;
  Orientations orientations;
};
constexpr Direction kDirections[] = {{"rowwise", {true, false}}, {"columnwise", {false, true}}, {"both", {true, true}}};

/// The first size is the size of the peers' figure; the others are inputs of a Llama-8B-shaped layer of 8192 tokens.
constexpr struct {
  std::int64_t rows, cols;
} kSizes[] = {{16384, 8192}, {8192, 4096}, {8192, 14336}};

struct Case {
  Format format;
  Direction direction;
  Shape shape;
  DType dtype;
};

/// Inputs that are used in turn, so that none is in the L2 when it is read.
std::vector<Tensor> inputs_of(const Case& row) {
  std::vector<Tensor> inputs;
  const int sets = rotations_past_l2(TensorSpec{row.shape, row.dtype}.bytes());
  for (int i = 0; i < sets; ++i)
    inputs.push_back(random_tensor(*gpu(), row.shape, row.dtype, static_cast<std::uint64_t>(i)));
  return inputs;
}

Quantizer quantizer_of(const Case& row) {
  const HolderId holder = gpu()->holder(HolderKind::kInFlight);
  Quantizer quantizer{.format = row.format.format, .orientations = row.direction.orientations, .holder = holder};
  if (row.format.format.amax_source != AmaxSource::kHistory) return quantizer;
  quantizer.scale = gpu()->allocate({Shape{1}, DType::kF32}, holder);
  quantizer.amax = gpu()->allocate({Shape{1}, DType::kF32}, holder);
  fill(*gpu(), quantizer.scale, 64.0f);
  fill(*gpu(), quantizer.amax, 0.0f);
  return quantizer;
}

void quantize_row(benchmark::State& state, const Case& row) {
  const std::vector<Tensor> inputs = inputs_of(row);
  const Quantizer quantizer = quantizer_of(row);
  const int reads = row.format.format.amax_source == AmaxSource::kTensor ? 2 : 1;
  const std::int64_t written = quantize(*gpu(), inputs[0], quantizer).bytes();
  time_on_gpu(state, {.bytes = reads * inputs[0].bytes() + written},
              [&](int i) { quantize(*gpu(), inputs[static_cast<std::size_t>(i) % inputs.size()], quantizer); });
}

void dequantize_row(benchmark::State& state, const Case& row) {
  std::vector<QuantizedTensor> quantized;
  for (const Tensor& x : inputs_of(row)) quantized.push_back(quantize(*gpu(), x, quantizer_of(row)));
  const HolderId holder = gpu()->holder(HolderKind::kInFlight);
  time_on_gpu(state, {.bytes = quantized[0].bytes() + TensorSpec{row.shape, row.dtype}.bytes()}, [&](int i) {
    dequantize(*gpu(), quantized[static_cast<std::size_t>(i) % quantized.size()].rowwise_operand(), row.dtype, holder);
  });
}

void amax_row(benchmark::State& state, const Case& row) {
  const std::vector<Tensor> inputs = inputs_of(row);
  const Tensor amax = gpu()->allocate({Shape{1}, DType::kF32}, gpu()->holder(HolderKind::kInFlight));
  fill(*gpu(), amax, 0.0f);
  time_on_gpu(state, {.bytes = inputs[0].bytes()}, [&](int i) {
    const Tensor& x = inputs[static_cast<std::size_t>(i) % inputs.size()];
    gpu()->launch(&KernelTable::amax, AmaxArgs{.in = x.view(), .amax = amax.data<float>()});
  });
}

template <class Run>
void add(const std::string& name, const Case& row, const Run& run) {
  const std::string full =
      fmt::format("{}/{}x{}/{}", name, row.shape.rows(), row.shape.cols(), fp8lab::name(row.dtype));
  set_iterations(benchmark::RegisterBenchmark(full.c_str(), [row, run](benchmark::State& state) { run(state, row); })
                     ->UseManualTime()
                     ->Unit(benchmark::kMicrosecond),
                 31);
}

void register_rows() {
  for (const auto [rows, cols] : kSizes) {
    const Shape shape{rows, cols};
    for (const Format& format : formats())
      for (const Direction& direction : kDirections)
        add(fmt::format("quantize/{}/{}", format.name, direction.name), {format, direction, shape, DType::kBF16},
            quantize_row);
    for (const Format& format : formats())
      add(fmt::format("dequantize/{}", format.name), {format, kDirections[0], shape, DType::kBF16}, dequantize_row);
    add("amax", {{}, {}, shape, DType::kBF16}, amax_row);
  }
  // FP32 weights and gradients.
  for (const Format& format : formats())
    for (const Direction& direction : {kDirections[0], kDirections[2]})
      add(fmt::format("quantize/{}/{}", format.name, direction.name),
          {format, direction, Shape{8192, 4096}, DType::kF32}, quantize_row);
}

}  // namespace
}  // namespace fp8lab

int main(int argc, char** argv) { return fp8lab::run_on_gpu(argc, argv, fp8lab::register_rows); }
