#include "comm/sockets/user_key.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/check.h"

namespace fp8lab::sockets {
namespace {

constexpr const char* kFile = "key";
constexpr std::size_t kBytes = 32;

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int number() const { return number_; }
  bool is_open() const { return number_ >= 0; }

 private:
  int number_;
};

[[noreturn]] void refuse(const std::string& folder, std::string_view why) {
  fail(fmt::format("{}: no key of this user: {}", folder, why));
}

/// Throws Error unless the file or folder is this user's, and closed to others.
void check_owner(const std::string& folder, const Descriptor& opened, mode_t kind) {
  struct stat status{};
  if (::fstat(opened.number(), &status) != 0) refuse(folder, std::strerror(errno));
  if ((status.st_mode & S_IFMT) != kind) refuse(folder, "something else has its name");
  if (status.st_uid != ::geteuid()) refuse(folder, "it belongs to another user");
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) refuse(folder, "others have access to it; chmod go-rwx");
}

Descriptor open_key(const Descriptor& folder) {
  return Descriptor(::openat(folder.number(), kFile, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
}

/// Makes the key, unless another process makes it at the same time: only a complete file gets the name.
void make_key(const std::string& name, const Descriptor& folder) {
  if (sodium_init() < 0) refuse(name, "libsodium cannot be used");
  std::array<unsigned char, kBytes> random{};
  std::array<char, 2 * kBytes + 1> text{};
  randombytes_buf(random.data(), random.size());
  sodium_bin2hex(text.data(), text.size(), random.data(), random.size());
  const std::string part = fmt::format("{}.{:08x}", kFile, randombytes_random());
  const Descriptor made(
      ::openat(folder.number(), part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!made.is_open()) refuse(name, std::strerror(errno));
  const bool written = ::write(made.number(), text.data(), 2 * kBytes) == static_cast<ssize_t>(2 * kBytes);
  const int error = errno;
  const bool linked =
      written && (::linkat(folder.number(), part.c_str(), folder.number(), kFile, 0) == 0 || errno == EEXIST);
  const int link_error = errno;
  ::unlinkat(folder.number(), part.c_str(), 0);
  if (!linked) refuse(name, std::strerror(written ? link_error : error));
}

}  // namespace

std::string user_key(std::string folder) {
  if (folder.empty()) folder = fmt::format("/tmp/fp8lab-{}", ::geteuid());
  if (::mkdir(folder.c_str(), S_IRWXU) != 0 && errno != EEXIST) refuse(folder, std::strerror(errno));
  const Descriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!opened.is_open()) refuse(folder, std::strerror(errno));
  check_owner(folder, opened, S_IFDIR);
  Descriptor key = open_key(opened);
  if (!key.is_open() && errno == ENOENT) {
    make_key(folder, opened);
    key = open_key(opened);
  }
  if (!key.is_open()) refuse(folder, std::strerror(errno));
  check_owner(folder, key, S_IFREG);
  std::string text(2 * kBytes, '\0');
  if (::read(key.number(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    refuse(folder, fmt::format("{} is cut short; remove it", kFile));
  return text;
}

}  // namespace fp8lab::sockets
