#include "harness/subjects/watched/patched_copy.h"

#include <fmt/format.h>

#include <cstdint>

#include "core/check.h"
#include "harness/run/arm_process.h"
#include "harness/subjects/captured_process.h"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMostBytes = std::uintmax_t{8} << 30;
constexpr double kPatchSeconds = 120;

/// Files of version control are not for programs, and stale bytecode would replace patched sources.
bool is_left_out(const fs::path& name) { return name == ".git" || name == ".hg" || name == "__pycache__"; }

void copy_folder(const fs::path& from, const fs::path& to) {
  std::uintmax_t bytes = 0;
  fs::create_directories(to);
  for (auto it = fs::recursive_directory_iterator(from); it != fs::recursive_directory_iterator(); ++it) {
    const fs::path target = to / it->path().lexically_relative(from);
    if (is_left_out(it->path().filename())) {
      it.disable_recursion_pending();
    } else if (it->is_symlink()) {
      fs::copy_symlink(it->path(), target);
    } else if (it->is_directory()) {
      fs::create_directory(target);
    } else if (it->is_regular_file()) {
      bytes += it->file_size();
      if (bytes > kMostBytes)
        fail(fmt::format("{} has more than 8 GiB, and a patch needs a copy of it; name a smaller folder in `versions`",
                         from.string()));
      fs::copy_file(it->path(), target);
    }
  }
}

}  // namespace

PatchedCopy::PatchedCopy(const fs::path& folder, const fs::path& patch)
    : root_("patch"), path_(root_.path() / folder.lexically_normal().filename()) {
  if (path_ == root_.path() || !path_.has_filename()) path_ = root_.path() / "copy";
  copy_folder(folder, path_);
  // A repository around the folder for temporary files would make git skip files silently.
  const Captured run =
      captured(outside_of_repositories({"GIT_CEILING_DIRECTORIES=" + root_.path().string(), "git", "-C", path_.string(),
                                        "apply", "--whitespace=nowarn", fs::absolute(patch).string()}),
               "", kPatchSeconds);
  if (run.status == 127) fail("git is not installed, which applies `patch`; install it");
  if (run.status != 0)
    fail(fmt::format("{} does not apply to a copy of {}: {}", patch.string(), folder.string(),
                     one_line(run.late ? "git took too long" : run.errors)));
}

fs::path moved(const fs::path& path, const fs::path& folder, const fs::path& copy) {
  const fs::path relative = path.lexically_normal().lexically_relative(folder.lexically_normal());
  return relative.empty() || *relative.begin() == ".." ? path : copy / relative;
}

}  // namespace fp8lab
