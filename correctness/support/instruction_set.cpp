#include <gtest/gtest.h>

#include <cstdlib>
#include <stdexcept>

#include "backend/instruction_sets.h"

// Part of every test binary that links the backend: FP8LAB_CPU_ISA selects the instruction set of a suite, as it does
// for the program.
namespace fp8lab {
namespace {

class InstructionSet : public ::testing::Environment {
  void SetUp() override {
    const char* name = std::getenv("FP8LAB_CPU_ISA");
    if (name == nullptr || *name == '\0') return;
    try {
      select_cpu_instruction_set(name);
    } catch (const std::exception& error) {
      FAIL() << "FP8LAB_CPU_ISA: " << error.what();
    }
  }
};

[[maybe_unused]] const ::testing::Environment* const kRegistered =
    ::testing::AddGlobalTestEnvironment(new InstructionSet);

}  // namespace
}  // namespace fp8lab
