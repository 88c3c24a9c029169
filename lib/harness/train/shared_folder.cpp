#include "harness/train/shared_folder.h"

#include <array>
#include <string>
#include <system_error>

#include "comm/process_group.h"
#include "core/check.h"
#include "harness/cell/temporary_folder.h"

namespace fp8lab {

SharedFolder::SharedFolder(ProcessGroup* world) : world_(world) {
  std::array<char, 4096> name{};
  if (owns()) make_temporary_folder("fp8lab-resume-").string().copy(name.data(), name.size() - 1);
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
