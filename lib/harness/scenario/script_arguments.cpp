#include "harness/scenario/script_arguments.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"
#include "core/fnv1a.h"
#include "harness/cell/regular_file.h"
#include "harness/cell/spelling.h"

namespace fp8lab {
namespace {

bool is_name(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
  });
}

/// Replaces every field by what `value_of_field` returns for its name.
template <class ValueOfField>
std::string filled(std::string_view text, const ValueOfField& value_of_field) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    if (const std::string_view two = text.substr(at, 2); two == "{{" || two == "}}") {
      out += text[at];
      at += 2;
      continue;
    }
    const std::size_t end = text[at] == '{' ? text.find('}', at) : std::string_view::npos;
    if (end != std::string_view::npos && is_name(text.substr(at + 1, end - at - 1))) {
      out += value_of_field(text.substr(at + 1, end - at - 1));
      at = end + 1;
      continue;
    }
    out += text[at++];
  }
  return out;
}

std::vector<std::string> read_list(const NodeReader& reader, const YamlNode& list, const std::string& where) {
  if (!list.is_list())
    reader.refuse(list.place,
                  fmt::format("`{}` must be a list (`[--steps, \"20\"]`), but is {}", where, described(list)));
  std::vector<std::string> out;
  for (const YamlNode& item : list.items) {
    out.push_back(reader.text(item, where));
    (void)filled(out.back(), [&](std::string_view field) -> std::string {
      if (!find_key(field))
        reader.refuse(item.place, fmt::format("`{}`: `{{{}}}` names no key.{} A word of the program's own is an axis "
                                              "`variant`; two braces stand for one.",
                                              where, field, suggestion(std::string(field), axis_names())));
      return "";
    });
  }
  return out;
}

}  // namespace

void read_arguments(const NodeReader& reader, const YamlEntry& entry, ScriptConfig& script) {
  if (!entry.value.is_map()) {
    script.arguments = read_list(reader, entry.value, "arguments");
    return;
  }
  for (const YamlEntry& arm : entry.value.entries) {
    std::vector<std::string> words = read_list(reader, arm.value, "arguments." + arm.key);
    if (arm.key == "before")
      script.before_arguments = std::move(words);
    else if (arm.key == "after")
      script.arguments = std::move(words);
    else
      reader.refuse(arm.place,
                    fmt::format("`arguments.{}`: no such key; there are before and after", quotable(arm.key)));
  }
}

void read_patch(const NodeReader& reader, const YamlEntry& entry, ScriptConfig& script) {
  if (!entry.value.is_map()) {
    script.patch_after = reader.text(entry.value, "patch");
    return;
  }
  for (const YamlEntry& arm : entry.value.entries) {
    if (arm.key != "before" && arm.key != "after")
      reader.refuse(arm.place, fmt::format("`patch.{}`: no such key; there are before and after", quotable(arm.key)));
    (arm.key == "before" ? script.patch_before : script.patch_after) = reader.text(arm.value, "patch." + arm.key);
  }
}

std::string checksum_of_files(const ScriptConfig& script) {
  constexpr std::size_t kMostBytes = std::size_t{16} << 20;
  std::string contents;
  try {
    for (const std::string& file : {script.path, script.patch_before, script.patch_after})
      contents += file.empty() ? "absent" : fmt::format("{:016x}", fnv1a(read_regular_file(file, kMostBytes)));
  } catch (const Error&) {  // the run reports what it cannot read
    return "";
  }
  return fmt::format("{:016x}", fnv1a(contents));
}

void fill_arguments(CellConfig& cell) {
  const CellConfig values = cell;
  const auto value = [&](std::string_view field) { return to_text(find_key(field)->get(values)); };
  for (std::string& argument : cell.script.arguments) argument = filled(argument, value);
  if (cell.script.before_arguments)
    for (std::string& argument : *cell.script.before_arguments) argument = filled(argument, value);
}

}  // namespace fp8lab
