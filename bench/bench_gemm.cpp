#include <cstdint>
#include <string>
#include <vector>

#include "on_card.h"
#include "ops/gemm.h"
#include "ops/quantize.h"

// Products on the card, bench/peers/gemm.py having rows of the same names: flops of the product over the time of everything
// that a call launches, so that those which are emulated pay for what they dequantize. Operands are normal values, quantized
// beforehand.
namespace fp8lab {
namespace {

constexpr std::int64_t kTokens = 8192;

/// A linear layer's three products. In BF16 backward reads what forward stored, the other way round; eight-bit operands have a
/// half for each.
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
  for (const Layer& layer : {Layer{"qkv", 6144, 4096}, {"proj", 4096, 4096}, {"fc1", 28672, 4096}, {"fc2", 4096, 14336}}) {
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
constexpr Kind kKinds[] = {{"bf16", nullptr}, {"fp8_tensor", "current"}, {"fp8_block", "block"}, {"mxfp8_emulated", "mxfp8"}};

/// An operand and what owns its memory.
struct Input {
  Tensor plain;
  QuantizedTensor quantized;
  OperandView view;
};

Input make_input(std::int64_t rows, std::int64_t cols, bool stored_transposed, const QuantFormat* format, std::uint64_t seed) {
  Device& device = *card();
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

void multiply(benchmark::State& state, const Product& product, const Kind& kind) {
  Device& device = *card();
  const bool forward = product.pass == Pass::kForward, of_weight = product.pass == Pass::kWeightGradient;
  const Recipe recipe = make_recipe(kind.recipe ? kind.recipe : "bf16");
  const QuantFormat first = forward ? recipe.activation : recipe.gradient;
  const QuantFormat second = of_weight ? recipe.activation : recipe.weight;
  const std::int64_t bytes_each = kind.recipe ? 1 : 2;
  const int rotations = rotations_past_l2((product.m + product.n) * product.k * bytes_each);
  std::vector<Input> as, bs;
  for (int i = 0; i < rotations; ++i) {
    const auto seed = static_cast<std::uint64_t>(2 * i + 1);
    as.push_back(make_input(product.m, product.k, of_weight, kind.recipe ? &first : nullptr, seed));
    bs.push_back(make_input(product.n, product.k, !forward, kind.recipe ? &second : nullptr, seed + 1));
  }
  const HolderId holder = device.holder(HolderKind::kInFlight);
  const double flops = 2.0 * static_cast<double>(product.m) * static_cast<double>(product.n) * static_cast<double>(product.k);
  time_on_card(state, {.flops = flops}, [&](int call) {
    const auto set = static_cast<std::size_t>(call % rotations);
    gemm(device, {.a = as[set].view,
                  .b = bs[set].view,
                  .out_dtype = DType::kBF16,
                  .holder = holder,
                  .fast_accumulation = forward});
  });
}

/// What the library cannot take: operands both scaled by 128 x 128.
void multiply_generally(benchmark::State& state) {
  Device& device = *card();
  constexpr std::int64_t kSize = 4096;
  const QuantFormat format = make_recipe("block").weight;
  const Input a = make_input(kSize, kSize, false, &format, 1), b = make_input(kSize, kSize, false, &format, 2);
  const HolderId holder = device.holder(HolderKind::kInFlight);
  time_on_card(state, {.flops = 2.0 * kSize * kSize * kSize},
               [&](int) { gemm(device, {.a = a.view, .b = b.view, .out_dtype = DType::kBF16, .holder = holder}); });
}

}  // namespace
}  // namespace fp8lab

int main(int argc, char** argv) {
  return fp8lab::run_on_card(argc, argv, [] {
    static const std::vector<fp8lab::Product> kProducts = fp8lab::products();
    const auto timed = [](benchmark::internal::Benchmark* row) {
      row->UseManualTime()->Unit(benchmark::kMicrosecond)->Iterations(30);
    };
    for (const fp8lab::Product& product : kProducts)
      for (const fp8lab::Kind& kind : fp8lab::kKinds)
        timed(benchmark::RegisterBenchmark(("gemm/" + product.name + "/" + kind.name).c_str(),
                                           [&](benchmark::State& state) { fp8lab::multiply(state, product, kind); }));
    timed(benchmark::RegisterBenchmark("gemm/4096/general", fp8lab::multiply_generally));
  });
}
