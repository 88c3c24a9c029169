#include "harness/train/shared_folder.h"

#include <array>
#include <cstdlib>
#include <string>
#include <system_error>

#include "comm/process_group.h"
#include "core/check.h"

namespace fp8lab {
namespace {

/// Makes the folder; returns an empty path on failure.
std::filesystem::path make() {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  if (error) return {};
  std::string name = (parent / "fp8lab-resume-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) return {};
  return name;
}

}  // namespace

SharedFolder::SharedFolder(ProcessGroup* world) : world_(world) {
  std::array<char, 4096> name{};
  if (owns()) make().string().copy(name.data(), name.size() - 1);
  if (world_ != nullptr) {
    const BroadcastPart part{.data = reinterpret_cast<std::byte*>(name.data()), .bytes = name.size()};
    world_->broadcast(0, {&part, 1}, "folder of the saved training state");
  }
  path_ = name.data();
  if (path_.empty()) fail("training.resume_at: rank 0 can make no folder for temporary files; is TMPDIR writable?");
}

SharedFolder::~SharedFolder() {
  std::error_code ignored;
  if (owns()) std::filesystem::remove_all(path_, ignored);
}

bool SharedFolder::owns() const { return world_ == nullptr || world_->rank() == 0; }

}  // namespace fp8lab
