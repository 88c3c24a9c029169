#pragma once

#include <filesystem>
#include <string>

namespace fp8lab {

/// Names the folder in which a child process makes its temporary folders. Its parent removes that folder when the
/// process has ended, even if it was killed.
inline constexpr const char* kTemporaryVariable = "FP8LAB_TMPDIR";

/// Makes an empty folder named `prefix` and random letters, below $FP8LAB_TMPDIR, else where temporary files go
/// ($TMPDIR). Returns an empty path if none can be made.
std::filesystem::path make_temporary_folder(const std::string& prefix);

}  // namespace fp8lab
