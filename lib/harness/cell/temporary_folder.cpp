#include "harness/cell/temporary_folder.h"

#include <sys/stat.h>

#include <cstdlib>
#include <system_error>

namespace fp8lab {

std::filesystem::path temporary_path() {
  std::error_code error;
  std::filesystem::path path = std::filesystem::temp_directory_path(error);
  return error ? std::filesystem::path("/tmp") : path;
}

std::filesystem::path make_temporary_folder(const std::string& prefix) {
  const char* const own = std::getenv(kTemporaryVariable);
  if (own != nullptr) ::mkdir(own, S_IRWXU);  // it may be there already; mkdtemp reports any other failure
  const std::filesystem::path parent = own != nullptr ? std::filesystem::path(own) : temporary_path();
  std::string name = (parent / (prefix + "XXXXXX")).string();
  return ::mkdtemp(name.data()) == nullptr ? std::filesystem::path() : std::filesystem::path(name);
}

}  // namespace fp8lab
