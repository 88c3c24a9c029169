#include <gtest/gtest.h>
#include <link.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/gemm/cublaslt_library.h"
#include "backend/device.h"
#include "comm/process_groups.h"

// Libraries that are opened when they are first needed: they are not opened before, have every function, and are named
// if they are missing. Needs no GPU.
namespace fp8lab {
namespace {

using cuda::CublasLtLibrary;

/// Whether this process has loaded a file whose path contains `name`.
bool is_loaded(const std::string& name) {
  struct Search {
    const std::string& name;
    bool found = false;
  } search{name};
  dl_iterate_phdr(
      [](dl_phdr_info* object, std::size_t, void* data) {
        auto& looked_for = *static_cast<Search*>(data);
        looked_for.found = std::string_view(object->dlpi_name).find(looked_for.name) != std::string_view::npos;
        return looked_for.found ? 1 : 0;
      },
      &search);
  return search.found;
}

bool any_is_loaded() { return is_loaded("libcublasLt.") || is_loaded("libnccl.") || is_loaded("libcudnn"); }

// In a child process, since other tests load these libraries.
TEST(GpuLibraries, HostCodeOpensNoGpuLibrary) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const bool loaded_at_start = any_is_loaded();
        for (const char* host : {"cpu", "meta"}) open_device(host);
        run_ranks("in_process", {.ranks = 2}, [](ProcessGroup& group) { group.barrier("met"); });
        std::exit(loaded_at_start || any_is_loaded() ? 1 : 0);
      },
      testing::ExitedWithCode(0), "");
}

TEST(GpuLibraries, CublasLtHasEveryFunctionIfInstalled) {
  const auto& library = find_library<CublasLtLibrary>();
  if (library.file().empty()) {  // the project also builds with only the headers
    EXPECT_TRUE(library.unavailable_reason().starts_with("cuBLASLt cannot be loaded (libcublasLt.so."))
        << library.unavailable_reason();
    return;
  }
  ASSERT_EQ(library.unavailable_reason(), "");
  EXPECT_TRUE(is_loaded(library.file()));
  EXPECT_EQ(library.version().substr(0, library.version().find('.')), std::to_string(CUBLAS_VER_MAJOR));
  EXPECT_EQ(std::string(library.status_string(CUBLAS_STATUS_SUCCESS)), "success");
}

TEST(GpuLibraries, MissingCublasLtIsNamed) {
  const CublasLtLibrary absent({.title = "cuBLASLt", .names = {"libfp8lab_absent.so.13"}, .remedy = "install it"});
  EXPECT_EQ(
      absent.unavailable_reason(),
      "cuBLASLt cannot be loaded (libfp8lab_absent.so.13: cannot open shared object file: No such file or directory); "
      "install it");
  EXPECT_EQ(absent.matmul, nullptr);
}

TEST(GpuLibraries, CudnnIsOpenedOrNamesTheReason) {
  const std::string& reason = cuda::cudnn_unavailable_reason();
  EXPECT_EQ(is_loaded("libcudnn."), reason.empty()) << reason;
}

// libc stands for a file that is there and is another library.
TEST(GpuLibraries, CublasLtThatLacksAFunctionIsNamed) {
  const CublasLtLibrary wrong({.title = "cuBLASLt", .names = {"libc.so.6"}, .remedy = "install it"});
  EXPECT_EQ(wrong.unavailable_reason(),
            "cuBLASLt: " + wrong.file() + " has no function 'cublasLtGetVersion'; install it");
}

TEST(GpuLibraries, UnavailableDevicesAndProcessGroupsGiveTheirReason) {
  for (const DeviceRow& row : devices()) {
    const std::string reason = row.unavailable_reason();
    EXPECT_EQ(row.describe().empty(), !reason.empty()) << row.name;
  }
  const std::string no_gpu = device_row("cuda").unavailable_reason();
  EXPECT_TRUE(no_gpu.empty() || !process_group_row("nccl").unavailable_reason().empty());
}

}  // namespace
}  // namespace fp8lab
