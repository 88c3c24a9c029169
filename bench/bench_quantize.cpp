#include <benchmark/benchmark.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/quantize_loops.h"
#include "core/check.h"
#include "ops/elementwise.h"
#include "ops/quantize.h"
#include "ops/quantized_storage.h"

// How fast the host quantizes beside how fast it copies: one thread pinned to one core, on a tensor well beyond the last-level
// cache. Every repetition of a row copies the tensor and then quantizes it, so that both meet the same machine;
// `of_memcpy` is the ratio of the two medians' bandwidths. Bytes are those read plus those written, the input counted
// once even where a recipe has to read it twice.
//
// Times are the thread's own processor time: equal to wall time where nothing else runs, and not disturbed by what
// shares the core.
namespace fp8lab {
namespace {

constexpr std::int64_t kRows = 4096;
constexpr std::int64_t kCols = 8192;  // 64 MiB in BF16
constexpr int kRepetitions = 31;

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <class Work>
double seconds_of(const Work& work) {
  const double start = thread_seconds();
  work();
  benchmark::ClobberMemory();
  return thread_seconds() - start;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

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

  /// Runs `work`, which moves `bytes`, in turn with memcpy.
  template <class Work>
  void measure(benchmark::State& state, std::int64_t bytes, const Work& work) {
    std::vector<double> copies, works;
    copy_once();
    work();  // pages of the results exist from here on
    for (auto _ : state) {
      copies.push_back(seconds_of([&] { copy_once(); }));
      works.push_back(seconds_of(work));
      state.SetIterationTime(works.back());
    }
    const double copy_bandwidth = static_cast<double>(2 * x.bytes()) / median(copies);
    const double bandwidth = static_cast<double>(bytes) / median(works);
    state.counters["bytes_per_second"] =
        benchmark::Counter(bandwidth, benchmark::Counter::kDefaults, benchmark::Counter::kIs1024);
    state.counters["memcpy_per_second"] =
        benchmark::Counter(copy_bandwidth, benchmark::Counter::kDefaults, benchmark::Counter::kIs1024);
    state.counters["of_memcpy"] = bandwidth / copy_bandwidth;
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

/// The library keeps what is registered until the program ends: rows refer to `bench` and hold no tensor.
void register_rows(Bench& bench) {
  const auto add = [](const std::string& name, auto run) {
    benchmark::RegisterBenchmark(name.c_str(), run)
        ->UseManualTime()
        ->Iterations(kRepetitions)
        ->Unit(benchmark::kMillisecond);
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
  add("transpose/codes", [&bench, format = rows().front().format](benchmark::State& state) {
    const QuantizedTensor q = quantize(*bench.device, bench.x, inputs_of(bench, format, {true, false}));
    bench.measure(state, 2 * q.rowwise().codes.bytes(), [&] { make_columnwise(*bench.device, q, bench.holder); });
  });
}

/// The last core this process may use; the first tends to serve interrupts.
int pin_to_one_core() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  check(sched_getaffinity(0, sizeof allowed, &allowed) == 0, "sched_getaffinity failed");
  int core = 0;
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &allowed)) core = i;
  cpu_set_t chosen;
  CPU_ZERO(&chosen);
  CPU_SET(core, &chosen);
  check(sched_setaffinity(0, sizeof chosen, &chosen) == 0, "sched_setaffinity failed");
  return core;
}

}  // namespace
}  // namespace fp8lab

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::AddCustomContext("single thread, pinned to core", std::to_string(fp8lab::pin_to_one_core()));
  benchmark::AddCustomContext("instruction set of the inner loops",
                              std::string(fp8lab::cpu::quantize_loops().front()->name));
  fp8lab::Bench bench;
  fp8lab::register_rows(bench);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
