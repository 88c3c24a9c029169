#include "harness/cell/regular_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/check.h"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

std::string_view kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe, which may never end";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISLNK(mode)) return "a link";
  return "a device";
}

[[noreturn]] void refuse(const fs::path& path, std::string_view why) {
  fail(fmt::format("{}: {}", path.string(), why));
}

[[noreturn]] void refuse_kind(const fs::path& path, mode_t mode) {
  refuse(path, fmt::format("not a file but {}; copy its content to a file", kind_of(mode)));
}

[[noreturn]] void refuse_to_write(const fs::path& path, mode_t mode) {
  refuse(path, fmt::format("not a file but {}, which is neither followed nor replaced; remove it, or give another "
                           "directory with -o",
                           kind_of(mode)));
}

/// open() that waits for no other process. A FIFO's reading end opens at once; its writing end ends with ENXIO.
int open_at_once(const fs::path& path, int flags) {
  int descriptor = -1;
  do descriptor = ::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0644);
  while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

mode_t mode_of(int descriptor) {
  struct stat status{};
  return ::fstat(descriptor, &status) == 0 ? status.st_mode : 0;
}

}  // namespace

OpenFile::OpenFile(OpenFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

OpenFile::~OpenFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

OpenFile OpenFile::for_reading(const fs::path& path) {
  struct stat status{};  // a socket cannot be opened, and a device may act when it is
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) refuse_kind(path, status.st_mode);
  OpenFile file(path, open_at_once(path, O_RDONLY));
  if (file.descriptor_ < 0)
    refuse(path, errno == ENOENT ? "no such file" : fmt::format("cannot be read: {}", std::strerror(errno)));
  if (const mode_t mode = mode_of(file.descriptor_); !S_ISREG(mode)) refuse_kind(path, mode);
  return file;
}

OpenFile OpenFile::for_appending(const fs::path& path) {
  refuse_in_the_way(path);
  OpenFile file(path, open_at_once(path, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW));
  if (file.descriptor_ < 0) refuse(path, fmt::format("cannot be written: {}", std::strerror(errno)));
  if (const mode_t mode = mode_of(file.descriptor_); !S_ISREG(mode)) refuse_to_write(path, mode);
  return file;
}

OpenFile OpenFile::created(const fs::path& path) {
  refuse_in_the_way(path);
  ::unlink(path.c_str());
  OpenFile file(path, open_at_once(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW));
  if (file.descriptor_ < 0) refuse(path, fmt::format("cannot be written: {}", std::strerror(errno)));
  return file;
}

std::string OpenFile::read_all(std::size_t most) const {
  struct stat status{};
  std::size_t expected = 0;  // files of /proc have no size until they are read
  if (::fstat(descriptor_, &status) == 0 && status.st_size > 0) expected = static_cast<std::size_t>(status.st_size);
  if (expected > most) refuse_size(path_, most);
  std::string out(expected + 1, '\0');  // one byte more, so that the end shows without growing
  for (std::size_t done = 0;;) {
    if (done == out.size()) out.resize(done + std::max(done, std::size_t{1} << 16));
    const ssize_t n = ::read(descriptor_, out.data() + done, out.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) refuse(path_, fmt::format("cannot be read: {}", std::strerror(errno)));
    done += static_cast<std::size_t>(n);
    if (done > most) refuse_size(path_, most);
    if (n > 0) continue;
    out.resize(done);
    return out;
  }
}

std::string read_regular_file(const fs::path& path, std::size_t most) {
  return OpenFile::for_reading(path).read_all(most);
}

void refuse_in_the_way(const fs::path& path) {
  struct stat status{};
  if (::lstat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) refuse_to_write(path, status.st_mode);
}

void refuse_size(const fs::path& path, std::size_t most) {
  refuse(path, fmt::format("more than {} bytes, the most that is read of such a file", most));
}

}  // namespace fp8lab
