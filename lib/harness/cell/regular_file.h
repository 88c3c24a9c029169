#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

// Files whose names come from a user or lie in a folder that others may write to. A FIFO, a socket or a device is
// refused instead of waited for, a link is not followed when a file is written, and no file is read beyond a limit.
namespace fp8lab {

/// The most bytes that are read of a document, or that a compressed one may expand to.
inline constexpr std::size_t kMostDocumentBytes = std::size_t{512} << 20;

/// Owns an open file descriptor.
class OpenFile {
 public:
  /// Opens `path` for reading. Throws Error "PATH: why" unless it is a regular file, or a link to one.
  static OpenFile for_reading(const std::filesystem::path& path);
  /// Opens the file of that name for reading and appending, or creates it. Throws Error "PATH: why" for a link, and for
  /// whatever else is no regular file.
  static OpenFile for_appending(const std::filesystem::path& path);
  /// Creates a file for writing; an older regular file of that name is removed first. Throws Error "PATH: why" if
  /// something else has the name.
  static OpenFile created(const std::filesystem::path& path);

  OpenFile(OpenFile&& other) noexcept;
  OpenFile& operator=(OpenFile&&) = delete;
  ~OpenFile();

  int descriptor() const { return descriptor_; }

  /// All bytes from where the file is read next to its end. Throws Error, which names the file, if there are more than
  /// `most`, or if they cannot be read.
  std::string read_all(std::size_t most) const;

 private:
  OpenFile(std::filesystem::path path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// The content of a regular file. Throws Error "PATH: why".
std::string read_regular_file(const std::filesystem::path& path, std::size_t most = kMostDocumentBytes);

/// Throws Error "PATH: why" if something other than a regular file has the name of a file that is to be written.
void refuse_in_the_way(const std::filesystem::path& path);

/// The error for a file of more than `most` bytes.
[[noreturn]] void refuse_size(const std::filesystem::path& path, std::size_t most);

}  // namespace fp8lab
