#include "reference/e8m0_reference.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace fp8lab::reference {
namespace {

constexpr int kNan = 255;

std::uint32_t bits_of(double exact_float) {
  const float narrowed = static_cast<float>(exact_float);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &narrowed, sizeof bits);
  return bits;
}

void append_specials(StepFunction& steps, int last_byte) {
  steps.push_back({0x7F7FFFFFu, static_cast<std::uint32_t>(last_byte)});
  steps.push_back({0x7FFFFFFFu, kNan});
}

}  // namespace

int e8m0_rceil(double amax, double fp8_max) {
  if (!std::isfinite(amax)) return kNan;
  int byte = 0;
  while (amax > std::ldexp(fp8_max, byte - 127)) ++byte;
  return byte;
}

int e8m0_floor(double amax, int emax) {
  if (!std::isfinite(amax)) return kNan;
  int byte = 0;
  while (std::ldexp(1.0, byte + 1 - 127 + emax) <= amax) ++byte;
  return byte;
}

StepFunction e8m0_rceil_steps(double fp8_max) {
  StepFunction steps;
  int byte = 0;
  for (; std::ldexp(fp8_max, byte - 127) < std::numeric_limits<float>::max(); ++byte)
    steps.push_back({bits_of(std::ldexp(fp8_max, byte - 127)), static_cast<std::uint32_t>(byte)});
  append_specials(steps, byte);
  return steps;
}

StepFunction e8m0_floor_steps(int emax) {
  StepFunction steps;
  int byte = 0;
  for (; byte + 1 - 127 + emax < 128; ++byte)
    steps.push_back({bits_of(std::ldexp(1.0, byte + 1 - 127 + emax)) - 1, static_cast<std::uint32_t>(byte)});
  append_specials(steps, byte);
  return steps;
}

}  // namespace fp8lab::reference
