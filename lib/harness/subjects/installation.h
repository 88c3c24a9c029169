#pragma once

#include <filesystem>
#include <string>

#include "harness/run/file_lock.h"

namespace fp8lab {

/// An installation of a release while it is made. File `.unfinished-SUBJECT-RELEASE` next to the virtual environment
/// marks it, from before its first file until it is complete: pip cannot make an environment under another name,
/// because environments contain their path. The mark outlives an installer that SIGKILL ended.
class Installation {
 public:
  /// Removes the environment if an earlier installation of it did not finish. Throws Error if it is complete, or if
  /// another process installs it.
  explicit Installation(const std::filesystem::path& environment);

  /// Removes the mark: the environment is complete.
  void finish() const;
  /// Removes the environment, then the mark.
  void discard() const;

 private:
  std::filesystem::path environment_, mark_path_;
  FileLock mark_;
};

/// Why the installation of an environment is not complete, and the remedy; or "". An environment made by hand has no
/// mark.
std::string unfinished(const std::filesystem::path& environment);

}  // namespace fp8lab
