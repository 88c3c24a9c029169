#pragma once

#include <filesystem>

namespace fp8lab {

class ProcessGroup;

/// A folder for temporary files that all ranks of `world` share (null: only this process). Rank 0 makes it, and its
/// destructor removes it with its contents.
class SharedFolder {
 public:
  /// Collective. Throws Error on every rank if the folder cannot be made.
  explicit SharedFolder(ProcessGroup* world);
  ~SharedFolder();
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  bool owns() const;

  ProcessGroup* world_;
  std::filesystem::path path_;
};

}  // namespace fp8lab
