#pragma once

#include <span>
#include <string_view>

namespace fp8lab {

/// A key of a scenario's file that sets no field of a cell.
struct FileKey {
  std::string_view name;
  std::string_view meaning;
  std::string_view allowed;
  std::string_view example;
  std::string_view absent;  ///< what a file without the key means; kRequired: every file has it
};

std::span<const FileKey> file_keys();

/// The row called `name`, or nullptr.
const FileKey* find_file_key(std::string_view name);

/// The meaning of a scenario without the key of this path, for keys whose default is not one of their values.
/// It begins with "required" if no scenario
/// may leave the key out. "" for other keys.
std::string_view absent_meaning(std::string_view path);

inline constexpr std::string_view kRequired = "required";

}  // namespace fp8lab
