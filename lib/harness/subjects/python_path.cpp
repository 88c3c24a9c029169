#include "harness/subjects/python_path.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "core/check.h"

namespace fp8lab {

std::string python_path() {
  const char* const value = std::getenv("PYTHONPATH");
  std::istringstream folders(value ? value : "");
  std::string out;
  for (std::string folder; std::getline(folders, folder, ':');)
    if (!folder.empty()) out += (out.empty() ? "" : ":") + folder;
  return out;
}

std::string worker_folder(const std::string& built_in) {
  const char* const named = std::getenv("FP8LAB_WORKER");
  return named && *named ? named : built_in;
}

std::string worker_folder_with(const std::string& needed, const std::string& built_in, const std::string& who) {
  const std::filesystem::path folder = worker_folder(built_in);
  check(std::filesystem::exists(folder / needed),
        fmt::format("{}: '{}' does not hold {}; name the checkout's folder lib/subjects in FP8LAB_WORKER", who,
                    folder.string(), needed));
  return std::filesystem::absolute(folder).string();
}

}  // namespace fp8lab
