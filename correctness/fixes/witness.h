#pragma once

#include <array>
#include <span>
#include <string_view>

#include "fixes/fixes.h"

// Each fix has a witness. A file of this folder holds the witnesses of one area; every_fix_test.cpp checks that every
// fix of the table has one.
namespace fp8lab::fixes_test {

/// A property that holds with the fix and fails once it is reverted.
struct Witness {
  std::string_view fix;
  bool (*holds)(const Behaviors&);
};

std::span<const Witness> quantized_storage_witnesses();
std::span<const Witness> saved_tensor_witnesses();
std::span<const Witness> sharding_witnesses();
std::span<const Witness> optimizer_witnesses();
std::span<const Witness> saved_state_witnesses();
std::span<const Witness> weight_cache_witnesses();

inline Behaviors without(std::string_view fix) {
  const std::array<std::string_view, 1> names{fix};
  return behaviors_without(names);
}

}  // namespace fp8lab::fixes_test
