#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/eager/program.h"
#include "harness/predict/predict.h"

namespace fp8lab {

inline constexpr std::string_view kBf16Recipe = "bf16";

/// A library whose eager program is known, with the releases that allocate the same.
struct TorchLibrary {
  std::string_view name, major;
  std::int64_t oldest, newest;
  std::string_view why_not_older;
  std::string_view float8_recipe;  ///< the recipe that it has in addition to bf16
};

std::span<const TorchLibrary> torch_libraries();

/// The library of "torch@2.15" or "torch"; nullptr for others.
const TorchLibrary* torch_library_of(std::string_view release);

/// "KEY: reason" for what the figures of `library` do not cover in this arm of the cell.
std::vector<std::string> uncovered_by_torch(const CellConfig& cell, Arm arm, eager::Program program,
                                            const TorchLibrary& library);

}  // namespace fp8lab
