#include "harness/cell/temporary_folder.h"

#include <cstdlib>
#include <system_error>

namespace fp8lab {

std::filesystem::path make_temporary_folder(const std::string& prefix) {
  const char* const own = std::getenv(kTemporaryVariable);
  std::error_code error;
  const std::filesystem::path parent = own != nullptr ? own : std::filesystem::temp_directory_path(error);
  if (error) return {};
  std::string name = (parent / (prefix + "XXXXXX")).string();
  return ::mkdtemp(name.data()) == nullptr ? std::filesystem::path() : std::filesystem::path(name);
}

}  // namespace fp8lab
