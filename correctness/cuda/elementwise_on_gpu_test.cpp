#include <fmt/core.h>
#include <gtest/gtest.h>

#include "core/float_bits.h"
#include "ops/activation.h"
#include "ops/elementwise.h"
#include "ops/norm.h"
#include "support/both_devices.h"

// Every element-wise kernel, sum and norm of the GPU equals the host's in every byte: over types, strides, and shapes
// that use wide loads (16-byte multiples), their odd ends, rows that fit in registers (norms up to 16384 columns), and
// the kernels for all other shapes.
namespace fp8lab {
namespace {

using support::BothDevices;
using support::kLayouts;
using support::Layout;
using support::Matrix;

constexpr DType kReal[] = {DType::kF32, DType::kF16, DType::kBF16};
constexpr DType kEvery[] = {DType::kF32,  DType::kF16, DType::kBF16, DType::kE4M3, DType::kE5M2,
                            DType::kE8M0, DType::kU8,  DType::kI16,  DType::kI32,  DType::kI64};

struct Size {
  std::int64_t rows;
  std::int64_t cols;
};
// Empty; less than a wide load; odd; full tiles of every transpose; several tiles and a rest.
constexpr Size kSizes[] = {{0, 5}, {1, 1}, {3, 17}, {128, 128}, {131, 264}, {9, 2057}};
constexpr Size kLarge[] = {{1024, 4096}, {517, 4099}};

class OnGpu : public ::testing::Test {
 protected:
  Matrix matrix(DType dtype, Size size, Layout layout = Layout::kContiguous) {
    return Matrix(both_, dtype, size.rows, size.cols, layout);
  }
  BothDevices both_;
};

std::string words(DType dtype, Size size, Layout layout) {
  return fmt::format("{} [{}, {}], layout {}", name(dtype), size.rows, size.cols, static_cast<int>(layout));
}

TEST_F(OnGpu, CastMovesEveryBitWithinAType) {
  for (const DType dtype : kEvery)
    for (const Size size : kSizes)
      for (const Layout from : kLayouts)
        for (const Layout to : kLayouts) {
          const Matrix in = matrix(dtype, size, from).scrambled(1), out = matrix(dtype, size, to).scrambled(2);
          both_.launch(&KernelTable::cast,
                       [&](std::size_t side) { return CastArgs{.in = in[side], .out = out[side]}; });
          EXPECT_EQ(out.difference(), "") << words(dtype, size, from) << " to " << static_cast<int>(to);
        }
}

TEST_F(OnGpu, CastTransposesLargeMatrices) {
  for (const DType dtype : {DType::kE4M3, DType::kBF16, DType::kF32})
    for (const Size size : kLarge) {
      const Matrix in = matrix(dtype, size).scrambled(1), out = matrix(dtype, {size.cols, size.rows}).scrambled(2);
      both_.launch(&KernelTable::cast,
                   [&](std::size_t side) { return CastArgs{.in = in[side].transposed(), .out = out[side]}; });
      EXPECT_EQ(out.difference(), "") << words(dtype, size, Layout::kTransposed);
    }
}

TEST_F(OnGpu, CastConvertsEveryPairOfTypes) {
  for (const DType from : kEvery)
    for (const DType to : {DType::kF32, DType::kF16, DType::kBF16, DType::kE4M3, DType::kE5M2}) {
      if (from == DType::kI64) continue;
      for (const Layout layout : kLayouts)
        for (const Size size : {Size{3, 17}, Size{131, 264}}) {
          const Matrix in = matrix(from, size, layout).scrambled(3);
          const Matrix out = matrix(to, size, layout == Layout::kOdd ? Layout::kContiguous : layout).scrambled(4);
          both_.launch(&KernelTable::cast,
                       [&](std::size_t side) { return CastArgs{.in = in[side], .out = out[side]}; });
          EXPECT_EQ(out.difference(), "") << words(from, size, layout) << " to " << name(to);
        }
    }
}

TEST_F(OnGpu, FillAndRandomWriteTheSameBits) {
  for (const DType dtype : kReal)
    for (const Layout layout : kLayouts)
      for (const Size size : kSizes) {
        const Matrix filled = matrix(dtype, size, layout).scrambled(1),
                     drawn = matrix(dtype, size, layout).scrambled(2);
        for (const float value : {0.3f, 0.0f, -0.0f}) {
          both_.launch(&KernelTable::fill,
                       [&](std::size_t side) { return FillArgs{.out = filled[side], .value = value}; });
          EXPECT_EQ(filled.difference(), "") << words(dtype, size, layout) << " of " << value;
        }
        for (const bool normal : {true, false}) {
          both_.launch(&KernelTable::random, [&](std::size_t side) {
            return RandomArgs{
                .out = drawn[side], .seed = 7, .stream = 1ull << 40, .row_offset = 3, .normal = normal, .scale = 0.02f};
          });
          EXPECT_EQ(drawn.difference(), "") << words(dtype, size, layout) << (normal ? " normal" : " uniform");
        }
      }
  for (const DType dtype : kEvery)
    for (const Layout layout : kLayouts) {
      const Matrix zeros = matrix(dtype, {131, 264}, layout).scrambled(1);
      both_.launch(&KernelTable::fill, [&](std::size_t side) { return FillArgs{.out = zeros[side]}; });
      EXPECT_EQ(zeros.difference(), "") << words(dtype, {131, 264}, layout);
    }
}

TEST_F(OnGpu, ElementwiseKernelsHaveTheSameBits) {
  for (const DType dtype : kReal)
    for (const DType other : {dtype, DType::kF32})
      for (const Layout layout : kLayouts)
        for (const Size size : kSizes) {
          const std::string what = words(dtype, size, layout) + " and " + std::string(name(other));
          const Matrix a = matrix(dtype, size, layout).gaussian(1), b = matrix(other, size, layout).gaussian(2);
          const Matrix out = matrix(dtype, size, layout).scrambled(3), scalar = matrix(DType::kF32, {1, 1}).gaussian(4);
          both_.launch(&KernelTable::add, [&](std::size_t side) {
            return AddArgs{.a = a[side], .b = b[side], .out = out[side], .alpha = 0.7f, .beta = -1.3f};
          });
          EXPECT_EQ(out.difference(), "") << "add " << what;
          both_.launch(&KernelTable::dropout, [&](std::size_t side) {
            return DropoutArgs{
                .in = b[side], .out = out[side], .probability = 0.3f, .seed = 5, .stream = 6, .row_offset = 9};
          });
          EXPECT_EQ(out.difference(), "") << "dropout " << what;
          if (size.rows > 0) {
            both_.launch(&KernelTable::mse_loss_backward, [&](std::size_t side) {
              return MseLossBackwardArgs{
                  .x = a[side], .target = b[side], .grad_loss = scalar[side], .grad_x = out[side]};
            });
            EXPECT_EQ(out.difference(), "") << "mse_loss_backward " << what;
          }
          both_.launch(&KernelTable::scale,
                       [&](std::size_t side) { return ScaleArgs{.values = a[side], .factor = 1.7f}; });
          EXPECT_EQ(a.difference(), "") << "scale " << what;
        }
}

// The GPU multiplies by a reciprocal and corrects the product, and divides only numbers that are very large or small.
TEST_F(OnGpu, DropoutDividesAsTheHostDoes) {
  std::vector<float> values = reference::gaussian_values(60000, 1);
  for (std::uint32_t bits = 0; bits <= 0xFFFF; ++bits)
    if (const float value = float_from_bits(bits << 16); value == value) values.push_back(value);
  for (const DType dtype : {DType::kBF16, DType::kF32})
    for (const float probability : {0.0f, 0x1p-24f, 0.1f, 0.3f, 0.5f, 2.0f / 3.0f, 0.9f, 1.0f - 0x1p-24f}) {
      std::array<std::vector<std::byte>, BothDevices::kSides> made;
      for (std::size_t side = 0; side < made.size(); ++side) {
        Device& device = both_[side];
        const Tensor x = support::make_tensor(device, {1, std::ssize(values)}, dtype, values);
        made[side] = device.read_bytes(dropout(device, x, {.probability = probability, .seed = 3}, x.holder()));
      }
      EXPECT_EQ(made[0], made[1]) << name(dtype) << ' ' << probability;
    }
}

TEST_F(OnGpu, ActivationsHaveTheSameBits) {
  for (const DType dtype : kReal)
    for (const Layout layout : kLayouts)
      for (const Size size : {Size{0, 5}, Size{3, 17}, Size{131, 264}, Size{9, 2057}, Size{64, 14336}}) {
        const Size wide{size.rows, 2 * size.cols};
        const Matrix x = matrix(dtype, wide, layout).gaussian(1), grad_y = matrix(dtype, size, layout).gaussian(2);
        const Matrix y = matrix(dtype, size, layout).scrambled(3), grad_x = matrix(dtype, wide, layout).scrambled(4);
        const Matrix wide_y = matrix(dtype, wide, layout).scrambled(5), amax = matrix(DType::kF32, {1, 1}).scrambled(6);
        for (const auto& [kind, what] :
             {std::pair(ActivationKind::kSwiglu, "swiglu"), std::pair(ActivationKind::kGeglu, "geglu")}) {
          both_.launch(&KernelTable::activation_forward, [&, kind = kind](std::size_t side) {
            return ActivationForwardArgs{.kind = kind, .x = x[side], .y = y[side], .amax = amax[side].as<float>()};
          });
          EXPECT_EQ(y.difference(), "") << what << ' ' << words(dtype, size, layout);
          EXPECT_EQ(amax.difference(), "") << "amax of " << what << ' ' << words(dtype, size, layout);
          both_.launch(&KernelTable::activation_backward, [&, kind = kind](std::size_t side) {
            return ActivationBackwardArgs{.kind = kind,
                                          .grad_y = grad_y[side],
                                          .x = x[side],
                                          .grad_x = grad_x[side],
                                          .amax = amax[side].as<float>()};
          });
          EXPECT_EQ(grad_x.difference(), "") << what << " backward " << words(dtype, size, layout);
          EXPECT_EQ(amax.difference(), "") << "amax of " << what << " backward " << words(dtype, size, layout);
        }
        both_.launch(&KernelTable::activation_forward, [&](std::size_t side) {
          return ActivationForwardArgs{.kind = ActivationKind::kGelu, .x = x[side], .y = wide_y[side]};
        });
        EXPECT_EQ(wide_y.difference(), "") << "gelu " << words(dtype, size, layout);
        both_.launch(&KernelTable::activation_backward, [&](std::size_t side) {
          return ActivationBackwardArgs{
              .kind = ActivationKind::kGelu, .grad_y = wide_y[side], .x = x[side], .grad_x = grad_x[side]};
        });
        EXPECT_EQ(grad_x.difference(), "") << "gelu backward " << words(dtype, size, layout);
      }
}

TEST_F(OnGpu, RopeRotatesByTheSameAngles) {
  struct Heads {
    std::int64_t seq, batch, heads, head_dim;
    double base;
  };
  // The third case needs more positions than the table of the second has.
  for (const Heads& h : {Heads{5, 3, 2, 6, 10000.0}, Heads{9, 2, 4, 64, 500000.0}, Heads{300, 1, 3, 64, 500000.0}})
    for (const DType dtype : kReal)
      for (const Layout layout : kLayouts)
        for (const bool inverse : {false, true}) {
          const Size size{h.seq * h.batch, h.heads * h.head_dim};
          const Matrix in = matrix(dtype, size, layout).gaussian(1), out = matrix(dtype, size, layout).scrambled(2);
          const auto rotate = [&](const Matrix& to) {
            both_.launch(&KernelTable::rope, [&](std::size_t side) {
              return RopeArgs{.in = in[side],
                              .out = to[side],
                              .batch = h.batch,
                              .heads = h.heads,
                              .base = h.base,
                              .inverse = inverse};
            });
            EXPECT_EQ(to.difference(), "") << words(dtype, size, layout) << (inverse ? " back" : "");
          };
          rotate(out);
          rotate(in);
        }
}

// 2500 rows: parts of ten; 131 rows: parts of eight and a rest.
TEST_F(OnGpu, SumsHaveTheSameBits) {
  for (const DType dtype : kReal)
    for (const Layout layout : kLayouts)
      for (const Size size : {Size{0, 5}, Size{1, 1}, Size{131, 264}, Size{2500, 72}, Size{40, 40000}}) {
        const Matrix x = matrix(dtype, size, layout).gaussian(1),
                     target = matrix(DType::kF32, size, layout).gaussian(2);
        const Matrix sums = matrix(dtype, {1, size.cols}).scrambled(3), loss = matrix(DType::kF32, {1, 1}).scrambled(4);
        both_.launch(&KernelTable::column_sum,
                     [&](std::size_t side) { return ColumnSumArgs{.in = x[side], .out = sums[side]}; });
        EXPECT_EQ(sums.difference(), "") << "column_sum " << words(dtype, size, layout);
        both_.launch(&KernelTable::sum_loss,
                     [&](std::size_t side) { return SumLossArgs{.x = x[side], .loss = loss[side]}; });
        EXPECT_EQ(loss.difference(), "") << "sum_loss " << words(dtype, size, layout);
        if (size.rows == 0) continue;
        both_.launch(&KernelTable::mse_loss, [&](std::size_t side) {
          return MseLossArgs{.x = x[side], .target = target[side], .loss = loss[side]};
        });
        EXPECT_EQ(loss.difference(), "") << "mse_loss " << words(dtype, size, layout);
      }
}

// Every 61st float as a gate; `up` is 1.
TEST_F(OnGpu, SigmoidHasTheSameBitsForEveryGate) {
  constexpr std::int64_t kRows = 256, kCols = 32768, kStep = 61;
  const std::int64_t floats = (std::int64_t{1} << 32) / kStep;
  for (std::int64_t first = 0; first < floats; first += kRows * kCols) {
    std::vector<float> values(static_cast<std::size_t>(2 * kRows * kCols), 1.0f);
    for (std::int64_t i = 0; i < kRows * kCols; ++i) {
      const auto bits = static_cast<std::uint32_t>((first + i) * kStep);
      // The bits of a NaN are not specified.
      const bool nan = (bits & kFloatMagnitudeMask) > kFloatInfinityBits;
      values[static_cast<std::size_t>(i / kCols * 2 * kCols + i % kCols)] = nan ? 0.0f : float_from_bits(bits);
    }
    std::array<std::vector<float>, BothDevices::kSides> results;
    for (std::size_t side = 0; side < results.size(); ++side) {
      const Tensor x = support::make_tensor(both_[side], {kRows, 2 * kCols}, DType::kF32, values);
      results[side] =
          both_[side].read(activation_forward(both_[side], ActivationKind::kSwiglu, x, support::anyone(both_[side])));
    }
    for (std::size_t i = 0; i < results[0].size(); ++i)
      ASSERT_EQ(float_bits(results[0][i]), float_bits(results[1][i])) << "element " << i << " from " << first;
  }
}

class NormOnGpu : public OnGpu {
 protected:
  void expect_equal(NormKind kind, DType dtype, DType parameters, Size size, Layout layout) {
    const std::string what = (kind == NormKind::kLayerNorm ? "layer " : "rms ") + words(dtype, size, layout);
    const Matrix x = matrix(dtype, size, layout).gaussian(1, 0.5f), grad_y = matrix(dtype, size, layout).gaussian(2);
    const Matrix gamma = matrix(parameters, {1, size.cols}).gaussian(3, 1.0f),
                 beta = matrix(parameters, {1, size.cols}).gaussian(4);
    const Matrix y = matrix(dtype, size, layout).scrambled(5), grad_x = matrix(dtype, size, layout).scrambled(6);
    const Matrix mean = matrix(DType::kF32, {size.rows, 1}).scrambled(7),
                 rstd = matrix(DType::kF32, {size.rows, 1}).scrambled(8);
    const Matrix grad_gamma = matrix(parameters, {1, size.cols}).scrambled(9);
    const Matrix grad_beta = matrix(parameters, {1, size.cols}).scrambled(10);
    const Matrix amax = matrix(DType::kF32, {1, 1}).scrambled(11);
    const bool centred = kind == NormKind::kLayerNorm;
    both_.launch(&KernelTable::norm_forward, [&](std::size_t side) {
      return NormForwardArgs{.kind = kind,
                             .x = x[side],
                             .gamma = gamma[side],
                             .beta = centred ? beta[side] : MatrixView{},
                             .y = y[side],
                             .mean = centred ? mean[side] : MatrixView{},
                             .rstd = rstd[side],
                             .amax = amax[side].as<float>()};
    });
    both_.launch(&KernelTable::norm_backward, [&](std::size_t side) {
      return NormBackwardArgs{.kind = kind,
                              .grad_y = grad_y[side],
                              .x = x[side],
                              .gamma = gamma[side],
                              .mean = centred ? mean[side] : MatrixView{},
                              .rstd = rstd[side],
                              .grad_x = grad_x[side],
                              .grad_gamma = grad_gamma[side],
                              .grad_beta = centred ? grad_beta[side] : MatrixView{}};
    });
    EXPECT_EQ(y.difference(), "") << "y of " << what;
    EXPECT_EQ(amax.difference(), "") << "amax of " << what;
    EXPECT_EQ(mean.difference(), "") << "mean of " << what;
    EXPECT_EQ(rstd.difference(), "") << "rstd of " << what;
    EXPECT_EQ(grad_x.difference(), "") << "grad_x of " << what;
    EXPECT_EQ(grad_gamma.difference(), "") << "grad_gamma of " << what;
    EXPECT_EQ(grad_beta.difference(), "") << "grad_beta of " << what;
  }
};

// Rows that registers hold as two, four and eight wide loads per thread, full or not; 12, 4100 and 16392 columns are
// read element by element.
TEST_F(NormOnGpu, RowsOfEveryLengthHaveTheSameBits) {
  for (const NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm})
    for (const DType dtype : kReal)
      for (const std::int64_t cols : {1, 12, 8, 264, 2048, 4096, 4100, 5120, 8192, 14336, 16384, 16392})
        expect_equal(kind, dtype, cols % 3 == 0 ? DType::kF32 : dtype, {21, cols}, Layout::kContiguous);
}

TEST_F(NormOnGpu, RowsAtAnyAddressHaveTheSameBits) {
  for (const NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm})
    for (const DType dtype : kReal)
      for (const Layout layout : kLayouts) expect_equal(kind, dtype, DType::kF32, {9, 264}, layout);
}

