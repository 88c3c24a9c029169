#include "harness/cell/subject_keys.h"

#include <fmt/format.h>

namespace fp8lab {

std::vector<std::string> subject_names() {
  std::vector<std::string> out;
  for (const SubjectRow& row : kSubjects) out.emplace_back(row.name);
  return out;
}

bool is_library(const CellConfig& cell) { return cell.subject != CellConfig{}.subject; }

const std::string& version_of(const CellConfig& cell, Arm arm) {
  return arm == Arm::kBefore && cell.control == Control::kNone ? cell.versions.before : cell.versions.after;
}

bool is_folder(std::string_view version) { return version.find('/') != std::string_view::npos; }

std::string subject_text(const CellConfig& cell) {
  const auto& [before, after] = cell.versions;
  if (before.empty()) return after.empty() ? cell.subject : fmt::format("{} {}", cell.subject, after);
  return fmt::format("{} {} -> {}", cell.subject, before, after.empty() ? "installed" : after);
}

}  // namespace fp8lab
