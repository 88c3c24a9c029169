#include "harness/cli/listing.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "harness/cell/escape.h"
#include "harness/cell/spelling.h"
#include "harness/cell/subject_keys.h"
#include "harness/results/json_codec.h"
#include "harness/results/verdict.h"

namespace fp8lab {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string> arm_names(const PlannedCell& cell, const Vocabulary& vocabulary) {
  std::vector<std::string> names;
  if (!cell.skip_reason.empty()) return names;
  for (const Arm arm : arms_of(cell, vocabulary)) names.emplace_back(name(arm));
  return names;
}

std::vector<std::string> expectations(const PlannedCell& cell) {
  std::vector<std::string> texts;
  for (const Expectation& expectation : cell.expect) texts.push_back(text_of(expectation));
  return texts;
}

Json cell_json(const PlannedCell& cell, const Vocabulary& vocabulary, bool details) {
  Json out{
      {"id", cell.config.id}, {"scenario", cell.config.scenario}, {"device", cell.config.device}, {"skip", nullptr}};
  if (!cell.skip_reason.empty()) out["skip"] = cell.skip_reason;
  if (cell.skip_reason.empty() && !cell.inconclusive.empty()) out["inconclusive"] = cell.inconclusive;
  if (!details) return out;
  out["file"] = cell.file;
  out["arms"] = arm_names(cell, vocabulary);
  out["timeout"] = cell.timeout_s ? Json(*cell.timeout_s) : Json(nullptr);
  out["expect"] = expectations(cell);
  out["config"] = Json::parse(cell_to_json(cell.config)).at("config");
  return out;
}

}  // namespace

std::string foreseen(const std::vector<PlannedCell>& cells, bool skips) {
  std::string out;
  const auto add = [&](std::string_view ends, auto reason_of) {
    std::vector<std::pair<std::string, std::size_t>> reasons;  // in the order of the cells
    std::size_t count = 0;
    for (const PlannedCell& cell : cells) {
      const std::string reason = reason_of(cell);
      if (reason.empty()) continue;
      ++count;
      const auto row = std::ranges::find(reasons, reason, &std::pair<std::string, std::size_t>::first);
      if (row == reasons.end())
        reasons.emplace_back(reason, 1);
      else
        ++row->second;
    }
    if (count > 0) out += fmt::format("{} of {} will be {}:\n", count, counted(cells.size(), "cell"), ends);
    for (const auto& [reason, times] : reasons)
      out += fmt::format("  {}: {}\n", counted(times, "cell"), for_terminal(reason));
  };
  if (skips) add("skipped", [](const PlannedCell& cell) { return cell.skip_reason; });
  add("inconclusive", [](const PlannedCell& cell) { return cell.skip_reason.empty() ? cell.inconclusive : ""; });
  return out;
}

std::string listing(const std::vector<PlannedCell>& cells, const Vocabulary& vocabulary,
                    const ListingOptions& options) {
  if (options.json) {
    Json out = Json::array();
    for (const PlannedCell& cell : cells) out.push_back(cell_json(cell, vocabulary, options.details));
    return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  }
  std::string out;
  for (const PlannedCell& cell : cells) {
    out += cell.config.id;
    if (!cell.skip_reason.empty())
      out += fmt::format("  (skipped: {})", for_terminal(cell.skip_reason));
    else if (!cell.inconclusive.empty())
      out += fmt::format("  (inconclusive: {})", for_terminal(cell.inconclusive));
    out += "\n";
    if (!options.details || !cell.skip_reason.empty()) continue;
    out += fmt::format("  arms: {}\n", fmt::join(arm_names(cell, vocabulary), ", "));
    for (const std::string& text : expectations(cell)) out += fmt::format("  expects: {}\n", text);
  }
  return out;
}

std::string code_notes(const std::vector<PlannedCell>& cells) {
  std::set<std::pair<std::string, std::string>> folders;  // by file
  std::set<std::pair<std::string, std::string>> scripts;
  for (const PlannedCell& cell : cells) {
    for (const std::string& version : {cell.config.versions.before, cell.config.versions.after})
      if (is_library(cell.config) && is_folder(version)) folders.emplace(cell.file, version);
    if (is_script(cell.config)) scripts.emplace(cell.file, cell.config.script.path);
  }
  std::string out;
  for (const auto& [file, script] : scripts)
    out += fmt::format(
        "fp8lab: {}: `script` names the program {}, which running its cells runs; run this scenario only if you trust "
        "it like code\n",
        for_terminal(file), for_terminal(script));
  for (const auto& [file, folder] : folders)
    out += fmt::format(
        "fp8lab: {}: `versions` names the folder {}; running its cells runs the Python code there, so run this "
        "scenario only if you trust it like code\n",
        for_terminal(file), for_terminal(folder));
  return out;
}

}  // namespace fp8lab
