#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "backend/cpu/loops.h"
#include "core/float8.h"
#include "reference/compare.h"
#include "reference/test_data.h"

// Every variant of the inner loops that this machine can run, compared with the scalar conversions of core/float8.h,
// bit for bit.
namespace fp8lab {
namespace {

using cpu::CastRuns;
using cpu::QuantizeLoops;

// Powers of two and others, scales that overflow, underflow and make ties, and the smallest and largest scales.
const std::vector<float> kScales = {1.0f,    3.0f,          448.0f / 3.3f, 0.013f,   57344.0f / 7.1f,
                                    1.0e10f, 1.0e-10f,      0x1p-127f,     0x1p127f, std::numeric_limits<float>::max(),
                                    1.5f,    0x1.fffffep-1f};

std::vector<std::uint16_t> every_finite_bf16() {
  std::vector<std::uint16_t> all;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits)
    if ((bits & 0x7F80) != 0x7F80) all.push_back(static_cast<std::uint16_t>(bits));
  return all;
}

float value_of(std::uint16_t bf16) { return bf16_to_f32({bf16}); }
float value_of(float x) { return x; }

/// Quantized data in memory aligned to a cache line.
class AlignedData {
 public:
  explicit AlignedData(std::size_t size) : bytes_(size + 64, 0xAA) {
    const auto address = reinterpret_cast<std::uintptr_t>(bytes_.data());
    first_ = bytes_.data() + (64 - address % 64) % 64;
  }
  std::uint8_t* data() { return first_; }
  std::vector<std::uint8_t> first(std::size_t count) const { return {first_, first_ + count}; }

 private:
  std::vector<std::uint8_t> bytes_;
  std::uint8_t* first_;
};

class EveryVariant : public ::testing::TestWithParam<cpu::Loops> {
 protected:
  const QuantizeLoops& loops() const { return GetParam().quantize; }
  auto cast(E4M3, std::uint16_t) const { return loops().cast_bf16_e4m3; }
  auto cast(E5M2, std::uint16_t) const { return loops().cast_bf16_e5m2; }
  auto cast(E4M3, float) const { return loops().cast_f32_e4m3; }
  auto cast(E5M2, float) const { return loops().cast_f32_e5m2; }

  template <class Format, class Element>
  void check_one_run(const std::vector<Element>& in, float scale, bool past_caches) {
    AlignedData data(in.size());
    const auto count = static_cast<std::int64_t>(in.size());
    const std::uint32_t amax = cast(Format{}, Element{})({.in = in.data(),
                                                          .data = data.data(),
                                                          .count = count,
                                                          .run = count,
                                                          .scales = &scale,
                                                          .past_caches = past_caches});
    std::vector<std::uint8_t> expected;
    std::uint32_t largest = 0;
    for (const Element x : in) {
      expected.push_back(encode<Format>(value_of(x) * scale));
      largest = std::max(largest, float_bits(std::fabs(value_of(x))));
    }
    ASSERT_TRUE(reference::bitwise_equal(data.first(in.size()), expected)) << "scale " << scale;
    ASSERT_EQ(amax, largest);
  }