// More rows than blocks run at once, and so many that every slot of a block's ring is filled several times.
TEST_F(NormOnGpu, ManyRowsHaveTheSameBits) {
  for (const NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    expect_equal(kind, DType::kBF16, DType::kBF16, {2500, 1024}, Layout::kContiguous);
    expect_equal(kind, DType::kBF16, DType::kF32, {9001, 512}, Layout::kPadded);
    expect_equal(kind, DType::kF32, DType::kF32, {3001, 520}, Layout::kPadded);
  }
}

/// The results of the same operation on both devices.
template <class Make>
void expect_equal_casts(BothDevices& both, const std::string& what, const Make& make) {
  std::array<QuantizedTensor, BothDevices::kSides> made;
  for (std::size_t side = 0; side < made.size(); ++side) made[side] = make(both[side]);
  const auto bytes = [&](std::size_t side, const Tensor& tensor) {
    return tensor ? both[side].read_bytes(tensor) : std::vector<std::byte>();
  };
  EXPECT_EQ(bytes(0, made[0].rowwise().data), bytes(1, made[1].rowwise().data)) << what;
  EXPECT_EQ(bytes(0, made[0].rowwise().scale_inv), bytes(1, made[1].rowwise().scale_inv)) << what;
  EXPECT_EQ(bytes(0, made[0].columnwise().data), bytes(1, made[1].columnwise().data)) << what;
}

