#include "harness/cell/temporary_folder.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cstdlib>
#include <random>
#include <system_error>

namespace fp8lab {
namespace {

std::filesystem::path temporary_path() {
  std::error_code error;
  std::filesystem::path path = std::filesystem::temp_directory_path(error);
  return error ? std::filesystem::path("/tmp") : path;
}

}  // namespace

std::filesystem::path unused_temporary_path() {
  std::random_device random;
  return temporary_path() / fmt::format("fp8lab-arm-{:08x}{:08x}", random(), random());
}

std::filesystem::path make_temporary_folder(const std::string& prefix) {
  const char* const own = std::getenv(kTemporaryVariable);
  if (own != nullptr) ::mkdir(own, S_IRWXU);  // it may be there already; mkdtemp reports any other failure
  const std::filesystem::path parent = own != nullptr ? std::filesystem::path(own) : temporary_path();
  std::string name = (parent / (prefix + "XXXXXX")).string();
  return ::mkdtemp(name.data()) == nullptr ? std::filesystem::path() : std::filesystem::path(name);
}

}  // namespace fp8lab