  template <class Format, class Element>
  void check_runs(const std::vector<Element>& in, std::int64_t run) {
    std::vector<float> scales;
    for (std::size_t k = 0; k * static_cast<std::size_t>(run) < in.size(); ++k)
      scales.push_back(kScales[k % kScales.size()]);
    AlignedData data(in.size());
    cast(Format{}, Element{})({.in = in.data(),
                               .data = data.data(),
                               .count = static_cast<std::int64_t>(in.size()),
                               .run = run,
                               .scales = scales.data()});
    std::vector<std::uint8_t> expected;
    for (std::size_t i = 0; i < in.size(); ++i)
      expected.push_back(encode<Format>(value_of(in[i]) * scales[i / static_cast<std::size_t>(run)]));
    ASSERT_TRUE(reference::bitwise_equal(data.first(in.size()), expected)) << "runs of " << run;
  }
};

TEST_P(EveryVariant, CastsEveryBf16UnderEveryScale) {
  const std::vector<std::uint16_t> all = every_finite_bf16();
  for (const float scale : kScales)
    for (const bool past_caches : {false, true}) {
      check_one_run<E4M3>(all, scale, past_caches);
      check_one_run<E5M2>(all, scale, past_caches);
    }
}

TEST_P(EveryVariant, CastsFloatsAroundEveryTie) {
  // Every point where a value begins or a tie lies, its neighbours, and their scaled values.
  std::vector<float> in;
  for (int code = 0; code < 127; ++code)
    for (const float edge :
         {decode<E4M3>(static_cast<std::uint8_t>(code)), decode<E5M2>(static_cast<std::uint8_t>(code & 0x7B)),
          (decode<E4M3>(static_cast<std::uint8_t>(code)) +
           decode<E4M3>(static_cast<std::uint8_t>(code ? code - 1 : 0))) /
              2,
          decode<E5M2>(static_cast<std::uint8_t>(code % 124)) * 1.125f})
      for (const float x : {edge, std::nextafterf(edge, 1e30f), std::nextafterf(edge, -1e30f)}) {
        in.push_back(x);
        in.push_back(-x);
      }
  for (std::uint64_t i = 0; i < 100000; ++i) {  // and floats of arbitrary bits
    const float x = float_from_bits(static_cast<std::uint32_t>(reference::scramble(i)));
    if (std::isfinite(x)) in.push_back(x);
  }
  for (const float scale : kScales) {
    check_one_run<E4M3>(in, scale, false);
    check_one_run<E5M2>(in, scale, false);
  }
  for (const std::int64_t run : {1, 32, 128}) {
    check_runs<E4M3>(in, run);
    check_runs<E5M2>(in, run);
  }
}

TEST_P(EveryVariant, CastsRunsOfAnyLength) {
  std::vector<std::uint16_t> all = every_finite_bf16();
  for (const std::int64_t run : {1, 2, 31, 32, 33, 63, 64, 65, 128, 1000}) {
    check_runs<E4M3>(all, run);
    check_runs<E5M2>(all, run);
  }
}

TEST_P(EveryVariant, WritesNothingBehindItsRun) {
  const std::vector<std::uint16_t> all = every_finite_bf16();
  for (std::int64_t count = 0; count < 200; ++count) {
    AlignedData data(300);
    const float scale = 2.0f;
    loops().cast_bf16_e4m3({.in = all.data() + 15000,
                            .data = data.data(),
                            .count = count,
                            .run = std::max<std::int64_t>(count, 1),
                            .scales = &scale});
    const std::vector<std::uint8_t> written = data.first(300);
    for (std::int64_t i = 0; i < 300; ++i) {
      const float x = value_of(all[static_cast<std::size_t>(15000 + i)]);
      ASSERT_EQ(written[static_cast<std::size_t>(i)], i < count ? encode<E4M3>(x * scale) : 0xAA) << count << ", " << i;
    }
  }
}

TEST_P(EveryVariant, FindsTheLargestMagnitudeAtAnyPlace) {
  constexpr std::uint32_t kLarge = 0x42280000;  // 42
  for (const std::int64_t count : {1, 31, 32, 64, 100, 130})
    for (std::int64_t at = 0; at < count; ++at)
      for (const std::uint32_t sign : {0u, 0x80000000u}) {
        std::vector<float> floats(static_cast<std::size_t>(count), -1.0f);
        floats[static_cast<std::size_t>(at)] = float_from_bits(kLarge | sign);
        std::vector<std::uint16_t> bf16_bits;
        for (const float x : floats) bf16_bits.push_back(f32_to_bf16(x).bits);
        for (const std::int64_t run : {count, std::int64_t{1}, std::int64_t{32}, std::int64_t{128}}) {
          const std::size_t runs = static_cast<std::size_t>((count + run - 1) / run);
          std::vector<std::uint32_t> expected(runs, 0x3F800000), from_floats(runs, 0), from_bf16(runs, 0);
          expected[static_cast<std::size_t>(at / run)] = kLarge;
          loops().amax_f32(floats.data(), count, run, from_floats.data());
          loops().amax_bf16(bf16_bits.data(), count, run, from_bf16.data());
          ASSERT_EQ(from_floats, expected) << count << ", " << at;
          ASSERT_EQ(from_bf16, expected) << count << ", " << at;
        }
      }
}

TEST_P(EveryVariant, OrdersNanAboveInfAboveFiniteValues) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> in(100, -std::numeric_limits<float>::max());
  const auto amax = [&] {
    std::uint32_t floats = 0, bf16 = 0;
    std::vector<std::uint16_t> bf16_bits;
    for (const float x : in) bf16_bits.push_back(static_cast<std::uint16_t>(float_bits(x) >> 16));
    loops().amax_f32(in.data(), 100, 100, &floats);
    loops().amax_bf16(bf16_bits.data(), 100, 100, &bf16);
    EXPECT_EQ(floats >> 16, bf16 >> 16);
    return floats;
  };
  EXPECT_LT(amax(), kFloatInfinityBits);
  in[77] = -inf;
  EXPECT_EQ(amax(), kFloatInfinityBits);
  in[3] = float_from_bits(0xFF810000);  // a signalling NaN with a sign
  EXPECT_GT(amax(), kFloatInfinityBits);
}

TEST_P(EveryVariant, TransposesEveryShape) {
  std::vector<std::uint16_t> in(90 * 200);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<std::uint16_t>(i);
  for (const std::int64_t rows : {0, 1, 3, 4, 7, 64, 90})
    for (const std::int64_t cols : {0, 1, 5, 32, 67, 199}) {
      std::vector<std::uint16_t> out(static_cast<std::size_t>((cols + 1) * (rows + 3)), 0xAAAA);
      loops().transpose({.in = in.data() + 1,
                         .in_stride = 199,
                         .rows = rows,
                         .cols = cols,
                         .out = out.data(),
                         .out_stride = rows + 3});
      for (std::int64_t c = 0; c <= cols; ++c)
        for (std::int64_t r = 0; r < rows + 3; ++r)
          ASSERT_EQ(out[static_cast<std::size_t>(c * (rows + 3) + r)],
                    c < cols && r < rows ? in[static_cast<std::size_t>(1 + r * 199 + c)] : 0xAAAA);
    }
}

INSTANTIATE_TEST_SUITE_P(QuantizeLoops, EveryVariant, ::testing::ValuesIn(cpu::available_loops()),
                         [](const auto& row) { return std::string(row.param.instruction_set); });

}  // namespace
}  // namespace fp8lab
