#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "ops/delayed_scaling.h"
#include "ops/quantize.h"
#include "support/quantize.h"
#include "support/recipe_names.h"

// Arguments that quantization refuses, and its allocations: the same bytes under the same names on every device.
namespace fp8lab {
namespace {

using support::error_of;
using support::format_named;

class QuantizeArguments : public ::testing::Test {
 protected:
  std::string refusal(const Tensor& x, const Quantizer& inputs) {
    return error_of([&] { quantize(*device_, x, inputs); });
  }
  void expect_words(const std::string& message, const std::vector<std::string>& words) {
    for (const std::string& word : words)
      EXPECT_NE(message.find(word), std::string::npos) << "'" << message << "' lacks '" << word << "'";
  }

  std::unique_ptr<Device> device_ = support::open_poisoned_device();
  Tensor x_ = support::make_tensor(*device_, {32, 64}, DType::kBF16, std::vector<float>(2048, 1.0f));
  Tensor one_ = support::scalar(*device_, 1.0f);
  Tensor two_ = support::make_tensor(*device_, {2}, DType::kF32, {1.0f, 1.0f});
};

TEST_F(QuantizeArguments, UnreadableInputsAreRefused) {
  const QuantFormat current = format_named("current_e4m3");
  expect_words(refusal({}, {.format = current}), {"quantize", "x is absent", "f32, f16 or bf16"});
  const Tensor bytes = device_->allocate({Shape{4, 4}, DType::kU8}, support::anyone(*device_));
  expect_words(refusal(bytes, {.format = current}), {"x is u8 [4, 4]", "f32, f16 or bf16"});
  expect_words(refusal(x_, {.format = current, .orientations = {false, false}}), {"neither row-wise nor column-wise"});
}

TEST_F(QuantizeArguments, ScalesAndAmaxesMustFitTheFormat) {
  const QuantFormat delayed = format_named("delayed_e4m3"), current = format_named("current_e4m3");
  expect_words(refusal(x_, {.format = delayed}), {"scale is absent"});
  expect_words(refusal(x_, {.format = delayed, .scale = two_}), {"scale is f32 [2]", "1 elements"});
  expect_words(refusal(x_, {.format = delayed, .scale = x_}), {"scale is bf16", "must be f32"});
  expect_words(refusal(x_, {.format = current, .scale = one_}),
               {"scale is f32 [1]", "only if the amax comes from a history"});
  expect_words(refusal(x_, {.format = current, .amax = two_}), {"amax is f32 [2]"});
  EXPECT_EQ(refusal(x_, {.format = delayed, .scale = one_, .amax = one_}), "");
}

TEST_F(QuantizeArguments, FormatsThatContradictThemselvesAreRefused) {
  QuantFormat format = format_named("mxfp8_rceil");
  format.dtype = DType::kBF16;
  expect_words(refusal(x_, {.format = format}), {"to bf16", "e4m3 or e5m2"});
  format = format_named("mxfp8_rceil");
  format.block_cols = 48;
  expect_words(refusal(x_, {.format = format}), {"1 x 48", "divide 128"});
  format.block_rows = 0;
  format.block_cols = 32;
  expect_words(refusal(x_, {.format = format}), {"0 x 32", "divide 128"});
  format = format_named("current_e4m3");
  format.amax_source = AmaxSource::kBlock;
  expect_words(refusal(x_, {.format = format}), {"0 x 0", "own amax"});
  format.amax_source = AmaxSource::kTensor;
  format.scale = ScaleKind::kE8M0Rceil;
  expect_words(refusal(x_, {.format = format}), {"e8m0", "only blocks"});
}

TEST_F(QuantizeArguments, OnlyFullTensorsShareAScale) {
  const std::vector<Tensor> xs = {x_, x_};
  expect_words(error_of([&] { quantize_together(*device_, xs, {.format = format_named("mxfp8_rceil")}); }),
               {"quantize_together", "scales of their own"});
}

TEST_F(QuantizeArguments, DequantizeNeedsDataAndScales) {
  expect_words(error_of([&] { dequantize(*device_, x_.operand(), DType::kF32, 0); }),
               {"dequantize", "bf16 without scales"});
  const QuantizedTensor q = quantize(*device_, x_, {.format = format_named("current_e4m3")});
  expect_words(error_of([&] { dequantize(*device_, q.rowwise_operand(), DType::kE4M3, 0); }),
               {"to e4m3", "f32, f16 or bf16"});
}

TEST_F(QuantizeArguments, DequantizesToEveryType) {
  const QuantFormat format = format_named("block_128x128_f32");
  const Tensor x = support::make_tensor(*device_, {40, 150}, DType::kF32, support::varied_values(6000, 4));
  const QuantizedTensor q = support::quantized(*device_, x, format);
  const Tensor exact = dequantize(*device_, q.rowwise_operand(), DType::kF32, support::anyone(*device_));
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const Tensor narrow = dequantize(*device_, q.rowwise_operand(), dtype, support::anyone(*device_));
    EXPECT_EQ(device_->read(narrow), device_->read(cast(*device_, exact, dtype, support::anyone(*device_))));
  }
}

using Schedule = std::function<void(Device&)>;

struct Account {
  std::uint64_t hash;
  std::size_t events;
  std::int64_t peak_bytes;
};
Account account(const char* device_name, const Schedule& schedule) {
  const std::unique_ptr<Device> device = open_device(device_name);
  schedule(*device);
  return {device->ledger().sequence_hash(), device->ledger().events_seen(), device->ledger().peak_bytes()};
}

/// Quantizes on every path of a recipe, with the recipe's state.
void quantize_on_every_path(Device& device, const Recipe& recipe, std::int64_t tokens) {
  const auto holder = [&](const char* what) { return device.holder(HolderKind::kInFlight, "layer", what); };
  const Tensor x = device.allocate({Shape{tokens, 256}, DType::kBF16}, holder("x"));
  random_fill(device, x, {.seed = 1});
  for (const QuantFormat& format : {recipe.activation, recipe.weight, recipe.gradient}) {
    const bool history = format.amax_source == AmaxSource::kHistory;
    DelayedScales scales(device, {448.0f, 448.0f}, recipe.delayed, "layer");
    const Quantizer inputs{.format = format,
                           .orientations = {true, true},
                           .scale = history ? scales.scale(0) : Tensor{},
                           .amax = history ? scales.amax(0) : Tensor{},
                           .holder = holder("data")};
    QuantizedTensor q = quantize(device, x, inputs);
    const Tensor back = dequantize(device, q.rowwise_operand(), DType::kBF16, holder("back"));
    q.drop_rowwise();
    if (format.per_tensor()) {
      const std::vector<Tensor> parts = {x.columns(0, 128), x.columns(128, 64), x.columns(192, 64)};
      quantize_together(device, parts, inputs);
    }
    scales.update(device);
    const Tensor stash = scales.stash_scales(device, holder("stash"));
  }
}

TEST(QuantizeAccount, MetaAndCpuHaveEqualAllocations) {
  for (const char* name : support::quantized_recipe_names()) {
    const Recipe recipe = make_recipe(name);
    const auto schedule = [&](Device& device) { quantize_on_every_path(device, recipe, 384); };
    const Account cpu = account("cpu", schedule), meta = account("meta", schedule);
    EXPECT_EQ(cpu.hash, meta.hash) << name;
    EXPECT_EQ(cpu.events, meta.events) << name;
    EXPECT_EQ(cpu.peak_bytes, meta.peak_bytes) << name;
    EXPECT_GT(cpu.events, 40u) << name;
    EXPECT_NE(account("meta", [&](Device& device) { quantize_on_every_path(device, recipe, 512); }).hash, meta.hash)
        << name;
  }
}

TEST(QuantizeAccount, MetaQuantizesTensorsThatNoHostCouldHold) {
  const Account meta = account(
      "meta", [](Device& device) { quantize_on_every_path(device, make_recipe("mxfp8"), std::int64_t{1} << 40); });
  EXPECT_GT(meta.peak_bytes, std::int64_t{1} << 49);
}

// The bytes that quantize() allocates for its result, written out.
TEST(QuantizeAccount, CountsDataAndScales) {
  const std::unique_ptr<Device> device = open_device("meta");
  const HolderId holder = device->holder(HolderKind::kInFlight);
  const Tensor x = device->allocate({Shape{200, 96}, DType::kBF16}, holder);
  const auto bytes = [&](const char* format, Orientations orientations) {
    const std::int64_t before = device->ledger().live_bytes();
    const QuantizedTensor q =
        quantize(*device, x, {.format = format_named(format), .orientations = orientations, .holder = holder});
    EXPECT_EQ(device->ledger().live_bytes() - before, q.bytes()) << "workspaces must be gone";
    return q.bytes();
  };
  constexpr std::int64_t kElements = 200 * 96;
  EXPECT_EQ(bytes("current_e4m3", {true, false}), kElements + 4);
  EXPECT_EQ(bytes("current_e4m3", {true, true}), 2 * kElements + 4);
  EXPECT_EQ(bytes("mxfp8_rceil", {true, false}), kElements + 256 * 4);
  EXPECT_EQ(bytes("mxfp8_rceil", {false, true}), kElements + 128 * 8);
  EXPECT_EQ(bytes("block_1x128_pow2", {true, false}), kElements + 4 * 1 * 200);
  EXPECT_EQ(bytes("block_1x128_pow2", {false, true}), kElements + 4 * 2 * 96);
  EXPECT_EQ(bytes("block_128x128_pow2", {true, true}), 2 * kElements + 4 * (2 * 4 + 1 * 4));
}

}  // namespace
}  // namespace fp8lab
