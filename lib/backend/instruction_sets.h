#pragma once

#include <string_view>
#include <vector>

// The `cpu` device's inner loops are compiled once per instruction set. The choice changes their speed and not one bit
// of their results.
namespace fp8lab {

/// The instruction sets that this build has and this processor can run, best first, never empty: avx512, avx2, baseline
/// on x86-64, whose baseline is SSE2; only baseline elsewhere.
std::vector<std::string_view> cpu_instruction_sets();

/// The instruction set in use: the best one, until another is selected.
std::string_view cpu_instruction_set();

/// Selects an instruction set for the entire process. Throws Error listing cpu_instruction_sets() if `name` is none of
/// them.
void select_cpu_instruction_set(std::string_view name);

}  // namespace fp8lab
