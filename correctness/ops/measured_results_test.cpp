#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "ops/activation.h"
#include "ops/norm.h"
#include "reference/compare.h"
#include "support/dense_test.h"

// Operations that measure their result as they compute it: the result is the same, and the amax is the amax of the
// stored values.
namespace fp8lab {
namespace {

class MeasuredResults : public support::DenseTest {
 protected:
  /// Makes a tensor and writes its amax if one is given.
  using Make = std::function<Tensor(const Tensor& amax)>;

  std::vector<std::pair<std::string, Make>> makers(const Tensor& x, const Tensor& grad) {
    const auto norm = [=, this](NormKind kind) {
      const Tensor gamma = gaussian({x.cols()}, DType::kF32, 3);
      const Tensor beta = kind == NormKind::kLayerNorm ? gaussian({x.cols()}, DType::kF32, 4) : Tensor{};
      return [=, this](const Tensor& amax) {
        return norm_forward(*device_, {.kind = kind, .x = x, .gamma = gamma, .beta = beta, .amax = amax}).y;
      };
    };
    const auto forward = [=, this](ActivationKind kind) {
      return [=, this](const Tensor& amax) { return activation_forward(*device_, kind, x, anyone(), amax); };
    };
    const auto backward = [=, this](ActivationKind kind) {
      const Tensor grad_y = kind == ActivationKind::kGelu ? grad : grad.columns(0, x.cols() / 2);
      return [=, this](const Tensor& amax) { return activation_backward(*device_, kind, grad_y, x, anyone(), amax); };
    };
    return {{"layer norm", norm(NormKind::kLayerNorm)},         {"rms norm", norm(NormKind::kRmsNorm)},
            {"gelu", forward(ActivationKind::kGelu)},           {"swiglu", forward(ActivationKind::kSwiglu)},
            {"gelu backward", backward(ActivationKind::kGelu)}, {"swiglu backward", backward(ActivationKind::kSwiglu)},
            {"geglu", forward(ActivationKind::kGeglu)},         {"geglu backward", backward(ActivationKind::kGeglu)}};
  }
  /// An amax left by another operation.
  Tensor stale() { return support::make_tensor(*device_, {1}, DType::kF32, {-1e30f}); }
  static float largest_of(const std::vector<float>& values) {
    float largest = 0.0f;
    for (const float value : values) {
      if (std::isnan(value)) return value;
      largest = std::max(largest, std::fabs(value));
    }
    return largest;
  }
};

// Rows that a GPU's kernels keep in registers, that they read element by element, and that fill a block unevenly; more
// rows than blocks.
constexpr std::pair<std::int64_t, std::int64_t> kMeasuredShapes[] = {{19, 256}, {7, 264},    {3, 34},     {0, 256},
                                                                     {5, 5120}, {700, 1024}, {131, 28672}};

TEST_F(MeasuredResults, AreUnchangedAndHaveTheAmaxOfTheStoredValues) {
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF16})
    for (const auto& [rows, cols] : kMeasuredShapes)
      for (const auto& [name, make] : makers(gaussian({rows, cols}, dtype), gaussian({rows, cols}, dtype, 2))) {
        const std::string what =
            name + " " + std::string(fp8lab::name(dtype)) + " " + std::to_string(rows) + "x" + std::to_string(cols);
        const Tensor amax = stale();
        const Tensor measured = make(amax), plain = make({});
        EXPECT_TRUE(reference::bitwise_equal(device_->read_bytes(measured), device_->read_bytes(plain))) << what;
        EXPECT_EQ(device_->read(amax)[0], largest_of(device_->read(measured))) << what;
      }
}

// The largest element at any place: first, last, and at the end of a block, of a row or of half of a row.
TEST_F(MeasuredResults, AmaxIncludesEveryElement) {
  constexpr std::int64_t kRows = 9, kCols = 2304;
  for (const std::int64_t row : {0, 4, 8})
    for (const std::int64_t col : {0, 7, 255, 1151, 1152, 2047, 2048, 2303}) {
      std::vector<float> values(kRows * kCols, 1.0f);
      values[static_cast<std::size_t>(row * kCols + col)] = 97.0f;
      const Tensor x = support::make_tensor(*device_, {kRows, kCols}, DType::kBF16, values);
      const Tensor ones =
          support::make_tensor(*device_, {kRows, kCols}, DType::kBF16, std::vector<float>(kRows * kCols, 1.0f));
      for (const auto& [name, make] : makers(x, ones)) {
        const Tensor amax = stale();
        const std::vector<float> made = device_->read(make(amax));
        EXPECT_EQ(device_->read(amax)[0], largest_of(made)) << name << " at " << row << ", " << col;
      }
    }
}

TEST_F(MeasuredResults, NanIsTheAmax) {
  std::vector<float> values(3 * 512, 1.0f);
  values[5] = std::numeric_limits<float>::infinity();
  values[512 + 300] = std::nanf("");
  const Tensor x = support::make_tensor(*device_, {3, 512}, DType::kBF16, values);
  for (const auto& [name, make] : makers(x, gaussian({3, 512}, DType::kBF16))) {
    const Tensor amax = stale();
    make(amax);
    EXPECT_TRUE(std::isnan(device_->read(amax)[0])) << name;
  }
}

TEST_F(MeasuredResults, AreCastUnderTheScaleOfTheirAmax) {
  for (const char* orientations : {"row-wise", "both"}) {
    const Quantizer quantizer{.format = make_recipe("current").activation,
                              .orientations = {.rowwise = true, .columnwise = std::string_view(orientations) == "both"},
                              .holder = anyone()};
    const Tensor x = gaussian({40, 512}, DType::kBF16), amax = allocate_amax(*device_);
    const Tensor y = activation_forward(*device_, ActivationKind::kGelu, x, anyone(), amax);
    const auto cast = [&](const Tensor& measured) {
      QuantizedTensor made = quantize(*device_, y, quantizer, measured);
      std::vector<std::vector<std::byte>> bytes;
      for (const QuantizedOrientation* made_orientation : {&made.rowwise(), &made.columnwise()})
        if (*made_orientation)
          for (const Tensor& tensor : {made_orientation->data, made_orientation->scale_inv})
            bytes.push_back(device_->read_bytes(tensor));
      return bytes;
    };
    const auto expected = cast({});
    EXPECT_EQ(cast(amax), expected) << orientations;
    // Another amax gives other bytes, so the amax is read.
    EXPECT_NE(cast(support::make_tensor(*device_, {1}, DType::kF32, {1000.0f})), expected) << orientations;
  }
}

TEST_F(MeasuredResults, RefuseATensorThatIsNoAmax) {
  const Tensor x = gaussian({4, 256}), two = gaussian({2}), narrow = gaussian({1}, DType::kBF16);
  const auto refusal = [&](const Tensor& amax) {
    return support::error_of([&] { activation_forward(*device_, ActivationKind::kGelu, x, anyone(), amax); });
  };
  EXPECT_EQ(refusal(two), "activation_forward: amax is f32 [2]; it must have 1 elements, one for the entire tensor");
  EXPECT_EQ(refusal(narrow), "activation_forward: amax is bf16 [1]; it must be f32");
  EXPECT_EQ(support::error_of([&] {
              quantize(*device_, x, {.format = make_recipe("block").activation, .holder = anyone()}, gaussian({1}));
            }),
            "quantize: measured is f32 [1]; it is given only if the scale follows from the tensor's own amax");
}

}  // namespace
}  // namespace fp8lab
