#include "backend/arch.h"

#include <array>
#include <string>

#include "core/row_by_name.h"

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

const ArchProfile& arch_profile(std::string_view name) { return row_by_name(kProfiles, "architecture", name); }

}  // namespace fp8lab
