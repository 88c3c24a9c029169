#include "harness/subjects/python_path.h"

#include <cstdlib>
#include <sstream>

namespace fp8lab {

std::string python_path() {
  const char* const value = std::getenv("PYTHONPATH");
  std::istringstream folders(value ? value : "");
  std::string out;
  for (std::string folder; std::getline(folders, folder, ':');)
    if (!folder.empty()) out += (out.empty() ? "" : ":") + folder;
  return out;
}

}  // namespace fp8lab
