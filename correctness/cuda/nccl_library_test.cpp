#include "comm/nccl/nccl_library.h"

#include <gtest/gtest.h>

#include <string>

#include "support/paths.h"

// NCCL, opened when it is first needed. Needs no GPU.
namespace fp8lab::nccl {
namespace {

std::string reason_of(const std::string& name) {
  const NcclLibrary library(
      {.title = "NCCL", .names = {name}, .folder = paths::kOldNccl, .remedy = "install NCCL 2.28"});
  return library.unavailable_reason();
}
std::string path_of(const std::string& name) { return std::string(paths::kOldNccl) + "/" + name; }

TEST(NcclLibrary, HasEveryFunctionIfInstalled) {
  const auto& library = find_library<NcclLibrary>();
  if (library.file().empty()) {  // the project also builds with only the headers
    EXPECT_TRUE(library.unavailable_reason().starts_with("NCCL cannot be loaded (libnccl.so.2:"))
        << library.unavailable_reason();
    return;
  }
  ASSERT_EQ(library.unavailable_reason(), "");
  int version = 0;
  EXPECT_EQ(library.get_version(&version), ncclSuccess);
  EXPECT_GE(version, 22800);
  EXPECT_EQ(std::string(library.error_string(ncclSuccess)), "no error");
}

// Old versions also lack functions; the error names the version instead.
TEST(NcclLibrary, OldVersionsAreRefusedWithTheirNumber) {
  EXPECT_EQ(reason_of("libnccl_2_27.so"), "NCCL: " + path_of("libnccl_2_27.so") + " is 2.27.5; install NCCL 2.28");
  EXPECT_EQ(reason_of("libnccl_2_8.so"), "NCCL: " + path_of("libnccl_2_8.so") + " is 2.8.4; install NCCL 2.28");
}

TEST(NcclLibrary, NewVersionsAreJudgedByTheirFunctions) {
  EXPECT_EQ(reason_of("libnccl_2_28.so"),
            "NCCL: " + path_of("libnccl_2_28.so") + " has no function 'ncclGetErrorString'; install NCCL 2.28");
}

TEST(NcclLibrary, MissingLibraryIsNamed) {
  EXPECT_EQ(reason_of("libnccl_absent.so"),
            "NCCL cannot be loaded (libnccl_absent.so: cannot open shared object file: No such file or directory; " +
                path_of("libnccl_absent.so") +
                ": cannot open shared object file: No such file or directory); install NCCL 2.28");
}

}  // namespace
}  // namespace fp8lab::nccl
