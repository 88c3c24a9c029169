#pragma once

#include "backend/cpu/loops.h"

namespace fp8lab::cpu {

#if defined(__x86_64__)
// Flattened, since only what is inlined here is compiled for more than the baseline. A caller with more instructions
// than its callee may inline it, and the linker never shares these functions, whose `Work` is local to its file.
template <class Work>
__attribute__((target("avx2,fma"), flatten)) void run_with_avx2(Work work) {
  work();
}
template <class Work>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"), flatten)) void run_with_avx512(Work work) {
  work();
}
#endif

/// Calls work(), a lambda around loops, as compiled for the instruction set in use. What it reads it captures by value:
/// compilers must assume that a store changes what is captured by reference.
template <class Work>
void vectorized(Work work) {
#if defined(__x86_64__)
  switch (loops().set) {
    case InstructionSet::kAvx512: return run_with_avx512(work);
    case InstructionSet::kAvx2: return run_with_avx2(work);
    case InstructionSet::kBaseline: break;
  }
#endif
  work();
}

}  // namespace fp8lab::cpu