TEST_F(OnGpu, ResultsCastInRegistersHaveTheSameBits) {
  const std::vector<float> values = reference::gaussian_values(9001 * 512, 1), weights(512, 1.5f);
  for (const char* const recipe : {"delayed", "block", "mxfp8"}) {
    const auto quantizer = [&](Device& device) {
      Quantizer made{.format = make_recipe(recipe).activation, .holder = support::anyone(device)};
      made.orientations.columnwise = made.format.per_tensor();
      if (made.format.per_tensor()) made.scale = support::make_tensor(device, {1}, DType::kF32, {50.0f});
      return made;
    };
    expect_equal_casts(both_, recipe, [&](Device& device) {
      const Tensor x = support::make_tensor(device, {9001, 512}, DType::kBF16, values);
      const Tensor gamma = support::make_tensor(device, {512}, DType::kBF16, weights);
      return norm_quantize(device, {.kind = NormKind::kRmsNorm, .x = x, .gamma = gamma, .beta = {}}, quantizer(device))
          .y;
    });
    expect_equal_casts(both_, recipe, [&](Device& device) {
      const Tensor x = support::make_tensor(device, {9001, 512}, DType::kBF16, values);
      return activation_quantize(device, ActivationKind::kSwiglu, x, quantizer(device));
    });
  }
}

}  // namespace
}  // namespace fp8lab
