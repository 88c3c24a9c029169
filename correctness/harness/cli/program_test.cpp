#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "harness/cli/selection.h"
#include "harness/results/document_file.h"
#include "harness/run/fake_process.h"

namespace fp8lab {
namespace {

using Json = nlohmann::json;
using sample::contains;
using sample::Ended;
using sample::run;
using sample::Scenarios;
using sample::TemporaryDirectory;

TEST(Program, ConfirmedCellsExitZeroAndLeaveEveryDocument) {
  const Scenarios scenarios({"one", "two"});
  const Ended ended = run(scenarios.run_arguments());
  EXPECT_EQ(ended.code, 0) << ended.errors;
  EXPECT_EQ(ended.errors, "");
  EXPECT_TRUE(contains(ended.output, "/2] confirmed      one  ")) << ended.output;
  EXPECT_TRUE(contains(ended.output, "2 confirmed\n")) << ended.output;
  EXPECT_TRUE(contains(ended.output, "results: " + scenarios.out() + "/results.json\n"));
  EXPECT_TRUE(contains(ended.output, "exit 0: all 2 cells came out as their scenarios expect\n")) << ended.output;
  EXPECT_TRUE(contains(ended.output, "retained after backward -> 0  0.")) << "a confirmed line has its figure";
  const Json findings = Json::parse(scenarios.results())["findings"];
  ASSERT_EQ(findings.size(), 1u) << findings;
  EXPECT_EQ(findings[0]["fix"], "release_attention_tensors");
  EXPECT_TRUE(contains(ended.output, findings[0]["text"].get<std::string>() + "\n")) << ended.output;
  EXPECT_FALSE(contains(ended.output, "\033")) << "colours belong on terminals";
  EXPECT_EQ(scenarios.violations(), std::vector<std::string>{});
  EXPECT_EQ(Json::parse(scenarios.results())["complete"], true);
  const Json environment = Json::parse(scenarios.read("environment.json"));
  EXPECT_EQ(environment, Json::parse(scenarios.results())["environment"]);
  EXPECT_GE(environment["program"]["build_id"].get<std::string>().size(), 16u) << "its checkout was modified";
  EXPECT_TRUE(contains(scenarios.read("summary.md"), "# fp8lab: 2 confirmed"));
  EXPECT_TRUE(contains(scenarios.read("junit.xml"), "<testcase classname=\"one\""));
  EXPECT_EQ(read_document(scenarios.file("out/timelines/one.before.json.gz")), "{\"events\": []}");
}

TEST(Program, ScenarioThatShowsNoFixIsInconclusiveUnlessCellsWereLeftOut) {
  Scenarios scenarios({});
  scenarios.add("before_unharmed", "device: meta\nmatrix: {seed: [1, 2]}\n");
  const Ended ended = run(scenarios.run_arguments());
  EXPECT_EQ(ended.code, 3) << ended.output;
  EXPECT_TRUE(contains(ended.output, "2 unaffected\n")) << ended.output;
  EXPECT_TRUE(contains(ended.output, "before_unharmed: no cell shows what release_attention_tensors fixes: "))
      << ended.output;
  const std::string line = Json::parse(scenarios.results())["unseen_fixes"].at(0);
  EXPECT_TRUE(line.starts_with("before_unharmed: no cell shows what release_attention_tensors fixes: ")) << line;
  EXPECT_EQ(scenarios.violations(), std::vector<std::string>{});
  EXPECT_TRUE(contains(scenarios.read("summary.md"), "**before_unharmed: no cell shows what")) << "summary.md";
  EXPECT_TRUE(contains(scenarios.read("junit.xml"), "tests=\"3\" failures=\"1\"")) << scenarios.read("junit.xml");
  EXPECT_TRUE(contains(scenarios.read("junit.xml"), "type=\"unseen_fix\">before_unharmed: no cell shows"));
  EXPECT_EQ(run(scenarios.run_arguments({"-f", "seed=1"})).code, 0);
  EXPECT_TRUE(Json::parse(scenarios.results())["unseen_fixes"].empty());
  scenarios.add("before_harmed", "device: meta\nmatrix: {seed: [1, 2]}\n");
  EXPECT_EQ(run(scenarios.run_arguments({"-f", "before_harmed"})).code, 0);
}

TEST(Program, IsolatedArmsRunInProcessesOfTheirOwn) {
  for (const bool isolate : {false, true}) {
    Scenarios scenarios({});
    scenarios.add("after_pid", "device: meta\nmatrix: {seed: [1, 2, 3]}\n");
    std::vector<std::string> arguments{"-j", "1"};
    if (isolate) arguments.emplace_back("--isolate");
    EXPECT_EQ(run(scenarios.run_arguments(arguments)).code, 0);
    std::set<Json> processes;
    const Json results = Json::parse(scenarios.results());
    for (const Json& cell : results["cells"]) processes.insert(cell["arms"]["after"]["retained_by_holder"][0]["bytes"]);
    EXPECT_EQ(processes.size(), isolate ? 3u : 1u);
  }
}

struct ExitCase {
  std::vector<std::string> scenarios;
  int code;
  std::string verdict;
};

TEST(Program, ExitStatusTellsTheOutcome) {
  const ExitCase cases[] = {
      {{"after_broken"}, 1, "not_fixed"},
      {{"after_worse"}, 1, "regressed"},
      {{"before_nan"}, 1, "not_reproduced"},
      {{"before_absent"}, 3, "inconclusive"},
      {{"before_segv"}, 4, "crashed"},
      {{"after_oom"}, 4, "crashed"},
      {{"before_hang"}, 124, "timeout"},
      {{"after_broken", "before_absent", "good"}, 1, "not_fixed"},
      {{"after_broken", "before_segv"}, 4, "crashed"},
  };
  for (const ExitCase& c : cases) {
    const Scenarios scenarios(c.scenarios);
    const Ended ended = run(scenarios.run_arguments({"--timeout", c.verdict == "timeout" ? "1" : "60"}));
    EXPECT_EQ(ended.code, c.code) << ended.output;
    EXPECT_TRUE(contains(ended.output, c.verdict)) << ended.output;
    EXPECT_TRUE(contains(ended.output, "/" + c.scenarios[0] + ".yaml:")) << "the place of the gate\n" << ended.output;
    EXPECT_TRUE(contains(ended.output, "exit " + std::to_string(c.code) + ": ")) << ended.output;
    EXPECT_EQ(scenarios.violations(), std::vector<std::string>{});
  }
}

TEST(Program, NothingToRunExitsFive) {
  Scenarios scenarios({});
  scenarios.add("carded", "device: cuda\n");
  const Ended skipped = run(scenarios.run_arguments());
  EXPECT_EQ(skipped.code, 5);
  EXPECT_TRUE(contains(skipped.output, "skipped        carded  (no CUDA device was found)")) << skipped.output;
  const Ended filtered = run(scenarios.run_arguments({"-f", "nothing"}));
  EXPECT_EQ(filtered.code, 5);
  EXPECT_TRUE(contains(filtered.errors, "no cell matches"));
  for (const auto& [filters, found] : {std::pair{std::vector<std::string>{"-f", "ard", "--filter", "-xyz"}, true},
                                       {{"-f", "ard", "-f", "-ed$"}, false}}) {
    std::vector<std::string> words{"--list"};
    words.insert(words.end(), filters.begin(), filters.end());
    EXPECT_EQ(contains(run(scenarios.run_arguments(words)).output, "carded"), found) << filters.back();
  }
}

// Deep enough to overflow the stack of a recursive parser; long enough for a search that recurses, or goes back, at
// each character of an id.
TEST(Program, FilterThatARecursiveEngineCannotTake_EndsAtOnce) {
  Scenarios scenarios({});
  scenarios.add("carded", "device: cuda\n");
  const std::string deep = std::string(60000, '(') + std::string(60000, ')');
  EXPECT_EQ(run(scenarios.run_arguments({"-f", deep})).code, 5) << "nothing matches";
  const Ended refused = run(scenarios.run_arguments({"-f", "(" + std::string(50'000, 'a')}));
  EXPECT_EQ(refused.code, 2);
  EXPECT_TRUE(contains(refused.errors, "--filter: `(aaa")) << refused.errors;
  EXPECT_TRUE(contains(refused.errors, "is not a regular expression of RE2's syntax: missing )")) << refused.errors;
  EXPECT_LT(refused.errors.size(), 500u);
  const auto matches = id_matcher("--filter", ".*x");
  EXPECT_FALSE(matches(std::string(1'000'000, 'a')));
  EXPECT_TRUE(matches(std::string(1'000'000, 'a') + "x"));
  EXPECT_FALSE(id_matcher("--filter", "(a*)*(a*)*$b")(std::string(100'000, 'a')));
}

TEST(Program, EveryBadFileIsReportedBeforeAnythingRuns) {
  const Scenarios scenarios({"good"});
  sample::write(scenarios.file("bad1.yaml"), "version: 3\n");
  sample::write(scenarios.file("deep/bad2.yml"), "version: 1\nnmae: x\n");
  sample::write(scenarios.file("deep/twin.yaml"), sample::read(scenarios.file("good.yaml")));
  sample::write(scenarios.file("ignored.txt"), "not a scenario");
  const Ended ended = run(scenarios.run_arguments());
  EXPECT_EQ(ended.code, 2);
  EXPECT_EQ(ended.output, "");
  EXPECT_TRUE(contains(ended.errors, "bad1.yaml:1:10: `version` must be 1")) << ended.errors;
  EXPECT_TRUE(contains(ended.errors, "bad2.yml:2:1: `nmae`: no such key. Did you mean `name`?")) << ended.errors;
  EXPECT_TRUE(contains(
      ended.errors, "good.yaml:2:1: `name`: good already names a scenario, in " + scenarios.path() + "/deep/twin.yaml"))
      << ended.errors;
  EXPECT_FALSE(contains(ended.errors, "ignored"));
  EXPECT_FALSE(std::filesystem::exists(scenarios.out()));

  const Ended validated = run({"validate", scenarios.path(), "--json"});
  EXPECT_EQ(validated.code, 2);
  const Json report = Json::parse(validated.output);
  EXPECT_EQ(report["files"], 4);
  ASSERT_EQ(report["errors"].size(), 5u) << "bad2.yml lacks `title` and `measure` too: " << report["errors"].dump();
  EXPECT_EQ(report["errors"][0]["line"], 1);
}

TEST(Program, BadUsageExitsTwoWithOneError) {
  const Scenarios scenarios({"good"});
  const std::vector<std::vector<std::string>> uses{
      {},
      {"walk"},
      {"run"},
      {"run", "/nonexistent"},
      {"run", scenarios.path(), "--colour"},
      {"run", scenarios.path(), "--tier", "smoke"},
      {"run", scenarios.path(), "--tier", "smoke", "--tiers", "ci/tiers.toml"},
      {"run", scenarios.path(), "-j", "0"},
      {"run", scenarios.path(), "-j", "two"},
      {"run", scenarios.path(), "--timeout", "-3"},
      {"run", scenarios.path(), "-d", "mate"},
      {"run", scenarios.path(), "-f", "("},
      {"run", scenarios.path(), "-o", scenarios.path() + "/good.yaml"},
      {"run", scenarios.path(), "-o", "/proc/nowhere"},
      {"validate"},
      {"fixes", "--scenarios", "/nonexistent"},
  };
  for (const auto& use : uses) {
    const Ended ended = run(use);
    std::string shown;
    for (const std::string& word : use) shown += word + " ";
    EXPECT_EQ(ended.code, 2) << shown << ended.errors;
    EXPECT_TRUE(ended.errors.starts_with("fp8lab: error: ")) << shown << ended.errors;
  }
  EXPECT_TRUE(contains(run({"run", scenarios.path(), "-d", "mate"}).errors, "Did you mean `meta`?"));
}

TEST(Program, HelpAndVersionExitZero) {
  EXPECT_EQ(run({"--version"}).output, "fp8lab 0.0.0-fake\n");
  const Ended help = run({"run", "--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_TRUE(contains(help.output, "Examples:")) << help.output;
  EXPECT_TRUE(contains(help.output, "Exit codes: 0 every cell that ran")) << help.output;
  EXPECT_EQ(run({"--help"}).code, 0);
}

TEST(Program, FiltersCellsByDeviceAndByExpression) {
  Scenarios scenarios({});
  scenarios.add("alpha", "matrix: {device: [cpu, meta, cuda], checkpoint: [none, full]}\n");
  const auto ids = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"run", scenarios.path(), "--list"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments).output;
  };
  EXPECT_EQ(ids({"-d", "cpu"}), "alpha/device=cpu,checkpoint=none\nalpha/device=cpu,checkpoint=full\n");
  EXPECT_EQ(ids({"-d", "meta,cpu", "-f", "full"}),
            "alpha/device=cpu,checkpoint=full\nalpha/device=meta,checkpoint=full\n");
  EXPECT_EQ(ids({"-d", "meta", "-d", "cpu", "-f", "none$"}),
            "alpha/device=cpu,checkpoint=none\nalpha/device=meta,checkpoint=none\n");
  EXPECT_EQ(ids({"-f", "-cpu|meta"}),
            "alpha/device=cuda,checkpoint=none  (skipped: no CUDA device was found)\n"
            "alpha/device=cuda,checkpoint=full  (skipped: no CUDA device was found)\n");
  EXPECT_EQ(Json::parse(ids({"--json"})).size(), 6u);
  EXPECT_EQ(run({"run", "--list", "-d", "cpu", scenarios.path()}).output, ids({"-d", "cpu"}))
      << "a path after -d is a path";
}

TEST(Program, DryRunShowsEveryCellAndRunsNothing) {
  const Scenarios scenarios({"before_hang"});
  const Ended text = run(scenarios.run_arguments({"--dry-run"}));
  EXPECT_EQ(text.code, 0);
  EXPECT_TRUE(contains(text.output, "  arms: before, after, bf16\n")) << text.output;
  EXPECT_TRUE(contains(text.output, "  expects: before memory.retained_bytes equals predicted\n"));
  EXPECT_FALSE(std::filesystem::exists(scenarios.out()));
  const Json json = Json::parse(run(scenarios.run_arguments({"--dry-run", "--json"})).output);
  EXPECT_EQ(json[0]["config"]["model.hidden"], 2048);
}

TEST(Program, JsonGoesToStandardOutputAndProgressToStandardError) {
  const Scenarios scenarios({"one"});
  const Ended ended = run(scenarios.run_arguments({"--json"}));
  EXPECT_EQ(Json::parse(ended.output), Json::parse(scenarios.results()));
  EXPECT_TRUE(contains(ended.errors, "[1/1] confirmed"));
}

TEST(Program, ListsItsTables) {
  const Scenarios scenarios({"one", "two"});
  const Json fixes = Json::parse(run({"fixes", "--json", "--scenarios", scenarios.path()}).output);
  ASSERT_EQ(fixes.size(), 2u);
  EXPECT_EQ(fixes[0], (Json{{"name", "release_attention_tensors"},
                            {"upstream", {"TransformerEngine#1935"}},
                            {"symptom", "memory stays"},
                            {"decision", "attention_shells"},
                            {"commit", ""},
                            {"release", ""},
                            {"counterfactual", false},
                            {"scenarios", {"one", "two"}},
                            {"files", {scenarios.path() + "/one.yaml", scenarios.path() + "/two.yaml"}}}));
  EXPECT_TRUE(contains(run({"fixes", "--scenarios", scenarios.path()}).output, "scenarios: one, two"));
  EXPECT_EQ(run({"fixes", "--scenarios", scenarios.path()}).code, 0);
  EXPECT_EQ(Json::parse(run({"recipes", "--json"}).output)[2]["name"], "mxfp8");
  EXPECT_TRUE(contains(run({"recipes"}).output, "delayed"));
  const Json devices = Json::parse(run({"devices", "--json"}).output);
  EXPECT_EQ(devices[2]["available"], false);
  EXPECT_EQ(devices[2]["unavailable_reason"], "no CUDA device was found");
  EXPECT_TRUE(contains(run({"devices"}).output, "(unavailable: no CUDA device was found)"));
  EXPECT_TRUE(Json::parse(run({"env", "--json"}).output).contains("cpu"));
  EXPECT_TRUE(contains(run({"env"}).output, "program.git_commit"));
}

TEST(Program, ResumeIgnoresResultsOfAnotherProgramOrMachine) {
  Scenarios scenarios({"one", "two"});
  EXPECT_EQ(run(scenarios.run_arguments({"-f", "one"})).code, 0);
  const std::string results = scenarios.results(), environment = scenarios.read("environment.json");
  Json other = Json::parse(environment);
  const auto refused_by = [&](const char* pointer, const std::string& value) {
    Json changed = other;
    const std::string was = changed[Json::json_pointer(pointer)].get<std::string>();
    changed[Json::json_pointer(pointer)] = value;
    sample::write(scenarios.file("out/environment.json"), changed.dump());
    const Ended refused = run(scenarios.run_arguments({"--resume"}));
    EXPECT_EQ(refused.code, 2) << refused.output;
    EXPECT_TRUE(contains(refused.errors, fmt::format("was {}, and is {} now; run without --resume", value, was)))
        << refused.errors;
    EXPECT_EQ(scenarios.results(), results);
    EXPECT_EQ(scenarios.read("environment.json"), changed.dump());
  };
  refused_by("/program/git_commit", "fedcba9876543210");
  refused_by("/libraries/glibc", "1.0");
  refused_by("/cpu/model", "abacus");
  refused_by("/devices/cpu", "matrix products by hand");
  other["devices"]["cuda"] = "unavailable: no driver";  // it measured nothing
  other["host"]["name"] = "next door";
  sample::write(scenarios.file("out/environment.json"), other.dump());
  EXPECT_EQ(run(scenarios.run_arguments({"--resume"})).code, 0);
  sample::write(scenarios.file("out/environment.json"), environment);
  EXPECT_EQ(run(scenarios.run_arguments({"--resume"})).code, 0);
}

TEST(Program, CellOfWhoseBeforeArmNothingIsExpectedIsRefused) {
  Scenarios scenarios({});
  sample::write(
      scenarios.file("half.yaml"),
      sample::kFixScenario + "device: meta\nexpect:\n  - {arm: after, metric: memory.peak_bytes, at_least: 0}\n");
  const Ended ended = run(scenarios.run_arguments({}));
  EXPECT_EQ(ended.code, 2);
  EXPECT_TRUE(contains(ended.errors, "nothing is expected of the before arm of cell sample")) << ended.errors;
}

TEST(Program, ResumeOfAnotherSelectionSaysWhatItLeavesOut) {
  Scenarios scenarios({"one"});
  scenarios.add("two", "");
  EXPECT_EQ(run(scenarios.run_arguments({})).code, 0);
  const Ended resumed = run(scenarios.run_arguments({"--resume", "-f", "one"}));
  EXPECT_TRUE(contains(resumed.output, "outside of this selection: 1 cell of an earlier run")) << resumed.output;
  EXPECT_EQ(Json::parse(scenarios.results())["cells"].size(), 1u);
  EXPECT_FALSE(contains(run(scenarios.run_arguments({"--resume"})).output, "outside of this selection"));
  EXPECT_EQ(Json::parse(scenarios.results())["cells"].size(), 2u);
}

TEST(Program, ResumeFindsACellWhoseScenarioFileMoved) {
  Scenarios scenarios({"one"});
  EXPECT_EQ(run(scenarios.run_arguments({})).code, 0);
  const int line = Json::parse(scenarios.results())["cells"][0]["line"],
            gate_line = Json::parse(scenarios.results())["cells"][0]["gates"][0]["line"];
  const std::string was = sample::read(scenarios.file("one.yaml"));
  std::string moved = "# a line above\n" + was;
  const std::size_t title = moved.find("title: ");
  moved.replace(title, moved.find('\n', title) - title, "title: Another title");
  sample::write(scenarios.file("one.yaml"), moved);
  EXPECT_TRUE(contains(run(scenarios.run_arguments({"--resume"})).output, "1 of 1 cells are finished already"));
  const Json cell = Json::parse(scenarios.results())["cells"][0];
  EXPECT_EQ(cell["title"], "Another title");
  EXPECT_EQ(cell["line"], line + 1);
  EXPECT_EQ(cell["gates"][0]["line"], gate_line + 1);
}

TEST(Program, Resume_RunsTimedOutCellsAgain) {
  Scenarios scenarios({"before_hang"});
  EXPECT_EQ(run(scenarios.run_arguments({"--timeout", "0.2"})).code, 124);
  const Ended resumed = run(scenarios.run_arguments({"--resume", "--timeout", "0.3"}));
  EXPECT_TRUE(contains(resumed.output, "took longer than 0.3 s")) << resumed.output;
}

// The kernel or a user may have killed it, and the next run may succeed.
TEST(Program, Resume_RunsCrashedCellsAgain_UnlessTheCrashIsExpected) {
  Scenarios scenarios({"before_kill", "after_oom"});
  std::string expected = sample::kFixScenario + R"(device: meta
expect:
  - {arm: before, status: crashed, signal: SIGSEGV}
  - {metric: memory.retained_bytes, arm: after, equals: 0}
)";
  expected.replace(expected.find("name: sample"), 12, "name: before_segv");
  sample::write(scenarios.file("before_segv.yaml"), expected);
  EXPECT_EQ(run(scenarios.run_arguments({})).code, 4);
  const Ended resumed = run(scenarios.run_arguments({"--resume"}));
  EXPECT_EQ(resumed.code, 4);
  EXPECT_TRUE(contains(resumed.output, "1 of 3 cells are finished already")) << resumed.output;
  EXPECT_TRUE(contains(resumed.output, "/2] crashed        before_kill")) << resumed.output;
  EXPECT_TRUE(contains(resumed.output, "/2] crashed        after_oom")) << resumed.output;
  const Json cells = Json::parse(scenarios.results())["cells"];
  ASSERT_EQ(cells.size(), 3u);
  for (const Json& cell : cells) EXPECT_EQ(cell["verdict"], cell["id"] == "before_segv" ? "confirmed" : "crashed");
}

TEST(Program, MissingFileHidesNoMistakeOfAnother) {
  const Scenarios scenarios({"one"});
  sample::write(scenarios.file("bad.yaml"), "version: 3\n");
  const Ended ended =
      run({"validate", "--json", scenarios.file("missing.yaml").string(), scenarios.file("bad.yaml").string()});
  EXPECT_EQ(ended.code, 2);
  const Json errors = Json::parse(ended.output)["errors"];
  ASSERT_EQ(errors.size(), 2u) << errors.dump();
  EXPECT_TRUE(contains(errors[0]["message"], "no such file or directory; give a scenario file")) << errors.dump();
  EXPECT_TRUE(contains(errors[1]["message"], "`version` must be 1")) << errors.dump();
}

TEST(Program, FixesAreListedDespiteUnreadableFiles) {
  const Scenarios scenarios({"one"});
  sample::write(scenarios.file("bad.yaml"), "version: 3\n");
  for (const bool json : {false, true}) {
    std::vector<std::string> arguments{"fixes", "--scenarios", scenarios.path()};
    if (json) arguments.emplace_back("--json");
    const Ended ended = run(arguments);
    EXPECT_EQ(ended.code, 2);
    EXPECT_TRUE(contains(ended.errors, "bad.yaml:1:10: `version` must be 1")) << ended.errors;
    EXPECT_TRUE(contains(ended.output, json ? "\"one\"" : "scenarios: one\n")) << ended.output;
  }
}

TEST(Program, Resume_RunsOnlyTheCellsThatAreLeft) {
  Scenarios scenarios({"one", "two"});
  EXPECT_EQ(run(scenarios.run_arguments({"-f", "one"})).code, 0);
  EXPECT_EQ(scenarios.read("results.jsonl"), "") << "a complete run leaves its cells in results.json";
  const std::string first = Json::parse(scenarios.results())["cells"][0].dump();
  const Ended resumed = run(scenarios.run_arguments({"--resume"}));
  EXPECT_EQ(resumed.code, 0);
  EXPECT_TRUE(contains(resumed.output, "1 of 2 cells are finished already")) << resumed.output;
  EXPECT_FALSE(contains(resumed.output, "confirmed      one"));
  EXPECT_EQ(Json::parse(scenarios.results())["cells"].size(), 2u);
  EXPECT_EQ(Json::parse(scenarios.results())["cells"][0].dump(), first);

  std::string changed = sample::read(scenarios.file("one.yaml"));
  changed.replace(changed.find("layers: 3"), 9, "layers: 4");
  sample::write(scenarios.file("one.yaml"), changed);
  EXPECT_TRUE(contains(run(scenarios.run_arguments({"--resume"})).output, "confirmed      one"))
      << "a changed cell runs again";
  EXPECT_EQ(Json::parse(scenarios.results())["cells"].size(), 2u);

  // As a run leaves it that was killed while it wrote its last line.
  const std::string lines = scenarios.cell_lines();
  sample::write(scenarios.file("out/results.jsonl"), lines.substr(0, lines.size() - 20));
  std::filesystem::remove(scenarios.file("out/results.json"));
  const Ended truncated = run(scenarios.run_arguments({"--resume"}));
  EXPECT_EQ(truncated.code, 0) << truncated.errors;
  EXPECT_TRUE(contains(truncated.output, "cut short")) << truncated.output;
  EXPECT_EQ(Json::parse(scenarios.results())["cells"].size(), 2u);
}

TEST(Program, DefaultOutputDirectoryIsOut) {
  const Scenarios scenarios({"one"});
  const TemporaryDirectory here;
  EXPECT_EQ(run({"run", scenarios.path()}, here.string()).code, 0);
  EXPECT_TRUE(std::filesystem::exists(here / "out/results.json"));
}

}  // namespace
}  // namespace fp8lab
