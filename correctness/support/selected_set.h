#pragma once

#include <string_view>

#include "backend/instruction_sets.h"

namespace fp8lab::support {

/// While it lives, the process uses the instruction set `name`; then again the one before.
class SelectedSet {
 public:
  explicit SelectedSet(std::string_view name) : before_(cpu_instruction_set()) { select_cpu_instruction_set(name); }
  ~SelectedSet() { select_cpu_instruction_set(before_); }
  SelectedSet(const SelectedSet&) = delete;
  SelectedSet& operator=(const SelectedSet&) = delete;

 private:
  std::string_view before_;
};

}  // namespace fp8lab::support
