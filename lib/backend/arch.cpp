#include "backend/arch.h"

#include <fmt/core.h>

#include <array>
#include <string>

#include "core/check.h"

namespace fp8lab {
namespace {

constexpr std::array kProfiles = {
    ArchProfile{.name = "hopper",
                .title = "FP8 products read both operands along the reduction axis; MXFP8 products are emulated",
                .fp8_gemm_any_orientation = false,
                .mxfp8_gemm = false},
    ArchProfile{.name = "blackwell",
                .title = "FP8 products in any orientation, MXFP8 products in hardware",
                .fp8_gemm_any_orientation = true,
                .mxfp8_gemm = true},
};

}  // namespace

std::span<const ArchProfile> arch_profiles() { return kProfiles; }

const ArchProfile& arch_profile(std::string_view name) {
  std::string known;
  for (const ArchProfile& profile : kProfiles) {
    if (profile.name == name) return profile;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", profile.name);
  }
  fail(fmt::format("architecture '{}' is not known; the profiles are {}", name, known));
}

}  // namespace fp8lab
