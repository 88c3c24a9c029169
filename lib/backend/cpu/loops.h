#pragma once

#include <span>
#include <string_view>

#include "backend/cpu/gemm/matmul_loops.h"
#include "backend/cpu/quantize/quantize_loops.h"

// The inner loops whose source differs between instruction sets, and the choice among them. vectorized.h compiles any
// other loop for the set in use.
namespace fp8lab::cpu {

enum class InstructionSet { kBaseline, kAvx2, kAvx512 };

struct Loops {
  InstructionSet set;
  std::string_view instruction_set;
  const QuantizeLoops& quantize;
  const MatmulLoops& matmul;
};

/// The variants that this build has and this processor can run, best first, never empty (loops_x86.cpp,
/// loops_portable.cpp).
std::span<const Loops> available_loops();

/// Products that this processor could run and leaves to others, for tests: they give the same bits.
std::span<const MatmulLoops* const> other_matmul_loops();

/// The variant in use; select_cpu_instruction_set() of backend/instruction_sets.h changes it.
const Loops& loops();

}  // namespace fp8lab::cpu
