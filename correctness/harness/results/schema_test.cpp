#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "harness/cli/schema/schemas.h"
#include "harness/results/environment.h"
#include "harness/results/json_codec.h"
#include "harness/results/json_schema.h"
#include "harness/results/record_list.h"
#include "harness/results/results.h"
#include "harness/scenario/sample.h"
#include "harness/temporary_directory.h"

namespace fp8lab {
namespace {

using Json = nlohmann::json;

std::vector<std::string> violations(const std::string& yaml) {
  return sample::yaml_schema_violations(scenario_schema(bundled_vocabulary()), yaml);
}

/// Members of objects anywhere in `schema` that no description explains, neither their own nor their definition's.
void find_unexplained(const Json& root, const Json& schema, const std::string& path, std::vector<std::string>& found) {
  if (const auto properties = schema.find("properties"); properties != schema.end() && properties->is_object())
    for (const auto& [name, member] : properties->items()) {
      const Json* explained = member.is_object() ? &member : nullptr;
      if (explained != nullptr && member.contains("items") && !member.contains("description"))
        explained = &member.at("items");  // an axis of a matrix: a list of a key's values
      if (explained != nullptr && explained->contains("$ref") && !explained->contains("description"))
        explained = &root.at(Json::json_pointer(explained->at("$ref").get<std::string>().substr(1)));
      if (explained != nullptr && !explained->contains("description") && member.contains("type"))
        found.push_back(path + "/" + name);
    }
  if (!schema.is_structured()) return;
  for (const auto& [name, inner] : schema.items()) find_unexplained(root, inner, path + "/" + name, found);
}

TEST(Schemas, EveryMemberHasADescription) {
  const std::pair<std::string, const char*> documents[] = {{scenario_schema(bundled_vocabulary()), "title"},
                                                           {results_schema(), "complete"},
                                                           {comparison_schema(), "complete"}};
  for (const auto& [schema, member_of_root] : documents) {
    const Json root = Json::parse(schema);
    std::vector<std::string> found;
    find_unexplained(root, root, "", found);
    for (const std::string& member : found) ADD_FAILURE() << member << " has no description";
    Json silent = root;
    silent["properties"][member_of_root].erase("description");
    find_unexplained(silent, silent, "", found);
    EXPECT_EQ(found, std::vector{std::string("/") + member_of_root}) << "a missing description must be found";
  }
}

TEST(ScenarioSchema, AcceptsFilesThatTheProgramAccepts) {
  const std::string all_keys = sample::kFixScenario + R"(
x-anchors: &a {anything: [goes]}
matrix:
  recipe: [delayed, bf16]
  model.seq: [1048]
  include: [{checkpoint: full}]
exclude: [{recipe: bf16}]
expect:
  - {metric: memory.retained_bytes, arm: before, equals: predicted, when: {recipe: [delayed]}}
  - {metric: memory.peak_bytes, arm: bf16, within: [-1, 2.5]}
  - {arm: before, status: crashed, signal: SIGSEGV}
claims:
  - {source: s, words: w, metric: memory.peak_bytes, arm: after, value: 1070, unit: MiB}
skip_if:
  - {when: {recipe: bf16}, reason: r}
ranks: 4
mesh: 2x2
timeout: 0.5
)";
  for (const std::string& violation : violations(all_keys)) ADD_FAILURE() << violation;
}

TEST(ScenarioSchema, RefusesFilesThatTheProgramRefuses) {
  const std::string tails[] = {"expects: [a]\n",
                               "matrix: {}\n",
                               "matrix: {recipe: bf16}\n",
                               "matrix: {colour: [red]}\n",
                               "timeout: 0\n",
                               "expect: [{metric: bad, arm: after, equals: 0}]\n",
                               "expect: [{metric: memory.x, arm: then}]\n",
                               "expect: [{metric: memory.x, equals: prediction}]\n",
                               "claims: [{words: w}]\n",
                               "skip_if: [{when: {a: b}}]\n",
                               "upstream2: x\n",
                               "ranks: 0\n",
                               "ranks: two\n",
                               "mesh: 2x\n",
                               "mesh: 0x2\n",
                               "mesh: 0\n",
                               "mesh: [2, 2]\n",
                               "sharding: fsdp1\n",
                               "device: 3\n"};
  for (const std::string& tail : tails) EXPECT_FALSE(violations(sample::kFixScenario + tail).empty()) << tail;
}

TEST(ResultsSchema, AcceptsResultsThatARunWrites) {
  CellRecord good;
  good.config.id = good.config.scenario = "s";
  good.hash = "0011223344556677";
  good.arms[Arm::kBefore].metrics["memory.peak_bytes"] = {std::nullopt, 3, "B", "because"};
  good.arms[Arm::kBefore].retained_by_holder = {{"h", 1}};
  good.arms[Arm::kBefore].notes = {"a shard stays in high precision"};
  good.arms[Arm::kBefore].losses = {2.5, std::nan("")};
  good.arms[Arm::kBefore].samples["host.pre_forward_ns"] = {700};
  good.arms[Arm::kBefore].noise = {{"output", "output", std::nullopt, "no noise"}, {"w", "weight", 28.25, ""}};
  good.arms[Arm::kBefore].casts = {
      {.tensor = "w", .steps = {3}, .sqnr_db = {std::nullopt}, .clip_fraction = {0.5}, .underflow_fraction = {0}}};
  good.arms[Arm::kBefore].values_hash = "0011223344556677";
  good.gates = {{"t", Side::kDifference, "", std::nullopt, 1.5, std::nullopt, "d"}};
  good.claims = {{{}, 1, 2}};
  CellRecord crashed = good;
  crashed.verdict = Verdict::kCrashed;
  crashed.reason = "r";
  crashed.arms[Arm::kAfter].status = "crashed";
  crashed.arms[Arm::kAfter].signal = "SIGSEGV";
  crashed.arms[Arm::kAfter].output_tail = "tail";
  const std::string document = results_json({good, crashed}, environment_json({}, {}), false);
  for (const std::string& violation : sample::schema_violations(results_schema(), document)) ADD_FAILURE() << violation;
  const auto breaks = [&](const auto& change) {
    Json broken = Json::parse(document);
    change(broken);
    return !sample::schema_violations(results_schema(), broken.dump()).empty();
  };
  EXPECT_TRUE(breaks([](Json& results) { results["cells"][0].erase("hash"); }));
  EXPECT_TRUE(breaks([](Json& results) { results["cells"][0]["id"] = "/etc"; }));
  EXPECT_TRUE(breaks([](Json& results) { results["cells"][1]["verdict"] = "fine"; }));
  EXPECT_TRUE(breaks([](Json& results) { results["cells"][1]["config"]["device"] = Json::array(); }));
  EXPECT_TRUE(breaks([](Json& results) { results["environment"]["program"]["git_commit"] = 5; }));
  EXPECT_TRUE(breaks([](Json& results) { results["extra"] = 1; }));
}

}  // namespace
}  // namespace fp8lab
