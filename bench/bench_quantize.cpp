#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/instruction_sets.h"
#include "beside_memcpy.h"
#include "ops/elementwise.h"
#include "ops/quantize.h"
#include "ops/quantized_storage.h"

// Quantization on the host, relative to memcpy (beside_memcpy.h). Bytes are those read plus those written; the input
// counts once even if a recipe must read it twice.
namespace fp8lab {
namespace {

constexpr std::int64_t kRows = 4096;
constexpr std::int64_t kCols = 8192;  // 64 MiB in BF16
constexpr int kRepetitions = 31;

/// The tensors that all rows share.
struct Bench {
  std::unique_ptr<Device> device = open_device("cpu");
  HolderId holder = device->holder(HolderKind::kInput, "bench");
  Tensor x = device->allocate({Shape{kRows, kCols}, DType::kBF16}, holder);
  Tensor copy = device->allocate(x.spec(), holder);
  Tensor scale = device->allocate({Shape{1}, DType::kF32}, holder);
  Tensor amax = device->allocate({Shape{1}, DType::kF32}, holder);

  Bench() {
    random_fill(*device, x, {.seed = 2024});
    fill(*device, copy, 0.0f);
    fill(*device, scale, 64.0f);
    fill(*device, amax, 0.0f);
  }

  void copy_once() { std::memcpy(copy.data<char>(), x.data<char>(), static_cast<std::size_t>(x.bytes())); }

  /// Times `work`, which moves `bytes`, alternately with memcpy.
  template <class Work>
  void measure(benchmark::State& state, std::int64_t bytes, const Work& work) {
    state.SetLabel(fmt::format("{}x{}, bf16", kRows, kCols));
    measure_beside(state, {.by_copy = 2 * x.bytes(), .by_work = bytes}, [this] { copy_once(); }, work);
  }
};

struct Row {
  std::string name;
  QuantFormat format;
};

std::vector<Row> rows() {
  RecipeOptions floor;
  floor.scale_rounding = "floor";
  const Recipe delayed = make_recipe("delayed"), current = make_recipe("current"), block = make_recipe("block");
  return {{"delayed/e4m3", delayed.activation},
          {"delayed/e5m2", delayed.gradient},
          {"current/e4m3", current.activation},
          {"current/e5m2", current.gradient},
          {"block/1x128", block.activation},
          {"block/128x128", block.weight},
          {"mxfp8/rceil", make_recipe("mxfp8").activation},
          {"mxfp8/floor", make_recipe("mxfp8", floor).activation}};
}

struct Direction {
  const char* name;
  Orientations orientations;
};
constexpr Direction kDirections[] = {{"rowwise", {true, false}}, {"columnwise", {false, true}}, {"both", {true, true}}};

Quantizer inputs_of(const Bench& bench, const QuantFormat& format, Orientations orientations) {
  const bool history = format.amax_source == AmaxSource::kHistory;
  return {.format = format,
          .orientations = orientations,
          .scale = history ? bench.scale : Tensor{},
          .amax = history ? bench.amax : Tensor{},
          .holder = bench.holder};
}

/// Google Benchmark keeps registered functions until the program ends, so rows refer to `bench` and own no tensors.
void register_rows(Bench& bench) {
  const auto add = [](const std::string& name, auto run) {
    set_iterations(benchmark::RegisterBenchmark(name.c_str(), run)->UseManualTime()->Unit(benchmark::kMillisecond),
                   kRepetitions);
  };
  add("memcpy",
      [&bench](benchmark::State& state) { bench.measure(state, 2 * bench.x.bytes(), [&] { bench.copy_once(); }); });
  for (const Row& row : rows())
    for (const Direction& direction : kDirections)
      add("quantize/" + row.name + "/" + direction.name, [&bench, row, direction](benchmark::State& state) {
        const Quantizer inputs = inputs_of(bench, row.format, direction.orientations);
        const std::int64_t written = quantize(*bench.device, bench.x, inputs).bytes();
        bench.measure(state, bench.x.bytes() + written, [&] { quantize(*bench.device, bench.x, inputs); });
      });
  for (const Row& row : rows())
    add("dequantize/" + row.name, [&bench, format = row.format](benchmark::State& state) {
      const QuantizedTensor q = quantize(*bench.device, bench.x, inputs_of(bench, format, {true, false}));
      bench.measure(state, bench.x.bytes() + q.bytes(),
                    [&] { dequantize(*bench.device, q.rowwise_operand(), DType::kBF16, bench.holder); });
    });
  add("transpose/data", [&bench, format = rows().front().format](benchmark::State& state) {
    const QuantizedTensor q = quantize(*bench.device, bench.x, inputs_of(bench, format, {true, false}));
    bench.measure(state, 2 * q.rowwise().data.bytes(), [&] { make_columnwise(*bench.device, q, bench.holder); });
  });
}

}  // namespace
}  // namespace fp8lab

int main(int argc, char** argv) {
  std::optional<fp8lab::Bench> bench;  // made once the thread is pinned
  return fp8lab::run_on_one_core(argc, argv, [&bench] {
    bench.emplace();
    benchmark::AddCustomContext("instruction set of the inner loops", std::string(fp8lab::cpu_instruction_set()));
    fp8lab::register_rows(*bench);
  });
}
