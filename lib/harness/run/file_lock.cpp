#include "harness/run/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace fp8lab {

FileLock::FileLock(const std::filesystem::path& path, Create create) : state_(opened_and_locked(path, create)) {}

FileLock::~FileLock() {
  if (fd_ >= 0) ::close(fd_);
}

FileLock::State FileLock::opened_and_locked(const std::filesystem::path& path, Create create) {
  constexpr int kFlags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  fd_ = ::open(path.c_str(), kFlags);
  if (fd_ < 0 && errno == ENOENT && create == Create::kYes) {
    fd_ = ::open(path.c_str(), kFlags | O_CREAT | O_EXCL, S_IRUSR | S_IWUSR);
    made_ = fd_ >= 0;
    if (fd_ < 0 && errno == EEXIST) return State::kHeldByAnother;  // another process has just made the file
  }
  if (fd_ < 0) return errno == ENOENT ? State::kAbsent : State::kError;
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) return errno == EWOULDBLOCK ? State::kHeldByAnother : State::kError;
  // Its owner may have removed the file between open and flock.
  struct stat opened{}, named{};
  const bool same = ::fstat(fd_, &opened) == 0 && ::lstat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
                    opened.st_ino == named.st_ino;
  return same ? State::kHeld : State::kHeldByAnother;
}

}  // namespace fp8lab
