#pragma once

#include <filesystem>
#include <string>

namespace fp8lab {

/// Names the folder of temporary files. For a child process a run sets it: the child makes the folder when it needs it,
/// and its parent removes it when the child has ended, even if that was killed.
inline constexpr const char* kTemporaryVariable = "FP8LAB_TMPDIR";

/// The folder of temporary files: $FP8LAB_TMPDIR, which is made if it is not there, else $TMPDIR, else /tmp.
std::filesystem::path temporary_path();

/// Makes an empty folder named `prefix` and random letters, below temporary_path(). Returns an empty path if none can
/// be made.
std::filesystem::path make_temporary_folder(const std::string& prefix);

}  // namespace fp8lab
