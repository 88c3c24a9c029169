#include "comm/nccl/nccl_library.h"

#include <fmt/core.h>

namespace fp8lab::nccl {
namespace {

constexpr int kOldest = NCCL_VERSION(2, 28, 0);

}  // namespace

NcclLibrary::NcclLibrary()
    : NcclLibrary({.title = "NCCL",
                   .names = {fmt::format("libnccl.so.{}", NCCL_MAJOR)},
                   .folder = FP8LAB_NCCL_FOLDER,
                   .remedy = "install NCCL 2.28 or later (Debian: libnccl2), or name its folder in LD_LIBRARY_PATH"}) {}

// Checks the version first: an old library also lacks functions, but that message would say less.
NcclLibrary::NcclLibrary(Wanted wanted) : SharedLibrary(std::move(wanted)) {
  int version = 0;
  if (get_version == nullptr || get_version(&version) != ncclSuccess || version >= kOldest) return;
  // Version numbers have one more digit since 2.9.
  const int major = version >= 10000 ? version / 10000 : version / 1000;
  refuse(fmt::format("is {}.{}.{}", major, version / 100 % (version >= 10000 ? 100 : 10), version % 100));
}

}  // namespace fp8lab::nccl
