#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "ops/activation.h"
#include "ops/elementwise.h"
#include "ops/norm.h"
#include "support/dense_test.h"

// Operations that quantize their result without storing it have the bytes of the operation followed by the cast.
namespace fp8lab {
namespace {

struct Case {
  const char* name;
  QuantFormat format;
  Orientations orientations;
};

std::vector<Case> cases() {
  const Recipe delayed = make_recipe("delayed"), block = make_recipe("block"), micro = make_recipe("mxfp8");
  return {
      {"delayed_rowwise", delayed.activation, {true, false}}, {"delayed_columnwise", delayed.activation, {false, true}},
      {"delayed_both", delayed.activation, {true, true}},     {"delayed_e5m2_both", delayed.gradient, {true, true}},
      {"block_1x128", block.activation, {true, false}},       {"mxfp8", micro.activation, {true, false}}};
}

class QuantizeResults : public support::DenseTest {
 protected:
  Quantizer quantizer(const Case& c) {
    Quantizer made{.format = c.format, .orientations = c.orientations, .holder = anyone()};
    if (!c.format.per_tensor()) return made;
    made.scale = support::make_tensor(*device_, {1}, DType::kF32, {37.0f});
    made.amax = support::make_tensor(*device_, {1}, DType::kF32, {0.25f});
    return made;
  }
  void expect_same(const Tensor& a, const Tensor& b, const std::string& what) {
    ASSERT_EQ(static_cast<bool>(a), static_cast<bool>(b)) << what;
    if (a) {
      EXPECT_EQ(device_->read_bytes(a), device_->read_bytes(b)) << what;
    }
  }
  void expect_same(QuantizedTensor& a, QuantizedTensor& b, const std::string& what) {
    expect_same(a.rowwise().data, b.rowwise().data, what + ": row-wise data");
    expect_same(a.rowwise().scale_inv, b.rowwise().scale_inv, what + ": row-wise scales");
    expect_same(a.columnwise().data, b.columnwise().data, what + ": column-wise data");
    expect_same(a.columnwise().scale_inv, b.columnwise().scale_inv, what + ": column-wise scales");
  }
  std::string refusal(const Quantizer& inputs) {
    return support::error_of(
        [&] { activation_quantize(*device_, ActivationKind::kGelu, gaussian({4, 256}, DType::kBF16), inputs); });
  }
};

// A GPU's rows have 256 columns and multiples up to 16384; for 264 columns and for f32 the result is stored first.
constexpr std::int64_t kCols[] = {256, 264, 768, 4096, 5120};

TEST_F(QuantizeResults, OfNormsEqualNormsFollowedByCasts) {
  for (const Case& c : cases())
    for (const NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm})
      for (const DType dtype : {DType::kBF16, DType::kF32})
        for (const std::int64_t cols : kCols) {
          const std::string what = std::string(c.name) + " of " + std::string(name(dtype)) + " " + std::to_string(cols);
          const bool centred = kind == NormKind::kLayerNorm;
          const NormInputs inputs{.kind = kind,
                                  .x = gaussian({19, cols}, dtype),
                                  .gamma = gaussian({cols}, dtype, 2),
                                  .beta = centred ? gaussian({cols}, DType::kF32, 3) : Tensor{}};
          const Quantizer apart = quantizer(c), at_once = quantizer(c);
          const NormOutputs stored = norm_forward(*device_, inputs);
          QuantizedTensor expected = quantize(*device_, stored.y, apart);
          NormQuantizedOutputs out = norm_quantize(*device_, inputs, at_once);
          expect_same(out.y, expected, what);
          expect_same(out.mean, stored.mean, what + ": mean");
          expect_same(out.rstd, stored.rstd, what + ": rstd");
          expect_same(at_once.amax, apart.amax, what + ": amax");
        }
}

TEST_F(QuantizeResults, OfActivationsEqualActivationsFollowedByCasts) {
  for (const Case& c : cases())
    for (const ActivationKind kind : {ActivationKind::kGelu, ActivationKind::kSwiglu})
      for (const DType dtype : {DType::kBF16, DType::kF32})
        for (const std::int64_t cols : kCols) {
          const std::string what = std::string(c.name) + " of " + std::string(name(dtype)) + " " + std::to_string(cols);
          const Tensor x = gaussian({19, kind == ActivationKind::kSwiglu ? 2 * cols : cols}, dtype);
          const Quantizer apart = quantizer(c), at_once = quantizer(c);
          QuantizedTensor expected = quantize(*device_, activation_forward(*device_, kind, x, anyone()), apart);
          QuantizedTensor out = activation_quantize(*device_, kind, x, at_once);
          expect_same(out, expected, what);
          expect_same(at_once.amax, apart.amax, what + ": amax");
        }
}

TEST_F(QuantizeResults, NanAndInfinityPassThrough) {
  std::vector<float> values(256 * 3, 1.0f);
  values[5] = std::numeric_limits<float>::infinity();
  values[256 + 40] = std::nanf("");
  const Tensor x = support::make_tensor(*device_, {3, 256}, DType::kBF16, values);
  for (const Case& c : cases()) {
    const Quantizer apart = quantizer(c), at_once = quantizer(c);
    QuantizedTensor expected =
        quantize(*device_, activation_forward(*device_, ActivationKind::kGelu, x, anyone()), apart);
    QuantizedTensor out = activation_quantize(*device_, ActivationKind::kGelu, x, at_once);
    expect_same(out, expected, c.name);
    if (!c.format.per_tensor()) continue;
    EXPECT_TRUE(std::isnan(device_->read(at_once.amax)[0])) << c.name;
  }
}

TEST_F(QuantizeResults, OfEmptyTensorsHaveTheirScales) {
  for (const Case& c : cases()) {
    const Quantizer inputs = quantizer(c);
    QuantizedTensor out =
        activation_quantize(*device_, ActivationKind::kSwiglu, gaussian({0, 512}, DType::kBF16), inputs);
    if (c.format.per_tensor() && c.orientations.rowwise) {
      EXPECT_EQ(device_->read(out.rowwise().scale_inv), std::vector<float>{1.0f / 37.0f});
      EXPECT_EQ(device_->read(inputs.amax), std::vector<float>{0.25f});
    }
  }
}

TEST_F(QuantizeResults, RefuseFormatsThatNeedTheStoredResult) {
  const std::string rule =
      "activation_quantize: the cast must be of a full tensor under a given scale, or row-wise in blocks of one row "
      "without an amax; "
      "store the result and quantize it";
  EXPECT_EQ(refusal({.format = make_recipe("current").activation, .holder = anyone()}), rule);
  EXPECT_EQ(refusal({.format = make_recipe("block").weight, .holder = anyone()}), rule);
  EXPECT_EQ(refusal({.format = make_recipe("mxfp8").activation, .orientations = {true, true}, .holder = anyone()}),
            rule);
}

}  // namespace
}  // namespace fp8lab
