#pragma once

#include <filesystem>
#include <memory>
#include <optional>

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

}  // namespace fp8lab
