#pragma once

#include <filesystem>
#include <string>

namespace fp8lab {

/// Names the folder in which a child process makes its temporary folders. The child makes it when it needs it; its
/// parent removes it when the child has ended, even if that was killed.
inline constexpr const char* kTemporaryVariable = "FP8LAB_TMPDIR";

/// The folder of temporary files: $TMPDIR, else /tmp.
std::filesystem::path temporary_path();

/// Makes an empty folder named `prefix` and random letters, below $FP8LAB_TMPDIR, else below temporary_path().
/// Returns an empty path if none can be made.
std::filesystem::path make_temporary_folder(const std::string& prefix);

}  // namespace fp8lab
