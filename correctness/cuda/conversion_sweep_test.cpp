#include "cuda/conversion_sweep.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "core/float8.h"

// Every float converted on the GPU, by the shared header and by the GPU's own instruction, compared with the host.
namespace fp8lab {
namespace {

constexpr std::uint32_t kRun = 1u << 24;

struct Mismatches {
  std::uint64_t ours = 0;
  std::uint64_t hardware = 0;
  std::uint64_t scales = 0;
  std::uint32_t example = 0;  ///< bits of the last float that differed
};

Mismatches compare(const ConvertedRun& run, std::uint32_t first, std::uint32_t begin, std::uint32_t end) {
  Mismatches mismatches;
  for (std::uint32_t i = begin; i < end; ++i) {
    const float x = float_from_bits(first + i);
    const float magnitude = float_from_bits(float_bits(x) & kFloatMagnitudeMask);
    const std::uint8_t e4m3 = f32_to_e4m3(x), e5m2 = f32_to_e5m2(x);
    const bool ours = run.e4m3_ours[i] == e4m3 && run.e5m2_ours[i] == e5m2;
    const bool hardware = run.e4m3_hardware[i] == e4m3 && run.e5m2_hardware[i] == e5m2;
    const bool scales = run.e8m0_rceil[i] == e8m0_rceil(magnitude, E4M3::kMax) &&
                        run.e8m0_floor[i] == e8m0_floor(magnitude, E4M3::kEmax);
    mismatches.ours += !ours;
    mismatches.hardware += !hardware;
    mismatches.scales += !scales;
    if (!(ours && hardware && scales)) mismatches.example = first + i;
  }
  return mismatches;
}

TEST(ConversionSweep, AllFloatsConvertOnTheGpuAsOnTheHost) {
  Mismatches total;
  const std::uint32_t threads = std::max(1u, std::thread::hardware_concurrency());
  for (std::uint64_t first = 0; first < (std::uint64_t{1} << 32); first += kRun) {
    const ConvertedRun run = convert_on_gpu(static_cast<std::uint32_t>(first), kRun);
    std::vector<Mismatches> found(threads);
    std::vector<std::thread> workers;
    for (std::uint32_t t = 0; t < threads; ++t)
      workers.emplace_back([&, t] {
        const auto share = [&](std::uint64_t k) { return static_cast<std::uint32_t>(kRun * k / threads); };
        found[t] = compare(run, static_cast<std::uint32_t>(first), share(t), share(t + 1));
      });
    for (std::thread& worker : workers) worker.join();
    for (const Mismatches& part : found) {
      total.ours += part.ours;
      total.hardware += part.hardware;
      total.scales += part.scales;
      if (part.example != 0) total.example = part.example;
    }
  }
  EXPECT_EQ(total.ours, 0u) << "last at bits 0x" << std::hex << total.example;
  EXPECT_EQ(total.hardware, 0u) << "last at bits 0x" << std::hex << total.example;
  EXPECT_EQ(total.scales, 0u) << "last at bits 0x" << std::hex << total.example;
}

// A count that is no multiple of a block, and small enough for compute-sanitizer.
TEST(ConversionSweep, RunOfOddLengthConvertsExactlyItsFloats) {
  constexpr std::uint32_t kFirst = 0x3F800000u, kCount = 1001;
  const ConvertedRun run = convert_on_gpu(kFirst, kCount);
  ASSERT_EQ(run.e4m3_ours.size(), kCount);
  const Mismatches found = compare(run, kFirst, 0, kCount);
  EXPECT_EQ(found.ours + found.hardware + found.scales, 0u);
}

TEST(ConversionSweep, EveryByteDecodesOnTheGpuAsOnTheHost) {
  const std::vector<std::uint32_t> bits = decode_on_gpu();
  ASSERT_EQ(bits.size(), 768u);
  for (std::uint32_t code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    EXPECT_EQ(bits[code], float_bits(e4m3_to_f32(byte))) << code;
    EXPECT_EQ(bits[256 + code], float_bits(e5m2_to_f32(byte))) << code;
    EXPECT_EQ(bits[512 + code], float_bits(e8m0_to_f32(byte))) << code;
  }
}

}  // namespace
}  // namespace fp8lab
