#include <gtest/gtest.h>
#include <sys/mman.h>

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/float8.h"
#include "ops/quantize.h"
#include "reference/compare.h"
#include "support/quantize.h"

// How much of a signal each format keeps, and tensors of many elements.
namespace fp8lab {
namespace {

using support::bytes_of;
using support::format_named;
using Bytes = std::vector<std::uint8_t>;

class QuantizeInvariants : public ::testing::Test {
 protected:
  Tensor gaussian(const Shape& shape, DType dtype = DType::kBF16) {
    return support::make_tensor(*device_, shape, dtype, reference::gaussian_values(shape.numel(), 23));
  }
  Bytes data(const QuantizedOrientation& orientation) { return bytes_of(*device_, orientation.data); }
  Tensor dequantized(const QuantizedTensor& q) {
    return dequantize(*device_, q.rowwise_operand(), DType::kF32, support::anyone(*device_));
  }

  std::unique_ptr<Device> device_ = support::open_poisoned_device();
};

// Signal to quantization noise of 2^20 standard normal values, standard deviation 0.007 dB. Two-sided: too good means
// that nothing was quantized.
TEST_F(QuantizeInvariants, SignalToNoiseIsThatOfTheFormat) {
  struct Row {
    const char* format;
    double low_db, high_db;
  };
  constexpr Row kRows[] = {{"current_e4m3", 31.4, 31.7},     {"current_pow2", 31.4, 31.7},
                           {"current_e5m2", 25.4, 25.7},     {"mxfp8_rceil", 31.4, 31.7},
                           {"mxfp8_floor", 30.5, 30.8},      {"mxfp8_rceil_e5m2", 25.4, 25.7},
                           {"mxfp8_floor_e5m2", 25.2, 25.5}, {"block_1x128_f32", 31.75, 31.85},
                           {"block_1x128_pow2", 31.4, 31.7}, {"block_128x128_pow2", 31.4, 31.7}};
  const Tensor x = gaussian({1024, 1024}, DType::kF32);
  const std::vector<float> values = device_->read(x);
  const auto sqnr = [&](const char* name) {
    return reference::sqnr_db(values, device_->read(dequantized(support::quantized(*device_, x, format_named(name)))));
  };
  for (const Row& row : kRows) {
    const double db = sqnr(row.format);
    RecordProperty(row.format, std::to_string(db));
    EXPECT_TRUE(db > row.low_db && db < row.high_db) << row.format << ": " << db << " dB";
  }
  EXPECT_NEAR(sqnr("mxfp8_rceil") - sqnr("mxfp8_floor"), 0.87, 0.03);
  const std::string untouched = std::to_string(reference::sqnr_db(values, values));
  EXPECT_EQ(untouched, "inf") << "no quantization is no noise, and outside of every window";
}

// Above the size at which quantized data bypass the caches only the store instructions change.
TEST_F(QuantizeInvariants, LargeTensorsEqualTheirParts) {
  constexpr std::int64_t kRows = 4100, kCols = 4104;
  const Tensor x = device_->allocate({Shape{kRows, kCols}, DType::kBF16}, support::anyone(*device_));
  random_fill(*device_, x, {.seed = 5});
  // One NaN, so that one segment is cast twice.
  device_->write(x.row_range(1234, 1).columns(99, 1), std::vector<float>{std::numeric_limits<float>::quiet_NaN()});
  for (const char* name : {"delayed_e4m3", "delayed_e5m2", "mxfp8_rceil"}) {
    const QuantizedTensor full =
        support::quantized(*device_, x, format_named(name), {.orientations = {true, false}, .history_scale = 70.0f});
    const Bytes all = data(full.rowwise());
    for (std::int64_t begin = 0; begin < kRows; begin += 1025) {
      const std::int64_t count = std::min<std::int64_t>(1025, kRows - begin);
      const QuantizedTensor part = support::quantized(*device_, x.row_range(begin, count), format_named(name),
                                                      {.orientations = {true, false}, .history_scale = 70.0f});
      const Bytes slice(all.begin() + begin * kCols, all.begin() + (begin + count) * kCols);
      ASSERT_TRUE(reference::bitwise_equal(data(part.rowwise()), slice)) << name;
    }
  }
}

/// Address space without memory behind it until it is touched.
class SparseBytes {
 public:
  explicit SparseBytes(std::size_t bytes)
      : bytes_(bytes),
        start_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    check(start_ != MAP_FAILED, "no address space for the test");
  }
  ~SparseBytes() { munmap(start_, bytes_); }
  SparseBytes(const SparseBytes&) = delete;
  SparseBytes& operator=(const SparseBytes&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(start_); }

 private:
  std::size_t bytes_;
  void* start_;
};

// Two rows that lie more than 2^31 elements apart, and more than 2^31 elements through a stride of 0. Only a host has
// address space without memory; correctness/cuda tests the same range on a GPU.
TEST_F(QuantizeInvariants, IndicesBeyondTwoToTheThirtyOneAreRight) {
  constexpr std::int64_t kFar = (std::int64_t{1} << 31) + 64, kCols = 256;
  const SparseBytes input(static_cast<std::size_t>(2 * (kFar + kCols))), output(static_cast<std::size_t>(kFar + kCols));
  auto* x = reinterpret_cast<std::uint16_t*>(input.data());
  for (std::int64_t j = 0; j < kCols; ++j) {
    x[j] = f32_to_bf16(1.0f).bits;
    x[kFar + j] = f32_to_bf16(-2.0f).bits;
  }
  float scale = 4.0f, scale_inv = 0.0f, amax = 0.0f;
  QuantizeArgs args;
  args.in = {
      .data = input.data(), .dtype = DType::kBF16, .rows = 2, .cols = kCols, .row_stride = kFar, .col_stride = 1};
  args.rowwise.values = {
      .data = output.data(), .dtype = DType::kE4M3, .rows = 2, .cols = kCols, .row_stride = kFar, .col_stride = 1};
  args.rowwise.scales = {.data = reinterpret_cast<std::byte*>(&scale_inv), .storage_elems = 1};
  args.format = format_named("delayed_e4m3");
  args.scale = &scale;
  args.amax = &amax;
  const std::unique_ptr<Device> host = open_device("cpu");
  host->launch(&KernelTable::quantize, args);
  for (std::int64_t j = 0; j < kCols; ++j) {
    ASSERT_EQ(static_cast<std::uint8_t>(output.data()[j]), encode<E4M3>(4.0f));
    ASSERT_EQ(static_cast<std::uint8_t>(output.data()[kFar + j]), encode<E4M3>(-8.0f));
  }
  EXPECT_EQ(amax, 2.0f);

  MatrixView repeated = args.in;
  repeated.rows = (std::int64_t{1} << 31) / kCols + 3;
  repeated.row_stride = 0;
  ASSERT_GT(repeated.numel(), std::int64_t{1} << 31);
  amax = 0.0f;
  host->launch(&KernelTable::amax, AmaxArgs{.in = repeated, .amax = &amax});
  EXPECT_EQ(amax, 1.0f);
}

}  // namespace
}  // namespace fp8lab
