#include <array>

#include "backend/cpu/quantize_loops.h"

namespace fp8lab::cpu {
namespace {

struct Choice {
  std::array<const QuantizeLoops*, 3> loops{};
  std::size_t count = 0;
  void add(const QuantizeLoops& variant) { loops[count++] = &variant; }
};

Choice choose() {
  Choice choice;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    choice.add(kQuantizeLoopsAvx512);
  if (__builtin_cpu_supports("avx2")) choice.add(kQuantizeLoopsAvx2);
  choice.add(kQuantizeLoopsBaseline);
  return choice;
}

}  // namespace

std::span<const QuantizeLoops* const> quantize_loops() {
  static const Choice choice = choose();
  return std::span(choice.loops).first(choice.count);
}

}  // namespace fp8lab::cpu
