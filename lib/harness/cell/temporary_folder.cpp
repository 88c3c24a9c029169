#include "harness/cell/temporary_folder.h"

#include <sys/stat.h>

#include <cstdlib>
#include <system_error>

namespace fp8lab {

std::filesystem::path temporary_path() {
  if (const char* const own = std::getenv(kTemporaryVariable); own != nullptr && *own != '\0') {
    ::mkdir(own, S_IRWXU);  // it may be there already; mkdtemp reports any other failure
    return own;
  }
  std::error_code error;
  std::filesystem::path path = std::filesystem::temp_directory_path(error);
  return error ? std::filesystem::path("/tmp") : path;
}

std::filesystem::path make_temporary_folder(const std::string& prefix) {
  std::string name = (temporary_path() / (prefix + "XXXXXX")).string();
  return ::mkdtemp(name.data()) == nullptr ? std::filesystem::path() : std::filesystem::path(name);
}

}  // namespace fp8lab
