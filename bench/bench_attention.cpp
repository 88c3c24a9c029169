#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "on_gpu.h"
#include "ops/attention.h"
#include "ops/quantize.h"

// Attention on the GPU; bench/peers/attention.py has rows of the same names. `flops` counts the two matrix products of
// forward, or the five of backward, over the unmasked entries; recomputation inside a kernel is not counted.
namespace fp8lab {
namespace {

struct Case {
  const char* name;
  std::int64_t batch, heads, kv_heads, seq;
  bool causal;
  std::int64_t head_dim = 128, value_dim = 128, window = 0;
  bool sinks = false;

  /// FP8 attention has no sinks, and FP8 latents are not attended to.
  bool has_eight_bits() const { return !sinks && value_dim == head_dim; }
};
constexpr Case kCases[] = {{"8x32h/s2048/causal", 8, 32, 32, 2048, true},
                           {"2x32h/s8192/causal", 2, 32, 32, 8192, true},
                           {"2x32h/s8192/full", 2, 32, 32, 8192, false},
                           {"llama_8b/s4096/causal", 2, 32, 8, 4096, true},
                           {"mistral_7b/s8192/window4096", 2, 32, 8, 8192, true, 128, 128, 4096},
                           {"gpt_oss/s8192/causal", 2, 64, 8, 8192, true, 64, 64, 0, true},
                           {"gpt_oss/s8192/window128", 2, 64, 8, 8192, true, 64, 64, 128, true},
                           {"deepseek_v3/s4096/causal", 1, 128, 128, 4096, true, 192, 128}};

AttentionShape shape_of(const Case& c) {
  return {.seq = c.seq,
          .batch = c.batch,
          .heads = c.heads,
          .kv_heads = c.kv_heads,
          .head_dim = c.head_dim,
          .value_dim = c.value_dim,
          .causal = c.causal,
          .window = c.window,
          .softmax_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.head_dim)))};
}

/// `of_keys` products have an operand or result with the columns of a key, `of_values` with the columns of a value.
double flops_of(const Case& c, std::int64_t of_keys, std::int64_t of_values) {
  const auto seq = static_cast<double>(c.seq), window = static_cast<double>(c.window);
  const double entries = c.window > 0 ? window * (seq - window / 2) : seq * seq * (c.causal ? 0.5 : 1.0);
  return 2.0 * static_cast<double>(of_keys * c.head_dim + of_values * c.value_dim) *
         static_cast<double>(c.batch * c.heads) * entries;
}

/// An operand and the tensors that own its memory.
struct Input {
  Tensor plain;
  QuantizedTensor quantized;
  OperandView view;
};

Input make_input(const Shape& shape, const QuantFormat* format, std::uint64_t seed) {
  Device& device = *gpu();
  Input input;
  input.plain = random_tensor(device, shape, DType::kBF16, seed);
  input.view = input.plain.operand();
  if (format == nullptr) return input;
  input.quantized = quantize(device, input.plain, {.format = *format, .holder = device.holder(HolderKind::kInput)});
  input.view = input.quantized.rowwise_operand();
  input.plain = {};
  return input;
}

Tensor scalar(float value) {
  Device& device = *gpu();
  Tensor tensor = device.allocate({Shape{1}, DType::kF32}, device.holder(HolderKind::kRecipeState));
  device.write(tensor, std::vector<float>{value});
  return tensor;
}

AttentionRole role(DType dtype, const Tensor& scale, const Tensor& amax) {
  return {.dtype = dtype, .scale = scale.data<float>(), .amax = amax.data<float>()};
}

// Without `training.deterministic`, which requires equal bits on every run, another kernel may compute the gradients.
enum class Pass { kForward, kBackward, kBackwardInAnyOrder };
constexpr std::pair<Pass, const char*> kPasses[] = {
    {Pass::kForward, "/forward"}, {Pass::kBackward, "/backward"}, {Pass::kBackwardInAnyOrder, "/backward_any_order"}};

