#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

// Files that are there complete or not at all, whatever ends the process or the machine meanwhile.
namespace fp8lab {

/// Writes `parts` one after the other to "<file>.tmp", forces them to the disk, renames that to `file` and forces the
/// folder too. Throws Error naming the file and the reason, and removes the temporary file.
void write_durably(const std::filesystem::path& file, std::span<const std::span<const std::byte>> parts);

/// Bytes [offset, offset + out.size()) of `file`. Throws Error naming the file where it cannot be opened or ends
/// before.
void read_bytes(const std::filesystem::path& file, std::int64_t offset, std::span<std::byte> out);
/// The file's size, or -1 where there is none.
std::int64_t size_of_file(const std::filesystem::path& file);

}  // namespace fp8lab
