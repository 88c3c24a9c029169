#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "backend/cpu/loops.h"
#include "core/float8.h"
#include "reference/compare.h"

// Every variant of the conversions that this machine can run, compared with the scalar conversions of lib/core, bit for
// bit. Counts are odd, so that the last vector is not full.
namespace fp8lab {
namespace {

/// out[i] for every input, by the loop.
template <class In, class Out>
std::vector<Out> converted(void (*loop)(const In*, std::int64_t, Out*), const std::vector<In>& in) {
  std::vector<Out> out(in.size());
  loop(in.data(), static_cast<std::int64_t>(in.size()), out.data());
  return out;
}

template <class In, class Convert>
std::vector<float> each(const std::vector<In>& in, Convert convert) {
  std::vector<float> out;
  for (const In x : in) out.push_back(convert(x));
  return out;
}

TEST(ConvertLoops, EveryCodeAndEveryBf16_HasItsValue) {
  std::vector<std::uint16_t> bf16;
  for (std::uint32_t bits = 0; bits < 0x10000 + 13; ++bits) bf16.push_back(static_cast<std::uint16_t>(bits));
  std::vector<std::uint8_t> bytes;
  for (std::uint32_t byte = 0; byte < 0x100 + 13; ++byte) bytes.push_back(static_cast<std::uint8_t>(byte));
  for (const cpu::Loops& loops : cpu::available_loops()) {
    SCOPED_TRACE(loops.instruction_set);
    EXPECT_TRUE(reference::bitwise_equal(converted(loops.convert.bf16_to_f32, bf16),
                                         each(bf16, [](std::uint16_t bits) { return bf16_to_f32({bits}); })));
    EXPECT_TRUE(reference::bitwise_equal(converted(loops.convert.e4m3_to_f32, bytes), each(bytes, e4m3_to_f32)));
    EXPECT_TRUE(reference::bitwise_equal(converted(loops.convert.e5m2_to_f32, bytes), each(bytes, e5m2_to_f32)));
  }
}

// Every BF16 with lower bits of a float around the tie, at the ends, and one that is none of these.
TEST(ConvertLoops, FloatsAroundEveryBf16_RoundToIt) {
  std::vector<float> floats;
  for (std::uint32_t bf16 = 0; bf16 < 0x10000; ++bf16)
    for (const std::uint32_t low : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu, 0x35A7u})
      floats.push_back(float_from_bits(bf16 << 16 | low));
  std::vector<std::uint16_t> expected;
  for (const float x : floats) expected.push_back(f32_to_bf16(x).bits);
  for (const cpu::Loops& loops : cpu::available_loops())
    EXPECT_TRUE(reference::bitwise_equal(converted(loops.convert.f32_to_bf16, floats), expected))
        << loops.instruction_set;
}

}  // namespace
}  // namespace fp8lab