void attend(benchmark::State& state, const Case& c, bool eight_bits, Pass pass) {
  Device& device = *gpu();
  device.context().set_deterministic(pass != Pass::kBackwardInAnyOrder);
  const AttentionShape shape = shape_of(c);
  state.SetLabel(fmt::format("batch {}, seq {}, {} heads, {} kv heads, head_dim {}", c.batch, c.seq, c.heads,
                             c.kv_heads, c.head_dim));
  const Recipe recipe = make_recipe("current");
  const std::int64_t rows = c.seq * c.batch;
  const Input q = make_input({rows, c.heads * c.head_dim}, eight_bits ? &recipe.activation : nullptr, 1);
  const Input k = make_input({rows, c.kv_heads * c.head_dim}, eight_bits ? &recipe.activation : nullptr, 2);
  const Input v = make_input({rows, c.kv_heads * c.value_dim}, eight_bits ? &recipe.activation : nullptr, 3);
  const Tensor scale_s = scalar(448.0f), scale_o = scalar(64.0f), scale_p = scalar(65536.0f), amax = scalar(0.0f);
  AttentionInputs inputs{.shape = shape, .q = q.view, .k = k.view, .v = v.view, .s = {}, .out_dtype = DType::kBF16};
  if (eight_bits) {
    inputs.s = role(DType::kE4M3, scale_s, amax);
    inputs.o_cast = role(DType::kE4M3, scale_o, amax);
  }
  if (c.sinks) inputs.sinks = random_tensor(device, Shape{c.heads}, DType::kBF16, 5);
  inputs.o_holder = inputs.lse_holder = device.holder(HolderKind::kInFlight);
  if (pass == Pass::kForward) {
    time_on_gpu(state, {.flops = flops_of(c, 1, 1)}, [&](int) { attention_forward(device, inputs); });
    return;
  }
  const AttentionOutputs out = attention_forward(device, inputs);
  const Input grad_o = make_input({rows, c.heads * c.value_dim}, eight_bits ? &recipe.gradient : nullptr, 4);
  const HolderId holder = device.holder(HolderKind::kInFlight);
  const auto like = [&](std::int64_t cols) { return device.allocate({Shape{rows, cols}, DType::kBF16}, holder); };
  AttentionBackwardInputs gradients{
      .shape = shape,
      .q = q.view,
      .k = k.view,
      .v = v.view,
      .o = out.o.operand(),
      .grad_o = grad_o.view,
      .lse = out.lse,
      .s = {},
      .grad_p = {},
      .sinks = inputs.sinks,
      .out = {like(c.heads * c.head_dim), like(c.kv_heads * c.head_dim), like(c.kv_heads * c.value_dim)}};
  if (c.sinks) gradients.out.sinks = device.allocate({Shape{c.heads}, DType::kBF16}, holder);
  if (eight_bits) {
    gradients.s = role(DType::kE4M3, scale_s, amax);
    gradients.grad_p = role(DType::kE5M2, scale_p, amax);
  }
  time_on_gpu(state, {.flops = flops_of(c, 3, 2)}, [&](int) { attention_backward(device, gradients); });
}

}  // namespace
}  // namespace fp8lab

int main(int argc, char** argv) {
  return fp8lab::run_on_gpu(argc, argv, [] {
    for (const fp8lab::Case& c : fp8lab::kCases)
      for (const bool eight_bits : {false, true})
        for (const auto& [pass, suffix] : fp8lab::kPasses) {
          if (eight_bits && !c.has_eight_bits()) continue;
          const std::string name = std::string("attention/") + c.name + (eight_bits ? "/fp8" : "/bf16") + suffix;
          fp8lab::set_iterations(benchmark::RegisterBenchmark(name.c_str(),
                                                              [&c, eight_bits, pass = pass](benchmark::State& state) {
                                                                fp8lab::attend(state, c, eight_bits, pass);
                                                              })
                                     ->UseManualTime()
                                     ->Unit(benchmark::kMicrosecond),
                                 10);
        }
  });
}
