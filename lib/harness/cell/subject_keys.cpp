#include "harness/cell/subject_keys.h"

#include <fmt/format.h>

namespace fp8lab {

std::vector<std::string> subject_names() {
  std::vector<std::string> out;
  for (const SubjectRow& row : kSubjects) out.emplace_back(row.name);
  return out;
}

bool is_library(const CellConfig& cell) { return cell.subject != CellConfig{}.subject; }

bool is_script(const CellConfig& cell) { return cell.subject == "script"; }

const std::vector<std::string>& arguments_of(const CellConfig& cell, Arm arm) {
  const ScriptConfig& script = cell.script;
  const bool is_before = arm == Arm::kBefore && cell.control == Control::kNone && script.before_arguments;
  return is_before ? *script.before_arguments : script.arguments;
}

const std::string& patch_of(const CellConfig& cell, Arm arm) {
  const bool is_before = arm == Arm::kBefore && cell.control == Control::kNone;
  return is_before ? cell.script.patch_before : cell.script.patch_after;
}

bool names_key(const CellConfig& cell, std::string_view name) {
  const std::string field = fmt::format("{{{}}}", name);
  for (const Arm arm : {Arm::kBefore, Arm::kAfter})
    for (const std::string& argument : arguments_of(cell, arm))
      if (argument.find(field) != std::string::npos) return true;
  return false;
}

bool uses_torchrun(const CellConfig& cell) {
  return cell.script.launcher ? *cell.script.launcher == Launcher::kTorchrun : cell.ranks > 1;
}

const std::string& version_of(const CellConfig& cell, Arm arm) {
  const bool is_before = arm == Arm::kBefore && cell.control == Control::kNone;
  // A script's before arm may differ in its arguments or its patch only.
  return is_before && !(is_script(cell) && cell.versions.before.empty()) ? cell.versions.before : cell.versions.after;
}

bool is_folder(std::string_view version) { return version.find('/') != std::string_view::npos; }

PinnedRelease pinned_release(std::string_view text) {
  const std::size_t split = text.find("==");
  if (split == std::string_view::npos) return {.library = {}, .release = std::string(text)};
  return {.library = std::string(text.substr(0, split)), .release = std::string(text.substr(split + 2))};
}

std::string subject_text(const CellConfig& cell) {
  const auto& [before, after] = cell.versions;
  if (before.empty()) return after.empty() ? cell.subject : fmt::format("{} {}", cell.subject, after);
  return fmt::format("{} {} -> {}", cell.subject, before, after.empty() ? "installed" : after);
}

}  // namespace fp8lab
