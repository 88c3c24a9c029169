#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "fixes/fixes.h"
#include "harness/cell/metrics.h"
#include "harness/cell/vocabulary.h"
#include "harness/scenario/scenario.h"
#include "harness/temporary_directory.h"
#include "support/paths.h"

namespace fp8lab {
namespace {

using Json = nlohmann::json;

struct Outcome {
  int code = -1;
  Json cells;
};

/// Runs the program; a copy of the results replaces `kept`, if that names a file.
Outcome run(const std::string& program, const std::string& arguments, const std::string& kept = "") {
  const sample::TemporaryDirectory directory;
  const std::string out = (directory / "out").string();
  std::error_code none;  // that the copy is missing is what its readers report
  if (!kept.empty()) std::filesystem::remove(kept, none);
  const std::string command =
      program + " run " + arguments + " -o " + out + " > " + (directory / "log").string() + " 2>&1";
  const int status = std::system(command.c_str());
  Outcome outcome;
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  if (!kept.empty()) std::filesystem::copy_file(out + "/results.json", kept, none);
  std::ifstream file(out + "/results.json");
  if (file) outcome.cells = Json::parse(file)["cells"];
  return outcome;
}

const Outcome& full_run() {
  static const Outcome kOutcome =
      run(paths::kProgram, std::string(paths::kScenarios) + " -d cpu,meta", paths::kBundledResults);
  return kOutcome;
}

TEST(BundledScenarios, AllConfirmOrPass) {
  ASSERT_EQ(full_run().code, 0);
  ASSERT_GT(full_run().cells.size(), 100u);
  for (const Json& cell : full_run().cells) {
    const bool pair = cell["arms"].contains("before");
    if (cell["config"]["subject"] != "own" && cell["verdict"] == "skipped") {  // the library is not installed here
      EXPECT_TRUE(cell["reason"].is_string()) << cell["id"];
      continue;
    }
    if (pair && cell["verdict"] == "unaffected") continue;
    EXPECT_EQ(cell["verdict"], pair ? "confirmed" : "pass") << cell["id"];
  }
}

/// True if an exact figure that both arms have differs between them, if their bits differ, or if they end differently.
bool arms_differ(const Json& cell) {
  const Json &before = cell["arms"]["before"], &after = cell["arms"]["after"];
  if (before["status"] != after["status"]) return true;
  // The metric belongs only to `before`, which it compares with `after`.
  if (before["metrics"].contains("parity.bitwise_equal") && before["metrics"]["parity.bitwise_equal"]["value"] == 0)
    return true;
  for (const auto& [name, figure] : after["metrics"].items()) {
    const Metric* metric = find_metric(name);
    if (metric == nullptr || !metric->exact || !before["metrics"].contains(name)) continue;
    const Json& other = before["metrics"][name]["value"];
    if (!other.is_null() && !figure["value"].is_null() && other != figure["value"]) return true;
  }
  return false;
}

TEST(BundledScenarios, EveryFixHasACellThatItChangesAndOneThatItDoesNot) {
  for (const Fix& fix : fixes()) {
    int matters = 0, vanishes = 0;
    for (const Json& cell : full_run().cells) {
      if (cell["fix"] != std::string(fix.name)) continue;
      matters += cell["verdict"] == "confirmed";
      vanishes += !arms_differ(cell);
      EXPECT_TRUE(cell["verdict"] != "confirmed" || arms_differ(cell)) << cell["id"];
    }
    EXPECT_GT(matters, 0) << fix.name;
    EXPECT_GT(vanishes, 0) << fix.name << " has no negative control";
  }
}

// Without a fix of saved tensors, what stays after backward belongs to contexts that are named by what they saved.
TEST(BundledScenarios, BytesThatStayNameTheirHolder) {
  const std::map<std::string, std::set<std::string>> saved = {
      {"release_attention_tensors", {".attention: k, q, v", ".attention: kv, q"}},
      {"release_fuser_tensors",
       {": layers[0].fc1.weight, layers[0].fc2.weight", ".mlp: layers[0].mlp.fc1.weight, layers[0].mlp.fc2.weight"}},
      {"release_grouped_tensors", {": weight", ": weight, x", ": x"}},
      {"release_module_tensors", {": weight", ": weight1, weight2"}},
      {"empty_module_shells", {": weight1, weight2"}}};
  const std::string first_layer = "context of layers[0]";
  std::map<std::string, std::set<std::string>> seen;
  for (const Json& cell : full_run().cells) {
    if (cell["verdict"] != "confirmed" || !cell["fix"].is_string() || !saved.contains(cell["fix"])) continue;
    EXPECT_TRUE(cell["arms"]["after"]["retained_by_holder"].empty()) << cell["id"];
    for (const Json& entry : cell["arms"]["before"]["retained_by_holder"]) {
      const std::string holder = entry["holder"];
      EXPECT_TRUE(holder.starts_with("context of layers[")) << cell["id"] << ": " << holder;
      if (holder.starts_with(first_layer)) seen[cell["fix"]].insert(holder.substr(first_layer.size()));
    }
  }
  EXPECT_EQ(seen, saved);
}

TEST(BundledScenarios, CpuAndMetaRunTheSameSequenceOfBytesAndHolders) {
  std::map<std::string, std::string> hashes;  // by arm and cell, with the device removed from the cell's id
  int compared = 0;
  for (const Json& cell : full_run().cells) {
    std::string id = cell["id"];
    const auto device = id.find("device=");
    if (device == std::string::npos) continue;
    id.erase(device, id.find(',', device) - device);
    for (const auto& [arm, result] : cell["arms"].items()) {
      if (!result["sequence_hash"].is_string()) continue;  // memory was not measured, or the arm ended early
      const std::string hash = result["sequence_hash"];
      ASSERT_EQ(hash.size(), 16u) << id;
      const auto [known, fresh] = hashes.emplace(id + " " + arm, hash);
      compared += !fresh;
      EXPECT_EQ(known->second, hash) << id << " " << arm;
    }
  }
  EXPECT_GT(compared, 50);
}

// The same scenarios fail in a tree without the fixes, so `confirmed` depends on them.
TEST(BundledScenarios, MissingFixesAreNotFixed) {
  for (const char* file : {"attention-saved-tensors", "attention-ring", "fuser-saved-tensors", "grouped-saved-tensors",
                           "module-saved-tensors"}) {
    const Outcome outcome = run(paths::kUnfixedProgram, std::string(paths::kScenarios) + "/saved_tensors/" + file +
                                                            ".yaml -d meta -f '^[a-z-]+-small/'");
    EXPECT_EQ(outcome.code, 1) << file;
    int not_fixed = 0;
    for (const Json& cell : outcome.cells) {
      // Under current scaling attention saves nothing that has a shell.
      const bool attention = std::string_view(file).starts_with("attention");
      const bool control = cell["axes"]["recipe"] == "bf16" || (attention && cell["axes"]["recipe"] == "current");
      not_fixed += cell["verdict"] == "not_fixed";
      EXPECT_EQ(cell["verdict"], control ? "unaffected" : "not_fixed") << cell["id"];
    }
    EXPECT_GT(not_fixed, 0) << file;
  }
}

}  // namespace
}  // namespace fp8lab
