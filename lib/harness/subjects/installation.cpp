#include "harness/subjects/installation.h"

#include <fmt/format.h>

#include <system_error>

#include "core/check.h"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

fs::path mark_of(const fs::path& environment) {
  return environment.parent_path() / (".unfinished-" + environment.filename().string());
}

constexpr const char* kUnderWay = "another installation of it is under way";

}  // namespace

Installation::Installation(const fs::path& environment)
    : environment_(environment), mark_path_(mark_of(environment)), mark_(mark_path_, FileLock::Create::kYes) {
  const std::string name = environment.string();
  if (mark_.held_by_another()) fail(fmt::format("subjects: --install: {}: {}", name, kUnderWay));
  if (!mark_.held())
    fail(fmt::format("subjects: --install: {} cannot be made or locked; is its folder writable?", mark_path_.string()));
  if (!fs::exists(environment)) return;
  if (mark_.made()) {
    finish();
    fail(fmt::format("subjects: --install: {} exists; remove it to install it again", name));
  }
  std::error_code error;
  fs::remove_all(environment, error);
  if (error)
    fail(fmt::format("subjects: --install: {} is unfinished and cannot be removed: {}", name, error.message()));
}

void Installation::finish() const {
  std::error_code ignored;
  fs::remove(mark_path_, ignored);
}

void Installation::discard() const {
  std::error_code error;
  fs::remove_all(environment_, error);
  if (!error) finish();
}

std::string unfinished(const fs::path& environment) {
  const FileLock mark(mark_of(environment), FileLock::Create::kNo);
  if (mark.absent()) return "";
  if (mark.held_by_another()) return fmt::format("{}; wait for its end", kUnderWay);
  const std::string release = environment.filename().string();
  const std::size_t split = release.find('-');
  return fmt::format("its installation did not finish, as {} marks; run `fp8lab subjects --install {}=={}` again",
                     mark_of(environment).string(), release.substr(0, split), release.substr(split + 1));
}

}  // namespace fp8lab
