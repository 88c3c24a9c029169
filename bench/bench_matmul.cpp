#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend/instruction_sets.h"
#include "beside_memcpy.h"
#include "ops/elementwise.h"
#include "ops/gemm.h"

// FP32 matrix products of the `cpu` device under every instruction set that this processor has, relative to the bound:
// a loop that multiplies and adds in registers and touches no memory. Products round every multiplication and every
// addition (backend/cpu/gemm/matmul.h), so the bound has no fused multiply-add either. One thread; times are
// alternating, as in beside_memcpy.h. `of_bound` is the ratio of the two speeds.
namespace fp8lab {
namespace {

constexpr int kRepetitions = 5;
constexpr int kChains = 12;  // independent sums, enough to hide the latency of an addition
constexpr std::int64_t kRounds = 1 << 22;

// The asm makes both factors opaque to the compiler, so that no multiplication is left out, or shared between chains or
// rounds. Unless the chains are unrolled, at -O2 too, their sums are kept in memory.
#define FP8LAB_BOUND_LOOP(name, bytes, constraint, ...)               \
  __VA_ARGS__ void name(std::int64_t rounds) {                        \
    using Vector = float __attribute__((vector_size(bytes)));         \
    Vector sums[kChains] = {};                                        \
    Vector x = Vector{} + 1.0f, y = Vector{} + 1e-3f;                 \
    for (std::int64_t round = 0; round < rounds; ++round) {           \
      _Pragma("GCC unroll 12") for (int i = 0; i < kChains; ++i) {    \
        asm volatile("" : "+" constraint(y), "+" constraint(x));      \
        sums[i] += x * y;                                             \
      }                                                               \
    }                                                                 \
    for (Vector & sum : sums) asm volatile("" : "+" constraint(sum)); \
  }

#if defined(__x86_64__)
FP8LAB_BOUND_LOOP(bound_avx512, 64, "v", __attribute__((noinline, target("avx512f"))))
FP8LAB_BOUND_LOOP(bound_avx2, 32, "x", __attribute__((noinline, target("avx2"))))
FP8LAB_BOUND_LOOP(bound_baseline, 16, "x", __attribute__((noinline)))
#else
FP8LAB_BOUND_LOOP(bound_baseline, 16, "w", __attribute__((noinline)))
#endif

struct Bound {
  std::string_view instruction_set;
  void (*loop)(std::int64_t rounds);
  std::int64_t floats;  ///< in a vector
};

constexpr Bound kBounds[] = {
#if defined(__x86_64__)
    {"avx512", bound_avx512, 16},
    {"avx2", bound_avx2, 8},
#endif
    {"baseline", bound_baseline, 4},
};

const Bound& bound_of(std::string_view instruction_set) {
  for (const Bound& bound : kBounds)
    if (bound.instruction_set == instruction_set) return bound;
  fail("bench_matmul: no bound for instruction set '" + std::string(instruction_set) + "'; add a row to kBounds");
}

struct Product {
  const char* name;
  std::int64_t m, n, k;
  bool transposed;  ///< b is a transposed view, as in backward
};

constexpr Product kProducts[] = {{"256", 256, 256, 256, false},
                                 {"1024", 1024, 1024, 1024, false},
                                 {"1024/transposed", 1024, 1024, 1024, true},
                                 {"uneven/1021x509x771", 1021, 509, 771, false},
                                 {"llama_8b/proj/512_tokens", 512, 4096, 4096, false}};

void run(benchmark::State& state, Device& device, const Product& product, std::string_view instruction_set) {
  select_cpu_instruction_set(instruction_set);
  state.SetLabel(fmt::format("m {}, n {}, k {}, f32", product.m, product.n, product.k));
  const HolderId holder = device.holder(HolderKind::kInput, "bench");
  const Tensor a = device.allocate({Shape{product.m, product.k}, DType::kF32}, holder);
  const Tensor b = product.transposed ? device.allocate({Shape{product.k, product.n}, DType::kF32}, holder)
                                      : device.allocate({Shape{product.n, product.k}, DType::kF32}, holder);
  random_fill(device, a, {.seed = 1});
  random_fill(device, b, {.seed = 2});
  const OperandView b_operand{.values = product.transposed ? b.view().transposed() : b.view(), .scales = {}};
  const auto multiply = [&] {
    gemm(device, {.a = {.values = a.view(), .scales = {}}, .b = b_operand, .out_dtype = DType::kF32, .holder = holder});
  };
  const Bound& bound = bound_of(instruction_set);
  const auto bound_loop = [&] { bound.loop(kRounds); };

  std::vector<double> bounds, products;
  bound_loop();
  multiply();
  for (auto _ : state) {
    bounds.push_back(seconds_of(bound_loop));
    products.push_back(seconds_of(multiply));
    state.SetIterationTime(products.back());
  }
  const double most = 2.0 * static_cast<double>(kRounds * kChains * bound.floats) / median(bounds);
  const double reached = 2.0 * static_cast<double>(product.m * product.n * product.k) / median(products);
  state.counters["flops"] = reached;
  state.counters["bound_flops"] = most;
  state.counters["of_bound"] = reached / most;
}

void register_rows(Device& device) {
  for (const std::string_view instruction_set : cpu_instruction_sets())
    for (const Product& product : kProducts)
      set_iterations(
          benchmark::RegisterBenchmark(("matmul/" + std::string(instruction_set) + "/" + product.name).c_str(),
                                       [&device, &product, instruction_set](benchmark::State& state) {
                                         run(state, device, product, instruction_set);
                                       })
              ->UseManualTime()
              ->Unit(benchmark::kMillisecond),
          kRepetitions);
}

}  // namespace
}  // namespace fp8lab

int main(int argc, char** argv) {
  std::unique_ptr<fp8lab::Device> device;  // opened once the thread is pinned
  return fp8lab::run_on_one_core(argc, argv, [&device] {
    device = fp8lab::open_device("cpu");
    fp8lab::register_rows(*device);
  });
}
