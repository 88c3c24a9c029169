#include "backend/cpu/loops.h"

#include <atomic>
#include <string>

#include "backend/instruction_sets.h"
#include "core/check.h"

namespace fp8lab {
namespace {

std::atomic<const cpu::Loops*>& selected() {
  static std::atomic<const cpu::Loops*> loops = &cpu::available_loops().front();
  return loops;
}

}  // namespace

namespace cpu {

const Loops& loops() { return *selected().load(std::memory_order_relaxed); }

}  // namespace cpu

std::vector<std::string_view> cpu_instruction_sets() {
  std::vector<std::string_view> names;
  for (const cpu::Loops& loops : cpu::available_loops()) names.push_back(loops.instruction_set);
  return names;
}

std::string_view cpu_instruction_set() { return cpu::loops().instruction_set; }

void select_cpu_instruction_set(std::string_view name) {
  std::string known;
  for (const cpu::Loops& loops : cpu::available_loops()) {
    if (loops.instruction_set == name) return selected().store(&loops);
    known += (known.empty() ? "" : ", ") + std::string(loops.instruction_set);
  }
  fail("instruction set '" + std::string(name) + "' is none that this build and this processor have; those are " +
       known);
}

}  // namespace fp8lab
