#pragma once

#include <toml++/toml.h>

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

// Tables that people write for CI: tiers, and accepted regressions.
namespace fp8lab {

/// What a value of a table must be.
enum class TomlKind { kText, kTexts, kNumber, kCount, kSwitch, kDate };

struct TomlKey {
  std::string_view name;
  TomlKind kind = TomlKind::kText;
};

/// The table in a file. Throws Error "PATH: why".
toml::table read_toml(const std::filesystem::path& path);

/// Throws Error, which begins with `place`, for a key of the table that is none of `keys`, and for a value that does
/// not have the kind of its key. An empty list and a number that is not finite have no kind.
void check_toml_keys(const toml::table& table, std::span<const TomlKey> keys, const std::string& place);

}  // namespace fp8lab
