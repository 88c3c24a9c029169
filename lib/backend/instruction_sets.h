#pragma once

#include <string_view>
#include <vector>

// The `cpu` device's inner loops are compiled once per instruction set. Which set runs changes how long they take and
// not one bit of what they compute.
namespace fp8lab {

/// Those that this build has and this processor runs, best first, never empty: avx512, avx2, baseline on x86-64, where
/// baseline is SSE2; baseline alone elsewhere.
std::vector<std::string_view> cpu_instruction_sets();

/// The one in use: the best, until another is selected.
std::string_view cpu_instruction_set();

/// Selects by name, for this entire process. Throws Error listing cpu_instruction_sets() where `name` is none of them.
void select_cpu_instruction_set(std::string_view name);

}  // namespace fp8lab
