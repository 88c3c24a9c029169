// Quantization on the GPU equals the host's in every byte, over every format, type, orientation and placement in
// memory, values of every kind, and the sizes of real models.

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/float_bits.h"
#include "cuda/tensor_pair.h"
#include "reference/parallel.h"
#include "support/quantize.h"

namespace fp8lab {
namespace {

using list_test::Both;
using list_test::make_from_bytes;
using list_test::Pair;
using reference::scramble;
using support::NamedFormat;

using Bytes = std::vector<std::byte>;

/// Describes the first byte that differs; empty if there is none.
std::string difference(const Bytes& host, const Bytes& gpu) {
  if (host.size() != gpu.size()) return "sizes";
  const std::size_t at = reference::first_difference(host, gpu);
  if (at == host.size()) return {};
  return "byte " + std::to_string(at) + " of " + std::to_string(host.size()) + ": " +
         std::to_string(std::to_integer<int>(gpu[at])) + ", on the host " +
         std::to_string(std::to_integer<int>(host[at]));
}
std::string difference(Pair& pair, const Tensor& host, const Tensor& gpu) {
  if (!host && !gpu) return {};
  return difference(pair.devices[0]->read_bytes(host), pair.devices[1]->read_bytes(gpu));
}

enum class Numbers {
  kVaried,   ///< many magnitudes, with zeros of both signs
  kAnyBits,  ///< NaNs of any payload, infinities and subnormals among them
  kHuge,     ///< near the end of the type, so that quotients underflow
  kTiny,     ///< subnormals and zeros, whose scales overflow
};
constexpr Numbers kNumbers[] = {Numbers::kVaried, Numbers::kAnyBits, Numbers::kHuge, Numbers::kTiny};

/// Bytes of `count` elements.
Bytes numbers(DType dtype, std::int64_t count, Numbers kind, std::uint64_t seed) {
  const std::size_t width = size_bytes(dtype);
  const std::uint32_t exponent = dtype == DType::kF16 ? 0x7C00u : dtype == DType::kBF16 ? 0x7F80u : kFloatInfinityBits;
  const std::uint32_t fraction = dtype == DType::kF16 ? 0x03FFu : dtype == DType::kBF16 ? 0x007Fu : 0x007FFFFFu;
  const std::uint32_t binade = fraction + 1;
  Bytes bytes(static_cast<std::size_t>(count) * width);
  const auto make = [&](std::int64_t i) {
    const std::uint64_t random = scramble(seed ^ (static_cast<std::uint64_t>(i) << 20));
    auto bits = static_cast<std::uint32_t>(random);
    const auto lower_by = static_cast<std::uint32_t>(random >> 40) % 12;
    switch (kind) {
      case Numbers::kVaried:
        // Within twelve binades around one; one in sixteen is zero.
        bits = (bits & (fraction | (exponent + binade))) & ~exponent;
        bits |= ((exponent >> 1) & exponent) - lower_by * binade;
        if ((random >> 60) == 0) bits &= exponent + binade;
        break;
      case Numbers::kAnyBits: break;
      case Numbers::kHuge:
        bits = (bits & (fraction | (exponent + binade))) | (exponent - (1 + lower_by % 2) * binade);
        break;
      case Numbers::kTiny: bits &= fraction | (exponent + binade); break;
    }
    std::memcpy(bytes.data() + static_cast<std::size_t>(i) * width, &bits, width);
  };
  reference::parallel_parts(count, make);
  return bytes;
}

/// The layout of the matrix in the memory that holds it.
struct Place {
  const char* name;
  std::int64_t before;  ///< columns of the wider matrix before this one's
  std::int64_t behind;
  bool transposed;
};
// Wide loads or full tiles; tiles whose rows are vectors; tiles read element by element; tiles of the transposed
// matrix.
constexpr Place kPlaces[] = {{"contiguous", 0, 0, false},
                             {"in a wider one, aligned", 8, 16, false},
                             {"in a wider one, aligned to nothing", 3, 2, false},
                             {"transposed", 0, 0, true},
                             {"transposed, in a wider one", 5, 0, true}};

Both place(Pair& pair, const Shape& shape, DType dtype, const Place& at, Numbers kind) {
  const std::int64_t rows = at.transposed ? shape.cols() : shape.rows(),
                     cols = at.transposed ? shape.rows() : shape.cols();
  const Shape wider{rows, at.before + cols + at.behind};
  Both both = make_from_bytes(pair, {wider, dtype}, numbers(dtype, wider.numel(), kind, 7));
  for (Tensor& tensor : both) {
    tensor = tensor.columns(at.before, cols);
    if (at.transposed) tensor = tensor.transposed();
  }
  return both;
}

constexpr Orientations kOrientations[] = {{true, false}, {false, true}, {true, true}};

/// Quantizes on both sides and describes the differences.
std::string quantize_both(Pair& pair, const Both& x, const QuantFormat& format, Orientations orientations) {
  std::array<QuantizedTensor, Pair::kSides> results;
  Both amaxes;
  pair.each([&](std::size_t side, Device& device) {
    amaxes[side] = support::scalar(device, 0.25f);
    const bool history = format.amax_source == AmaxSource::kHistory;
    results[side] = quantize(device, x[side],
                             {.format = format,
                              .orientations = orientations,
                              .scale = history ? support::scalar(device, 3.0f) : Tensor{},
                              .amax = amaxes[side],
                              .holder = support::anyone(device)});
  });
  const auto compare = [&](const char* what, const Tensor& host, const Tensor& gpu) {
    const std::string text = difference(pair, host, gpu);
    return text.empty() ? text : std::string(what) + ": " + text;
  };
  const auto &host = results[0], &gpu = results[1];
  for (const std::string& text :
       {compare("row-wise data", host.rowwise().data, gpu.rowwise().data),
        compare("row-wise scales", host.rowwise().scale_inv, gpu.rowwise().scale_inv),
        compare("column-wise data", host.columnwise().data, gpu.columnwise().data),
        compare("column-wise scales", host.columnwise().scale_inv, gpu.columnwise().scale_inv),
        compare("amax", amaxes[0], amaxes[1])})
    if (!text.empty()) return text;
  return {};
}

class QuantizeOnGpu : public ::testing::TestWithParam<std::tuple<NamedFormat, DType>> {
 protected:
  const QuantFormat& format() const { return std::get<0>(GetParam()).format; }
  DType dtype() const { return std::get<1>(GetParam()); }
  Pair pair_;
};

// One element; less than a tile in odd numbers; rows that are vectors but no full tiles; exactly full tiles; tiles and
// a rest in both directions, with transposed data aligned to 16 bytes, to eight and to none.
const Shape kShapes[] = {{1, 1},     {3, 7},     {40, 24},   {128, 128}, {256, 1024}, {144, 656},
                         {264, 136}, {130, 264}, {261, 389}, {40, 2056}, {0, 32},     {32, 0}};

TEST_P(QuantizeOnGpu, EqualsTheHost) {
  for (const Shape& shape : kShapes)
    for (const Place& at : kPlaces)
      for (const Numbers kind : kNumbers) {
        const Both x = place(pair_, shape, dtype(), at, kind);
        for (const Orientations orientations : kOrientations)
          ASSERT_EQ(quantize_both(pair_, x, format(), orientations), "")
              << to_string(shape) << ", " << at.name << ", numbers " << static_cast<int>(kind) << ", rows "
              << orientations.rowwise << ", columns " << orientations.columnwise;
      }
}

// Many tiles at once, in numbers that no GPU divides evenly.
TEST_P(QuantizeOnGpu, EqualsTheHostAtTheSizesOfRealModels) {
  const Both x = place(pair_, {2048 + 64, 1536 + 32}, dtype(), kPlaces[0], Numbers::kVaried);
  for (const Orientations orientations : kOrientations) ASSERT_EQ(quantize_both(pair_, x, format(), orientations), "");
}

// Every byte and every kind of scale: NaNs of both signs, an infinity and zero among them.
TEST_P(QuantizeOnGpu, DequantizesAsTheHost) {
  for (const Shape& shape : kShapes) {
    std::array<QuantizedTensor, Pair::kSides> quantized;
    const Both x = place(pair_, shape, DType::kF32, kPlaces[0], Numbers::kVaried);
    pair_.each(
        [&](std::size_t side, Device& device) { quantized[side] = support::quantized(device, x[side], format()); });
    const auto rewrite = [&](const Tensor& host, const Tensor& gpu, std::uint64_t seed) {
      Bytes bytes = numbers(DType::kF32, (host.bytes() + 3) / 4, Numbers::kAnyBits, seed);
      bytes.resize(static_cast<std::size_t>(host.bytes()));
      pair_.devices[0]->write_bytes(host, bytes);
      pair_.devices[1]->write_bytes(gpu, bytes);
    };
    const auto rewrite_orientation = [&](const QuantizedOrientation& host, const QuantizedOrientation& gpu,
                                         std::uint64_t seed) {
      rewrite(host.data, gpu.data, seed);
      rewrite(host.scale_inv, gpu.scale_inv, seed + 1);
    };
    rewrite_orientation(quantized[0].rowwise(), quantized[1].rowwise(), 3);
    rewrite_orientation(quantized[0].columnwise(), quantized[1].columnwise(), 5);
    for (const bool columnwise : {false, true}) {
      Both values;
      pair_.each([&](std::size_t side, Device& device) {
        const OperandView operand =
            columnwise ? quantized[side].columnwise_operand(false) : quantized[side].rowwise_operand();
        values[side] = dequantize(device, operand, dtype(), support::anyone(device));
      });
      ASSERT_EQ(difference(pair_, values[0], values[1]), "") << to_string(shape) << ", columns " << columnwise;
    }
  }
}

std::string param_name(const ::testing::TestParamInfo<QuantizeOnGpu::ParamType>& info) {
  return std::get<0>(info.param).name + "_" + std::string(name(std::get<1>(info.param)));
}
INSTANTIATE_TEST_SUITE_P(Quantize, QuantizeOnGpu,
                         ::testing::Combine(::testing::ValuesIn(support::all_formats()),
                                            ::testing::Values(DType::kF32, DType::kBF16, DType::kF16)),
                         param_name);

TEST(QuantizeOnGpuLarge, EqualsTheHost) {
  Pair pair;
  const Both x = place(pair, {16384, 8192}, DType::kBF16, kPlaces[0], Numbers::kVaried);
  for (const char* name : {"delayed_e4m3", "current_e5m2", "block_1x128_pow2", "block_128x128_pow2", "mxfp8_rceil"})
    ASSERT_EQ(quantize_both(pair, x, support::format_named(name), {true, true}), "") << name;
  ASSERT_EQ(quantize_both(pair, x, support::format_named("delayed_e5m2"), {true, false}), "");
}

// Two rows that lie more than 2^31 elements apart, and more than 2^31 elements through a stride of 0.
TEST(QuantizeOnGpuLarge, IndicesBeyondTwoToTheThirtyOneEqualTheHost) {
  constexpr std::int64_t kFar = (std::int64_t{1} << 31) + 64, kCols = 256;
  const std::unique_ptr<Device> device = open_device("cuda");
  const HolderId holder = support::anyone(*device);
  const Tensor input = device->allocate({Shape{kFar + kCols}, DType::kBF16}, holder);
  const Tensor output = device->allocate({Shape{kFar + kCols}, DType::kE4M3}, holder);
  const auto part = [&](const Tensor& of, std::int64_t first) {
    return of.reshaped({1, of.numel()}).columns(first, kCols);
  };
  fill(*device, part(input, 0), 1.0f);
  fill(*device, part(input, kFar), -2.0f);
  const Tensor scale = support::scalar(*device, 4.0f), scale_inv = support::scalar(*device, 0.0f),
               amax = support::scalar(*device, 0.0f);
  const auto far_rows = [&](const Tensor& of) {
    MatrixView view = of.view();
    view.rows = 2;
    view.cols = kCols;
    view.row_stride = kFar;
    view.col_stride = 1;
    return view;
  };
  QuantizeArgs args;
  args.in = far_rows(input);
  args.rowwise.values = far_rows(output);
  args.rowwise.scales = {.data = scale_inv.view().data, .storage_elems = 1};
  args.format = support::format_named("delayed_e4m3");
  args.scale = scale.data<float>();
  args.amax = amax.data<float>();
  device->launch(&KernelTable::quantize, args);
  EXPECT_EQ(device->read(part(output, 0)), std::vector<float>(kCols, 4.0f));
  EXPECT_EQ(device->read(part(output, kFar)), std::vector<float>(kCols, -8.0f));
  EXPECT_EQ(device->read(amax)[0], 2.0f);

  MatrixView repeated = args.in;
  repeated.rows = (std::int64_t{1} << 31) / kCols + 3;
  repeated.row_stride = 0;
  device->write(amax, std::vector<float>{0.0f});
  device->launch(&KernelTable::amax, AmaxArgs{.in = repeated, .amax = amax.data<float>()});
  EXPECT_EQ(device->read(amax)[0], 1.0f);
}

// The magnitude that an amax had before counts, whatever its sign.
TEST(AmaxOnGpu, EqualsTheHost) {
  Pair pair;
  for (const Shape& shape :
       {Shape{0, 4}, Shape{1, 1}, Shape{7, 13}, Shape{64, 128}, Shape{1000, 4096}, Shape{4095, 4097}})
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
      for (const Place& at : kPlaces)
        for (const Numbers kind : {Numbers::kVaried, Numbers::kAnyBits, Numbers::kTiny}) {
          if (shape.numel() > 1 << 20 && &at != &kPlaces[0] && &at != &kPlaces[3]) continue;
          const Both x = place(pair, shape, dtype, at, kind);
          constexpr float kInf = std::numeric_limits<float>::infinity();
          for (const float before : {0.0f, -0.0f, 1e30f, -5.0f, kInf, float_from_bits(0xFFC01234u)})
            for (const bool fresh : {false, true}) {
              Both amaxes;
              pair.each([&](std::size_t side, Device& device) {
                amaxes[side] = support::scalar(device, before);
                const AmaxArgs args{.in = x[side].view(), .amax = amaxes[side].data<float>(), .fresh = fresh};
                device.launch(&KernelTable::amax, args);
              });
              ASSERT_EQ(difference(pair, amaxes[0], amaxes[1]), "")
                  << to_string(shape) << " " << name(dtype) << ", " << at.name << ", before " << before << ", fresh "
                  << fresh;
            }
        }
}

// The scale that follows from an amax measured before. The test compares its stored inverse.
TEST(MeasuredScaleOnGpu, EqualsTheHost) {
  Pair pair;
  std::vector<float> amaxes;
  for (std::uint32_t i = 0; i < 1000; ++i)
    amaxes.push_back(float_from_bits(static_cast<std::uint32_t>(scramble(i)) & kFloatMagnitudeMask));
  for (const std::uint32_t bits :
       {0u, 1u, 0x007FFFFFu, 0x00800000u, 0x7F7FFFFFu, 0x7F800000u, 0x7FC00000u, 0x7F800001u})
    amaxes.push_back(float_from_bits(bits));
  for (const char* format : {"current_e4m3", "current_e5m2", "current_pow2", "current_epsilon"}) {
    Both inverses;
    pair.each([&](std::size_t side, Device& device) {
      const Tensor inputs =
          support::make_tensor(device, {static_cast<std::int64_t>(amaxes.size())}, DType::kF32, amaxes);
      const Tensor code = device.allocate({Shape{1, 1}, DType::kE4M3}, support::anyone(device));
      inverses[side] = device.allocate(inputs.spec(), support::anyone(device));
      for (std::int64_t i = 0; i < inputs.numel(); ++i) {
        QuantizeArgs args;
        args.in = support::scalar(device, 1.0f).view();
        args.format = support::format_named(format);
        args.rowwise.values = code.view();
        args.rowwise.scales = {.data = reinterpret_cast<std::byte*>(inverses[side].data<float>() + i),
                               .storage_elems = 1};
        args.rowwise.values.dtype = args.format.dtype;
        args.measured = inputs.data<const float>() + i;
        device.launch(&KernelTable::quantize, args);
      }
    });
    ASSERT_EQ(difference(pair, inverses[0], inverses[1]), "") << format;
  }
}

// Histories shorter than one step of the kernel, of exactly one and of several; more tensors than one launch holds.
TEST(DelayedUpdateOnGpu, EqualsTheHost) {
  Pair pair;
  for (const std::int64_t length : {1, 2, 3, 16, 1024, 1025, 5000})
    for (const std::int64_t tensors : {1, 3, 300})
      for (const AmaxAlgorithm algorithm : {AmaxAlgorithm::kMax, AmaxAlgorithm::kMostRecent}) {
        Both histories, scales;
        const Bytes bytes =
            numbers(DType::kF32, length * tensors, tensors == 3 ? Numbers::kAnyBits : Numbers::kVaried, 11);
        std::vector<float> fp8_max;
        for (std::int64_t i = 0; i < tensors; ++i) fp8_max.push_back(i % 3 == 2 ? 57344.0f : 448.0f);
        pair.each([&](std::size_t side, Device& device) {
          histories[side] = device.allocate({Shape{length, tensors}, DType::kF32}, support::anyone(device));
          device.write_bytes(histories[side], bytes);
          scales[side] = device.allocate({Shape{tensors}, DType::kF32}, support::anyone(device));
          fill(device, scales[side], 7.0f);
          for (int step = 0; step < 3; ++step)
            device.launch(&KernelTable::delayed_update, DelayedUpdateArgs{.history = histories[side].data<float>(),
                                                                          .scale = scales[side].data<float>(),
                                                                          .length = length,
                                                                          .tensors = tensors,
                                                                          .fp8_max = fp8_max,
                                                                          .algorithm = algorithm,
                                                                          .margin = 2});
        });
        ASSERT_EQ(difference(pair, histories[0], histories[1]), "") << length << " x " << tensors;
        ASSERT_EQ(difference(pair, scales[0], scales[1]), "") << length << " x " << tensors;
      }
}

}  // namespace
}  // namespace fp8lab
