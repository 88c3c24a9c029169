#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "harness/cell/escape.h"
#include "harness/cell/spelling.h"
#include "harness/cell/subject_keys.h"
#include "harness/cli/listing.h"
#include "harness/cli/program.h"
#include "harness/cli/selection.h"
#include "harness/results/verdict.h"
#include "harness/subjects/install.h"
#include "harness/subjects/subjects.h"

namespace fp8lab {
namespace {

using Json = nlohmann::ordered_json;

void print(const std::string& text) { std::fputs(text.c_str(), stdout); }
void print(const Json& json) { print(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"); }

struct ShownBy {
  std::vector<std::string> names, files;  ///< names and files of scenarios, in equal order
};

/// The scenarios by fix.
std::map<std::string, ShownBy> scenarios_by_fix(const std::vector<PlannedCell>& cells) {
  std::map<std::string, ShownBy> out;
  for (const PlannedCell& cell : cells) {
    ShownBy& shown = out[cell.config.fix];
    if (std::ranges::find(shown.names, cell.config.scenario) != shown.names.end()) continue;
    shown.names.push_back(cell.config.scenario);
    shown.files.push_back(cell.file);
  }
  return out;
}

/// "a, b", or with files a line for each: `run` takes files, and names only as a filter.
std::string scenarios_text(const ShownBy& shown, bool with_files) {
  if (shown.names.empty()) return "none";
  if (!with_files) return fmt::format("{}", fmt::join(shown.names, ", "));
  std::string out;
  for (std::size_t i = 0; i < shown.names.size(); ++i)
    out += fmt::format("{}{}: {}", i == 0 ? "" : "\n             ", shown.names[i], for_terminal(shown.files[i]));
  return out;
}

Json error_json(const ScenarioError& error) {
  return {{"file", error.file()},
          {"line", error.place().line},
          {"column", error.place().column},
          {"message", error.problem()}};
}

Json json_of(const SubjectState& state) {
  Json libraries = Json::object();
  for (const auto& [name, version] : state.libraries) libraries[name] = version;
  return {{"subject", state.subject},
          {"python", state.python},
          {"available", state.available},
          {"reason", state.available ? Json(nullptr) : Json(state.reason)},
          {"version", state.version.empty() ? Json(nullptr) : Json(state.version)},
          {"libraries", libraries}};
}

std::string line_of(const SubjectState& state) {
  if (!state.available) return fmt::format("{:<20} unavailable: {}\n", state.subject, for_terminal(state.reason));
  std::string with;
  for (const auto& [name, version] : state.libraries)
    with += fmt::format("{}{} {}", with.empty() ? "; with " : ", ", name, version);
  return fmt::format("{:<20} {}{} ({})\n", state.subject, for_terminal(state.version), for_terminal(with),
                     for_terminal(state.python));
}

}  // namespace

int validate_command(const std::vector<std::string>& paths, bool json, const Program& program) {
  const std::vector<std::filesystem::path> files = find_scenario_files(paths);
  LoadedScenarios loaded = load_scenarios(files, program.vocabulary());
  // What this machine lacks is no matter of the file.
  for (PlannedCell& cell : loaded.cells)
    if (cell.skipped_here) cell.skip_reason.clear();
  Subjects(program.worker_directory).skip_unable(loaded.cells, program.vocabulary());
  const auto text_of = [](const Remark& remark) {
    return fmt::format("{}:{}:{}: {}", for_terminal(remark.file), remark.place.line, remark.place.column, remark.text);
  };
  if (json) {
    Json out{{"files", files.size()}, {"cells", loaded.cells.size()}, {"errors", Json::array()}};
    for (const ScenarioError& error : loaded.errors) out["errors"].push_back(error_json(error));
    out["remarks"] = Json::array();
    for (const Remark& remark : loaded.remarks)
      out["remarks"].push_back({{"file", remark.file},
                                {"line", remark.place.line},
                                {"column", remark.place.column},
                                {"message", remark.text}});
    out["skipped"] = Json::array();
    out["inconclusive"] = Json::array();
    for (const PlannedCell& cell : loaded.cells)
      if (!cell.skip_reason.empty())
        out["skipped"].push_back({{"id", cell.config.id}, {"reason", cell.skip_reason}});
      else if (!cell.inconclusive.empty())
        out["inconclusive"].push_back({{"id", cell.config.id}, {"reason", cell.inconclusive}});
    print(out);
  } else {
    for (const ScenarioError& error : loaded.errors) report_error(error.what());
    if (files.size() == 1)
      for (const Remark& remark : loaded.remarks) print(text_of(remark) + "\n");
    if (loaded.errors.empty()) {
      print(fmt::format("{}, {}: all valid\n{}", counted(files.size(), "file"), counted(loaded.cells.size(), "cell"),
                        foreseen(loaded.cells, true)));
      if (files.size() > 1 && !loaded.remarks.empty())
        print(fmt::format("{} are read by some cells of their file only; `fp8lab validate FILE` lists them\n",
                          counted(loaded.remarks.size(), "key")));
    }
  }
  std::fflush(stdout);  // the notes come last also if both streams are one file
  std::fputs(code_notes(loaded.cells).c_str(), stderr);
  return exit_code({.verdicts = {Verdict::kPass}, .bad_usage = !loaded.errors.empty()});
}

int fixes_command(const std::string& name, std::string directory, bool json, const Program& program) {
  const std::vector<FixTerm>& fixes = program.vocabulary().fixes;
  if (!name.empty() && std::ranges::find(fixes, name, &FixTerm::name) == fixes.end()) {
    std::vector<std::string> known;
    for (const FixTerm& fix : fixes) known.push_back(fix.name);
    fail(fmt::format("fixes: unknown fix `{}`.{}", quotable(name), suggestion(name, known)));
  }
  if (directory.empty()) directory = bundled_directory(program);
  LoadedScenarios loaded;
  if (!directory.empty()) loaded = load_scenarios(find_scenario_files({directory}), program.vocabulary());
  for (const ScenarioError& error : loaded.errors) report_error(error.what());
  std::map<std::string, ShownBy> scenarios = scenarios_by_fix(loaded.cells);
  Json out = Json::array();
  for (const FixTerm& fix : fixes) {
    if (!name.empty() && fix.name != name) continue;
    const ShownBy& shown = scenarios[fix.name];
    if (json) {
      out.push_back({{"name", fix.name},
                     {"upstream", fix.upstream},
                     {"symptom", fix.symptom},
                     {"decision", fix.decision},
                     {"commit", fix.commit},
                     {"release", fix.release},
                     {"counterfactual", fix.counterfactual},
                     {"scenarios", shown.names},
                     {"files", shown.files}});
      continue;
    }
    const std::string commit = fix.commit.empty() ? "" : fmt::format(", commit {}", fix.commit);
    const std::string made =
        fix.release.empty() ? ", in no release yet" : fmt::format("{}, release {}", commit, fix.release);
    const char* const never_released = fix.counterfactual ? "; counterfactual: no release was without it" : "";
    print(fmt::format("{}\n  upstream:  {}{}{}\n  symptom:   {}\n  fix:       {}\n  scenarios: {}\n", fix.name,
                      fmt::join(fix.upstream, ", "), made, never_released, fix.symptom, fix.decision,
                      scenarios_text(shown, !name.empty())));
  }
  if (json) print(out);
  return exit_code({.verdicts = {Verdict::kPass}, .bad_usage = !loaded.errors.empty()});
}

int recipes_command(bool json, const Program& program) {
  Json out = Json::array();
  for (const Term& recipe : program.vocabulary().recipes) {
    if (json)
      out.push_back({{"name", recipe.name}, {"title", recipe.title}});
    else
      print(fmt::format("{:<10} {}\n", recipe.name, recipe.title));
  }
  if (json) print(out);
  return 0;
}

int devices_command(bool json, const Program& program) {
  Json out = Json::array();
  for (const Term& device : program.vocabulary().devices) {
    const std::string reason = device.why_unavailable();
    if (json) {
      out.push_back({{"name", device.name},
                     {"title", device.title},
                     {"available", reason.empty()},
                     {"unavailable_reason", reason.empty() ? Json(nullptr) : Json(reason)},
                     {"details", device.describe()}});
      continue;
    }
    print(fmt::format("{:<6} {}{}\n", device.name, device.title,
                      reason.empty() ? "" : fmt::format(" (unavailable: {})", reason)));
    std::string line = "       ";
    for (const char c : device.describe() + "\n") {
      line += c;
      if (c != '\n') continue;
      if (line.find_first_not_of(" \n") != std::string::npos) print(printable(line, "\n"));
      line = "       ";
    }
  }
  if (json) print(out);
  return 0;
}

int env_command(bool json, const Program& program) {
  const std::string document = environment_json(program.build, program.vocabulary().devices);
  if (json) {
    print(document + "\n");
    return 0;
  }
  print(environment_line(program.build) + "\n\n");
  const Json flat = Json::parse(document).flatten();
  for (const auto& [path, value] : flat.items()) {
    std::string key = path.substr(1);
    std::replace(key.begin(), key.end(), '/', '.');
    print(fmt::format("{:<28} {}\n", printable(key),
                      value.is_string() ? printable(value.get<std::string>())
                      : value.is_null() ? "-"
                                        : value.dump()));
  }
  return 0;
}

int subjects_command(const std::string& release, bool json, const Program& program) {
  const Subjects subjects(program.worker_directory);
  if (!release.empty()) {
    for (const SubjectRow& row : kSubjects)
      if (row.installable && release.starts_with(fmt::format("{}==", row.name)))
        std::fputs(fmt::format("fp8lab: installing {} into {}: {}\n", for_terminal(release),
                               for_terminal(subjects.folder()), row.cost)
                       .c_str(),
                   stderr);
    print(fmt::format("{}\n", install_release(release, subjects.folder())));
    return 0;
  }
  Json out = Json::array();
  for (const SubjectState& state : subjects.states()) {
    if (json)
      out.push_back(json_of(state));
    else
      print(line_of(state));
  }
  if (json)
    print(out);
  else
    print(fmt::format("Releases: virtual environments SUBJECT-RELEASE below {} (FP8LAB_SUBJECTS)\n",
                      for_terminal(subjects.folder())));
  return 0;
}

}  // namespace fp8lab
