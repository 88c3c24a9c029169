#pragma once

#include <filesystem>

#include "harness/run/run_folder.h"

namespace fp8lab {

/// A copy of a folder in the folder for temporary files, without version control's files and bytecode. The destructor
/// removes it.
class PatchedCopy {
 public:
  /// Copies `folder` and applies the diff `patch`, whose paths are relative to the folder, as in `git diff`. Throws
  /// Error, with git's message, if the diff does not apply in full, and for a folder of more than 8 GiB.
  PatchedCopy(const std::filesystem::path& folder, const std::filesystem::path& patch);

  const std::filesystem::path& path() const { return path_; }

 private:
  TemporaryFolder root_;
  std::filesystem::path path_;
};

/// `path`, which lies below `folder`, below `copy` instead; another path as it is.
std::filesystem::path moved(const std::filesystem::path& path, const std::filesystem::path& folder,
                            const std::filesystem::path& copy);

}  // namespace fp8lab
