#include "optim/durable_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "core/check.h"

namespace fp8lab {
namespace {

[[noreturn]] void fail_with_reason(const std::filesystem::path& file, std::string_view what) {
  fail(fmt::format("saved state: {}: {}: {}", file.string(), what, std::strerror(errno)));
}

class Descriptor {
 public:
  Descriptor(const std::filesystem::path& file, int flags)
      : file_(file), descriptor_(::open(file.c_str(), flags, 0666)) {
    if (descriptor_ < 0) fail_with_reason(file_, "cannot be opened");
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { ::close(descriptor_); }

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail_with_reason(file_, "cannot be written");
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }
  void sync() {
    if (::fsync(descriptor_) != 0) fail_with_reason(file_, "cannot be forced to the disk");
  }

 private:
  std::filesystem::path file_;
  int descriptor_;
};

}  // namespace

void write_durably(const std::filesystem::path& file, std::span<const std::span<const std::byte>> parts) {
  std::filesystem::path temporary = file;
  temporary += ".tmp";
  try {
    Descriptor descriptor(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC);
    for (const std::span<const std::byte> part : parts) descriptor.write(part);
    descriptor.sync();
    if (::rename(temporary.c_str(), file.c_str()) != 0) fail_with_reason(file, "cannot be put in place");
  } catch (const Error&) {
    std::error_code ignored;
    if (std::filesystem::is_regular_file(temporary, ignored)) std::filesystem::remove(temporary, ignored);
    throw;
  }
  Descriptor(file.parent_path(), O_RDONLY | O_DIRECTORY | O_CLOEXEC).sync();
}

void read_bytes(const std::filesystem::path& file, std::int64_t offset, std::span<std::byte> out) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) fail_with_reason(file, "cannot be opened");
  stream.seekg(offset);
  stream.read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(out.size()));
  if (stream.gcount() != static_cast<std::streamsize>(out.size()))
    fail(fmt::format("saved state: {}: it ends before byte {}; the file is truncated, use another save", file.string(),
                     offset + static_cast<std::int64_t>(out.size())));
}

std::int64_t size_of_file(const std::filesystem::path& file) {
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(file, error);
  return error ? -1 : static_cast<std::int64_t>(bytes);
}

}  // namespace fp8lab
