#include "harness/run/run_folder.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <string>
#include <system_error>

#include "core/check.h"
#include "harness/cell/temporary_folder.h"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "fp8lab-run-";
constexpr const char* kLock = "lock";

/// True for a folder without a lock that is too old to belong to a run that is about to lock it.
bool is_old(const fs::path& folder) {
  std::error_code error;
  const fs::file_time_type written = fs::last_write_time(folder, error);
  return !error && written < fs::file_time_type::clock::now() - std::chrono::hours(1);
}

/// Removes `folder` if it belongs to this user and the run that made it has ended.
void remove_if_left(const fs::path& folder) {
  struct stat found{};
  if (::lstat(folder.c_str(), &found) != 0 || !S_ISDIR(found.st_mode) || found.st_uid != ::geteuid()) return;
  const FileLock lock(folder / kLock, FileLock::Create::kNo);
  if (!lock.held() && !(lock.absent() && is_old(folder))) return;
  std::error_code ignored;  // the next run tries again
  fs::remove_all(folder, ignored);
}

void remove_left_folders(const fs::path& parent) {
  std::error_code error;
  for (fs::directory_iterator entry(parent, error); !error && entry != fs::directory_iterator(); entry.increment(error))
    if (entry->path().filename().string().starts_with(kPrefix)) remove_if_left(entry->path());
}

}  // namespace

RunFolder::RunFolder() {
  const fs::path parent = temporary_path();
  remove_left_folders(parent);      // first, because they may have filled the disk
  constexpr int kMostAttempts = 3;  // another run may take the folder for an abandoned one, until it is locked
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    std::string name = (parent / (std::string(kPrefix) + "XXXXXX")).string();
    if (::mkdtemp(name.data()) == nullptr) return;
    path_ = name;
    lock_.emplace(path_ / kLock, FileLock::Create::kYes);
    if (lock_->held()) return;
    std::error_code ignored;
    fs::remove_all(path_, ignored);
    path_.clear();
  }
}

RunFolder::~RunFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

std::shared_ptr<const RunFolder> RunFolder::shared() {
  static std::weak_ptr<const RunFolder> current;
  std::shared_ptr<const RunFolder> folder = current.lock();
  if (folder == nullptr) {
    folder.reset(new RunFolder);
    current = folder;
  }
  return folder;
}

fs::path RunFolder::unused_path() const {
  std::random_device random;
  const std::string name = fmt::format("{:08x}{:08x}", random(), random());
  return path_.empty() ? temporary_path() / ("fp8lab-arm-" + name) : path_ / ("arm-" + name);
}

TemporaryFolder::TemporaryFolder(const std::string& who) {
  std::error_code error;
  if (std::getenv(kTemporaryVariable) != nullptr) {
    path_ = make_temporary_folder("fp8lab-");
  } else {
    run_folder_ = RunFolder::shared();
    path_ = run_folder_->unused_path();
    if (!fs::create_directory(path_, error)) path_.clear();
  }
  check(!path_.empty(), fmt::format("{}: no temporary folder can be made; name another place in TMPDIR", who));
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace fp8lab
