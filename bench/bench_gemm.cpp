#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "on_gpu.h"
#include "ops/experts/grouped_gemm.h"
#include "ops/gemm.h"
#include "ops/quantize.h"

// Matrix products on the GPU; bench/peers/gemm.py has rows of the same names. `flops` is the product's operations over
// the time of everything that a call launches, so that emulated products include the time of dequantization. Operands
// are normally distributed and quantized beforehand.
namespace fp8lab {
namespace {

constexpr std::int64_t kTokens = 8192;

/// The three products of a linear layer. In BF16 backward reads the transposed view of what forward stored; eight-bit
/// operands have one orientation for each.
enum class Pass { kForward, kInputGradient, kWeightGradient };

struct Product {
  std::string name;
  std::int64_t m, n, k;
  Pass pass = Pass::kForward;
};

std::vector<Product> products() {
  std::vector<Product> all = {{"4096", 4096, 4096, 4096}, {"8192", 8192, 8192, 8192}};
  struct Layer {
    const char* name;
    std::int64_t out, in;
  };
  for (const Layer& layer :
       {Layer{"qkv", 6144, 4096}, {"proj", 4096, 4096}, {"fc1", 28672, 4096}, {"fc2", 4096, 14336}}) {
    const std::string name = std::string("llama_8b/") + layer.name;
    all.push_back({name + "/fprop", kTokens, layer.out, layer.in, Pass::kForward});
    all.push_back({name + "/dgrad", kTokens, layer.in, layer.out, Pass::kInputGradient});
    all.push_back({name + "/wgrad", layer.out, layer.in, kTokens, Pass::kWeightGradient});
  }
  return all;
}

struct Kind {
  const char* name;
  const char* recipe;  ///< null: BF16
};
constexpr Kind kKinds[] = {
    {"bf16", nullptr}, {"fp8_tensor", "current"}, {"fp8_block", "block"}, {"mxfp8_emulated", "mxfp8"}};

/// An operand and the tensors that own its memory.
struct Input {
  Tensor plain;
  QuantizedTensor quantized;
  OperandView view;
};

Input make_input(std::int64_t rows, std::int64_t cols, bool stored_transposed, const QuantFormat* format,
                 std::uint64_t seed) {
  Device& device = *gpu();
  Input input;
  if (format == nullptr) {
    input.plain = stored_transposed ? random_tensor(device, {cols, rows}, DType::kBF16, seed).transposed()
                                    : random_tensor(device, {rows, cols}, DType::kBF16, seed);
    input.view = input.plain.operand();
    return input;
  }
  const Tensor values = random_tensor(device, {rows, cols}, DType::kBF16, seed);
  input.quantized = quantize(device, values, {.format = *format, .holder = device.holder(HolderKind::kInput)});
  input.view = input.quantized.rowwise_operand();
  return input;
}

/// Sets of a product's operands, enough to rotate past the L2.
struct Operands {
  std::vector<Input> as, bs;

