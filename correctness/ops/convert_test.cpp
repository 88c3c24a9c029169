#include "backend/cpu/convert.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/float8.h"
#include "reference/compare.h"
#include "support/selected_set.h"

// The conversions under every instruction set that this machine has, compared with the scalar conversions of lib/core,
// bit for bit. Counts are odd, so that the last vector is not full.
namespace fp8lab {
namespace {

/// out[i] for every input, by the loop.
template <class In, class Out>
std::vector<Out> converted(void (*loop)(const In*, std::int64_t, Out*), const std::vector<In>& in) {
  std::vector<Out> out(in.size());
  loop(in.data(), static_cast<std::int64_t>(in.size()), out.data());
  return out;
}

template <class In, class Function>
std::vector<float> each(const std::vector<In>& in, Function convert) {
  std::vector<float> out;
  for (const In x : in) out.push_back(convert(x));
  return out;
}

TEST(Convert, EveryCodeAndEveryBf16_HasItsValue) {
  std::vector<std::uint16_t> bf16;
  for (std::uint32_t bits = 0; bits < 0x10000 + 13; ++bits) bf16.push_back(static_cast<std::uint16_t>(bits));
  std::vector<std::uint8_t> bytes;
  for (std::uint32_t byte = 0; byte < 0x100 + 13; ++byte) bytes.push_back(static_cast<std::uint8_t>(byte));
  for (const std::string_view set : cpu_instruction_sets()) {
    SCOPED_TRACE(set);
    const support::SelectedSet selected(set);
    EXPECT_TRUE(reference::bitwise_equal(converted(cpu::load_bf16, bf16),
                                         each(bf16, [](std::uint16_t bits) { return bf16_to_f32({bits}); })));
    EXPECT_TRUE(reference::bitwise_equal(converted(cpu::load_e4m3, bytes), each(bytes, e4m3_to_f32)));
    EXPECT_TRUE(reference::bitwise_equal(converted(cpu::load_e5m2, bytes), each(bytes, e5m2_to_f32)));
  }
}

// Every BF16 with lower bits of a float around the tie, at the ends, and one value that is none of these.
TEST(Convert, FloatsAroundEveryBf16_RoundToIt) {
  std::vector<float> floats;
  for (std::uint32_t bf16 = 0; bf16 < 0x10000; ++bf16)
    for (const std::uint32_t low : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu, 0x35A7u})
      floats.push_back(float_from_bits(bf16 << 16 | low));
  std::vector<std::uint16_t> expected;
  for (const float x : floats) expected.push_back(f32_to_bf16(x).bits);
  for (const std::string_view set : cpu_instruction_sets()) {
    const support::SelectedSet selected(set);
    EXPECT_TRUE(reference::bitwise_equal(converted(cpu::store_bf16, floats), expected)) << set;
  }
}

}  // namespace
}  // namespace fp8lab
