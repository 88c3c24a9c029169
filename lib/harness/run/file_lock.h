#pragma once

#include <filesystem>

namespace fp8lab {

/// A file that this process locks while the object lives. The lock ends with the process, however the process ends, so
/// it shows other processes whether the owner lives. Process numbers could not show that: containers share folders, and
/// number their processes apart.
class FileLock {
 public:
  enum class Create { kNo, kYes };

  /// Tries to lock the file, without waiting. Symbolic links are not followed.
  FileLock(const std::filesystem::path& path, Create create);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  /// This object has locked the file.
  bool held() const { return state_ == State::kHeld; }
  /// Another process has locked the file.
  bool held_by_another() const { return state_ == State::kHeldByAnother; }
  /// There is no file of this name. Other errors count as neither of the three.
  bool absent() const { return state_ == State::kAbsent; }
  /// This object has made the file: it was not left by an earlier owner.
  bool made() const { return made_; }

 private:
  enum class State { kHeld, kHeldByAnother, kAbsent, kError };
  State opened_and_locked(const std::filesystem::path& path, Create create);

  int fd_ = -1;
  bool made_ = false;
  State state_;
};

}  // namespace fp8lab