  Operands(const Product& product, const char* recipe_name) {
    const bool forward = product.pass == Pass::kForward, of_weight = product.pass == Pass::kWeightGradient;
    const Recipe recipe = make_recipe(recipe_name ? recipe_name : "bf16");
    const QuantFormat first = forward ? recipe.activation : recipe.gradient;
    const QuantFormat second = of_weight ? recipe.activation : recipe.weight;
    const int rotations = rotations_past_l2((product.m + product.n) * product.k * (recipe_name ? 1 : 2));
    for (int i = 0; i < rotations; ++i) {
      const auto seed = static_cast<std::uint64_t>(2 * i + 1);
      as.push_back(make_input(product.m, product.k, of_weight, recipe_name ? &first : nullptr, seed));
      bs.push_back(make_input(product.n, product.k, !forward, recipe_name ? &second : nullptr, seed + 1));
    }
  }
  GemmInputs of_call(int call, const Product& product) const {
    const auto set = static_cast<std::size_t>(call) % as.size();
    return {.a = as[set].view,
            .b = bs[set].view,
            .out_dtype = DType::kBF16,
            .holder = gpu()->holder(HolderKind::kInFlight),
            .fast_accumulation = product.pass == Pass::kForward};
  }
};

std::string shape_of(const Product& product) {
  return fmt::format("m {}, n {}, k {}", product.m, product.n, product.k);
}

double flops_of(const Product& product) {
  return 2.0 * static_cast<double>(product.m) * static_cast<double>(product.n) * static_cast<double>(product.k);
}

void multiply(benchmark::State& state, const Product& product, const Kind& kind) {
  const Operands operands(product, kind.recipe);
  state.SetLabel(shape_of(product));
  time_on_gpu(state, {.flops = flops_of(product)}, [&](int call) { gemm(*gpu(), operands.of_call(call, product)); });
}

/// A product of FP8 operands with per-tensor scales whose result is quantized, with its amax: by the product itself
/// (`at_once`), or stored in BF16 and then cast.
void multiply_to_quantized(benchmark::State& state, const Product& product, bool at_once) {
  Device& device = *gpu();
  const Operands operands(product, "current");
  state.SetLabel(shape_of(product));
  const Recipe recipe = make_recipe("delayed");
  const TensorSpec scalar{Shape{1}, DType::kF32};
  const HolderId holder = device.holder(HolderKind::kInFlight);
  const Quantizer quantizer{.format = product.pass == Pass::kForward ? recipe.activation : recipe.gradient,
                            .scale = device.allocate(scalar, holder),
                            .amax = device.allocate(scalar, holder),
                            .holder = holder};
  device.write(quantizer.scale, std::vector<float>{1.0f});
  device.write(quantizer.amax, std::vector<float>{0.0f});
  time_on_gpu(state, {.flops = flops_of(product)}, [&](int call) {
    const GemmInputs inputs = operands.of_call(call, product);
    if (at_once)
      gemm_quantize(device, inputs, quantizer);
    else
      quantize(device, gemm(device, inputs), quantizer);
  });
}

/// A weight of each expert of Mixtral 8x7B. Each token has two of eight experts, and each expert 2048 tokens.
constexpr std::int64_t kExperts = 8, kExpertRows = 2 * kTokens / kExperts, kExpertIn = 4096, kExpertOut = 14336;

/// The product of one expert's rows.
Product of_one_expert(Pass pass) {
  constexpr std::array<const char*, 3> kNames = {"fprop", "dgrad", "wgrad"};
  const std::string name = std::string("mixtral_expert/") + kNames[static_cast<std::size_t>(pass)];
  switch (pass) {
    case Pass::kForward: return {name, kExpertRows, kExpertOut, kExpertIn, pass};
    case Pass::kInputGradient: return {name, kExpertRows, kExpertIn, kExpertOut, pass};
    default: return {name, kExpertOut, kExpertIn, kExpertRows, pass};
  }
}

/// The products of all experts' rows. Operands are far larger than the L2.
void multiply_groups(benchmark::State& state, const Product& one, const Kind& kind) {
  const bool forward = one.pass == Pass::kForward, of_weight = one.pass == Pass::kWeightGradient;
  const Recipe recipe = make_recipe(kind.recipe ? kind.recipe : "bf16");
  const QuantFormat first = forward ? recipe.activation : recipe.gradient;
  const QuantFormat second = of_weight ? recipe.activation : recipe.weight;
  const std::int64_t rows = kExperts * kExpertRows;
  // Rows of experts are rows of a, or what weights' gradients sum over; experts' weights are one parameter.
  const Input a =
      make_input(of_weight ? one.m : rows, of_weight ? rows : one.k, of_weight, kind.recipe ? &first : nullptr, 1);
  const Input b = make_input(forward ? kExperts * one.n : one.n, forward ? one.k : kExperts * one.k, !forward,
                             kind.recipe ? &second : nullptr, 2);
  std::vector<RowGroup> groups;
  for (std::int64_t e = 0; e < kExperts; ++e) groups.push_back({.begin = e * kExpertRows, .rows = kExpertRows});
  const auto product = forward ? grouped_gemm : of_weight ? grouped_gemm_weight_gradient : grouped_gemm_input_gradient;
  state.SetLabel(fmt::format("{} x {}", kExperts, shape_of(one)));
  time_on_gpu(state, {.flops = kExperts * flops_of(one)}, [&](int) {
    product(*gpu(),
            {.a = a.view,
             .b = b.view,
             .out_dtype = DType::kBF16,
             .holder = gpu()->holder(HolderKind::kInFlight),
             .fast_accumulation = forward},
            groups);
  });
}

/// A product that the library does not support: both operands have 128 x 128 block scales.
void multiply_generally(benchmark::State& state) {
  Device& device = *gpu();
  constexpr std::int64_t kSize = 4096;
  const QuantFormat format = make_recipe("block").weight;
  const Input a = make_input(kSize, kSize, false, &format, 1), b = make_input(kSize, kSize, false, &format, 2);
  const HolderId holder = device.holder(HolderKind::kInFlight);
  time_on_gpu(state, {.flops = 2.0 * kSize * kSize * kSize},
              [&](int) { gemm(device, {.a = a.view, .b = b.view, .out_dtype = DType::kBF16, .holder = holder}); });
}

}  // namespace
}  // namespace fp8lab

int main(int argc, char** argv) {
  return fp8lab::run_on_gpu(argc, argv, [] {
    static const std::vector<fp8lab::Product> kProducts = fp8lab::products();
    const auto timed = [](benchmark::internal::Benchmark* row) {
      fp8lab::set_iterations(row->UseManualTime()->Unit(benchmark::kMicrosecond), 30);
    };
    for (const fp8lab::Pass pass :
         {fp8lab::Pass::kForward, fp8lab::Pass::kInputGradient, fp8lab::Pass::kWeightGradient})
      for (const fp8lab::Kind& kind : fp8lab::kKinds) {
        const fp8lab::Product one = fp8lab::of_one_expert(pass);
        const std::string name = "gemm/" + one.name + "/" + kind.name;
        timed(benchmark::RegisterBenchmark(
            name.c_str(), [one, kind](benchmark::State& state) { fp8lab::multiply(state, one, kind); }));
        timed(benchmark::RegisterBenchmark(("grouped_" + name).c_str(), [one, kind](benchmark::State& state) {
          fp8lab::multiply_groups(state, one, kind);
        }));
      }
    for (const fp8lab::Product& product : kProducts) {
      const std::string name = "gemm/" + product.name + "/";
      for (const fp8lab::Kind& kind : fp8lab::kKinds)
        timed(benchmark::RegisterBenchmark((name + kind.name).c_str(),
                                           [&](benchmark::State& state) { fp8lab::multiply(state, product, kind); }));
      // Gradients of weights are accumulated and never cast.
      if (product.pass == fp8lab::Pass::kWeightGradient) continue;
      for (const bool at_once : {true, false})
        timed(benchmark::RegisterBenchmark(
            (name + (at_once ? "fp8_tensor_to_fp8" : "fp8_tensor_then_cast")).c_str(),
            [&product, at_once](benchmark::State& state) { fp8lab::multiply_to_quantized(state, product, at_once); }));
    }
    timed(benchmark::RegisterBenchmark("gemm/4096/general", fp8lab::multiply_generally));
  });
}
