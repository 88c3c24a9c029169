#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

// Durable files: a file exists complete or not at all, even if the process or the machine dies during a write.
namespace fp8lab {

/// Writes `parts` in order to "<file>.tmp", forces them to the disk, renames that file to `file` and forces the folder
/// to the disk too. Throws Error naming the file and the reason, and removes the temporary file. If only the last step
/// fails, `file` has been replaced already.
void write_durably(const std::filesystem::path& file, std::span<const std::span<const std::byte>> parts);

/// Reads bytes [offset, offset + out.size()) of `file`. Throws Error naming the file if it cannot be opened or is too
/// short.
void read_bytes(const std::filesystem::path& file, std::int64_t offset, std::span<std::byte> out);
/// The file's size, or -1 if it cannot be determined.
std::int64_t size_of_file(const std::filesystem::path& file);

}  // namespace fp8lab
