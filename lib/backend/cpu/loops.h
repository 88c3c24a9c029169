#pragma once

#include <span>
#include <string_view>

#include "backend/cpu/gemm/matmul_loops.h"
#include "backend/cpu/quantize/quantize_loops.h"

// Inner loops that are compiled once per instruction set, and the choice among them.
namespace fp8lab::cpu {

struct Loops {
  std::string_view instruction_set;
  const QuantizeLoops& quantize;
  const MatmulLoops& matmul;
};

/// Those that this build has and this processor runs, best first, never empty (loops_x86.cpp, loops_portable.cpp).
std::span<const Loops> available_loops();

/// Those in use; select_cpu_instruction_set() of backend/instruction_sets.h changes which.
const Loops& loops();

}  // namespace fp8lab::cpu
