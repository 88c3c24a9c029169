#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "harness/run/file_lock.h"

namespace fp8lab {

/// The folder fp8lab-run-XXXXXX in $TMPDIR, for the temporary files of all arms of a run. Its destructor removes it. A
/// run that SIGKILL ended leaves its folder, perhaps with gigabytes; the next run that makes a folder removes it.
class RunFolder {
 public:
  /// The folder of this process. It lives until the last holder releases it.
  static std::shared_ptr<const RunFolder> shared();

  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  /// A path for kTemporaryVariable at which nothing is: below this folder, or in $TMPDIR if no folder could be made.
  std::filesystem::path unused_path() const;

 private:
  RunFolder();

  std::filesystem::path path_;    ///< empty: no folder could be made
  std::optional<FileLock> lock_;  ///< lock of file `lock` in the folder; shows other runs that this one lives
};

/// An empty folder, below $FP8LAB_TMPDIR in the process of an arm, else in the folder of the run. The destructor
/// removes it; if SIGKILL ended this process, the parent or the next run does.
class TemporaryFolder {
 public:
  /// Throws Error, which begins with `who`, if none can be made.
  explicit TemporaryFolder(const std::string& who);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::shared_ptr<const RunFolder> run_folder_;  ///< null in the process of an arm
  std::filesystem::path path_;
};

}  // namespace fp8lab
