#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "harness/run/fake_process.h"

// `plan`, `compare` and shell completion, as a user sees them.
namespace fp8lab {
namespace {

using Json = nlohmann::json;
using sample::contains;
using sample::Ended;
using sample::run;
using sample::Scenarios;

TEST(Compare, RegressionExitsOneAndNamesTheFigure) {
  const Scenarios scenarios({"one", "two"});
  ASSERT_EQ(run(scenarios.run_arguments()).code, 0);
  const std::string file = scenarios.file("baseline.json").string();
  Json baseline = Json::parse(scenarios.results());
  sample::write(file, baseline.dump());
  const Ended same = run({"compare", file, scenarios.out()});
  EXPECT_EQ(same.code, 0) << same.output << same.errors;
  EXPECT_TRUE(contains(same.output, "no regression in 2 cells"));

  Json& figure = baseline["cells"][1]["arms"]["after"]["metrics"]["memory.retained_bytes"]["value"];
  figure = figure.get<double>() - 1;
  sample::write(file, baseline.dump(2));
  const Ended worse = run({"compare", file, scenarios.out()});
  EXPECT_EQ(worse.code, 1);
  EXPECT_TRUE(contains(worse.output, "Worse (1 cell):\n  two\n    after memory.retained_bytes")) << worse.output;
  EXPECT_TRUE(worse.output.starts_with("two: after memory.retained_bytes +1 B")) << worse.output;
  EXPECT_TRUE(contains(run({"compare", file, scenarios.out(), "--markdown"}).output, "| two | after memory.retained"));
  const Json json = Json::parse(run({"compare", file, scenarios.out(), "--json"}).output);
  EXPECT_EQ(json["changes"][0]["id"], "two");
  EXPECT_EQ(json["changes"][0]["line"], Json::parse(scenarios.results())["cells"][1]["gates"][1]["line"]);
  EXPECT_EQ(run({"compare", file, scenarios.out(), "--allow", "^two$"}).code, 0);
  EXPECT_EQ(run({"compare", file, scenarios.out(), "--allow", "^one$"}).code, 1);
}

TEST(Metrics, HaveTheirSlackInWords) {
  EXPECT_TRUE(
      contains(run({"metrics", "parity.loss_gap"}).output,
               "slack:     a difference of up to 100 % of the smaller figure, and of up to 0.0001, is neither"));
  EXPECT_TRUE(contains(run({"metrics", "memory.peak_bytes"}).output, "slack:     none"));
  EXPECT_TRUE(contains(run({"metrics", "time.step_ms"}).output, "slack:     not judged"));
  EXPECT_TRUE(contains(run({"compare", "--help"}).output, "have a slack"));
}

TEST(Compare, BadUsageExitsTwo) {
  const Scenarios scenarios({"one"});
  const Ended missing = run({"compare", scenarios.path() + "/nowhere", scenarios.path()});
  EXPECT_EQ(missing.code, 2);
  EXPECT_TRUE(contains(missing.errors, "nowhere: no such file; give")) << missing.errors;
  EXPECT_EQ(run({"compare", "a", "b", "--allow", "("}).code, 2);
  EXPECT_EQ(run({"compare", "a"}).code, 2);
}

TEST(Results, GatesAndCellsNameTheirLines) {
  const Scenarios scenarios({"one"});
  ASSERT_EQ(run(scenarios.run_arguments()).code, 0);
  const Json cell = Json::parse(scenarios.results())["cells"][0];
  std::istringstream lines(sample::read(scenarios.file("one.yaml")));
  std::vector<std::string> text(1);
  for (std::string line; std::getline(lines, line);) text.push_back(line);
  EXPECT_TRUE(contains(text.at(cell["line"]), "name: one"));
  EXPECT_TRUE(contains(text.at(cell["gates"][0]["line"]), "arm: before"));
  EXPECT_TRUE(contains(text.at(cell["gates"][1]["line"]), "arm: after"));
}

TEST(Plan, ShowsPredictionsOfEveryArmAndRunsNothing) {
  Scenarios scenarios({"one"});
  scenarios.add("carded", "device: cuda\n");
  const Ended plan = run({"plan", scenarios.path()});
  EXPECT_EQ(plan.code, 0) << plan.errors;
  EXPECT_TRUE(contains(plan.output, "one  (meta, 1 rank)\n  before ")) << plan.output;
  EXPECT_TRUE(contains(plan.output, "not run here: no CUDA device was found\n  before ")) << plan.output;
  EXPECT_FALSE(std::filesystem::exists(scenarios.out()));

  const Json json = Json::parse(run({"plan", scenarios.path(), "-f", "one", "--json"}).output);
  ASSERT_EQ(json.size(), 1u);
  ASSERT_EQ(run(scenarios.run_arguments({"-f", "one"})).code, 0);
  for (const auto& [arm, planned] : json[0]["arms"].items())
    for (const auto& [metric, value] : planned["predicted"].items())
      EXPECT_EQ(value, Json::parse(scenarios.results())["cells"][0]["arms"][arm]["metrics"][metric]["predicted"])
          << arm << metric;
}

TEST(Plan, SampleIsFixedAndHasCellsOfEveryScenarioAndDevice) {
  Scenarios scenarios({});
  const std::string matrix = "matrix: {device: [cpu, meta], model.seq: [1048, 1049, 1050], model.layers: [1, 2, 3]}\n";
  for (const std::string name : {"one", "two"}) scenarios.add(name, matrix);
  const auto sample = [&](const std::string& most) {
    return run({"run", scenarios.path(), "--list", "--sample", most}).output;
  };
  const auto lines = [](const std::string& text) { return std::count(text.begin(), text.end(), '\n'); };
  EXPECT_EQ(lines(sample("1")), 4);
  EXPECT_EQ(lines(sample("2")), 8);
  EXPECT_EQ(lines(sample("9")), 36);
  EXPECT_EQ(lines(sample("100")), 36);
  EXPECT_EQ(sample("2"), sample("2"));
  for (const std::string cell : {"one/device=cpu", "one/device=meta", "two/device=cpu", "two/device=meta"})
    EXPECT_TRUE(contains(sample("1"), cell)) << cell;
  std::istringstream one(sample("1"));
  for (std::string line; std::getline(one, line);)
    EXPECT_TRUE(contains(sample("2"), line + "\n")) << "a larger one has it";
}

TEST(NamesOfScenarios, AreNoPathsAndLeadToTheirFiles) {
  Scenarios scenarios({"one"});
  scenarios.add("many", "device: meta\nmatrix: {seed: [1, 2]}\n");
  const std::string folder = scenarios.file("installed").string();
  for (const std::string name : {"one", "many"})
    sample::write(folder + "/scenarios/deep/" + name + ".yaml", sample::read(scenarios.file(name + ".yaml")));
  EXPECT_TRUE(contains(run({"run", "many"}, folder).errors,
                       "many: no such file or directory; it is the name of a bundled scenario, in "
                       "scenarios/deep/many.yaml: `fp8lab run scenarios -f '^many/'`"))
      << run({"run", "many"}, folder).errors;
  EXPECT_TRUE(contains(run({"plan", "one"}, folder).errors, "-f '^one$'`"));
  const Ended unknown = run({"run", "more"}, folder);
  EXPECT_EQ(unknown.code, 2);
  EXPECT_TRUE(contains(unknown.errors, "more: no such file or directory; give a scenario file")) << unknown.errors;

  const Ended fix = run({"fixes", "release_attention_tensors"}, folder);
  EXPECT_TRUE(contains(fix.output, "scenarios: many: scenarios/deep/many.yaml\n")) << fix.output;
  EXPECT_TRUE(contains(fix.output, "             one: scenarios/deep/one.yaml\n")) << fix.output;
  EXPECT_TRUE(contains(run({"fixes"}, folder).output, "scenarios: many, one\n"));
  EXPECT_EQ(Json::parse(run({"fixes", "release_attention_tensors", "--json"}, folder).output)[0]["files"],
            (Json{"scenarios/deep/many.yaml", "scenarios/deep/one.yaml"}));
}

TEST(Plan, NothingToPlanExitsFiveWithTheReason) {
  const Scenarios scenarios({"one"});
  const Ended none = run({"plan", scenarios.path(), "-d", "cuda"});
  EXPECT_EQ(none.code, 5);
  EXPECT_TRUE(contains(none.errors, "cuda is unavailable: no CUDA device was found")) << none.errors;
  EXPECT_EQ(run({"plan", scenarios.path(), "-d", "cuba"}).code, 2);
}

TEST(Init, ListsItsKindsAsTextAndAsJson) {
  const std::string text = run({"init", "--list"}).output;
  const Json json = Json::parse(run({"init", "--list", "--json"}).output);
  ASSERT_GE(json.size(), 5u);
  for (const Json& row : json) EXPECT_TRUE(contains(text, row["kind"].get<std::string>())) << row;
  EXPECT_EQ(run({"init", "memory", "--json"}).code, 2);
}

TEST(Run, GateOfTimeNeedsACellThatMeasuresIt) {
  const Scenarios scenarios({"one"});
  const std::string none = "no selected cell measures time before and after a fix";
  const Ended alone = run(scenarios.run_arguments({"--gate-time", "5"}));
  EXPECT_EQ(alone.code, 2) << alone.output;
  EXPECT_TRUE(contains(alone.errors, none)) << alone.errors;
  const Ended controls = run(scenarios.run_arguments({"--gate-time", "5", "--controls"}));
  EXPECT_NE(controls.code, 2) << "controls test memory and traffic too";
  EXPECT_TRUE(contains(controls.errors, none)) << controls.errors;
}

/// The completions that the program offers after `words`.
std::set<std::string> offered(std::vector<std::string> words) {
  words.insert(words.begin(), "__complete");
  std::istringstream lines(run(words).output);
  std::set<std::string> out;
  for (std::string line; std::getline(lines, line);) out.insert(line.substr(0, line.find('\t')));
  return out;
}

using Words = std::set<std::string>;

TEST(Completion, EveryCommandThatHelpListsIsOffered) {
  std::istringstream help(run({"--help"}).output);
  Words listed;
  bool commands = false;
  for (std::string line; std::getline(help, line);) {
    if (line == "Subcommands:") commands = true;
    if (line.empty()) commands = false;
    if (commands && line.starts_with("  ")) listed.insert(line.substr(2, line.find(' ', 2) - 2));
  }
  EXPECT_GE(listed.size(), 9u);
  EXPECT_EQ(offered({""}), listed);
}

TEST(Completion, EveryOptionOfEveryCommandIsOffered) {
  for (const std::string& command : offered({""})) {
    const Words options = offered({command, "-"});
    std::istringstream help(run({command, "--help"}).output);
    for (std::string line; std::getline(help, line);) {
      if (!line.starts_with("  -")) continue;  // an example
      std::istringstream names(line.substr(2, line.find(' ', 2) - 2));
      for (std::string name; std::getline(names, name, ',');)
        EXPECT_TRUE(options.contains(name)) << command << " " << name;
    }
  }
}

TEST(Completion, ValuesComeFromTheTablesAndFilesFromTheShell) {
  EXPECT_EQ(offered({"run", "x.yaml", "-d", "c"}), (Words{"cpu", "cuda"}));
  EXPECT_EQ(offered({"run", "--device=meta,"}), (Words{"--device=meta,cpu", "--device=meta,cuda"}));
  EXPECT_EQ(offered({"run", "-o", ""}), Words{":directories"});
  EXPECT_EQ(offered({"run", "a.yaml", "b"}), Words{":files"});
  EXPECT_EQ(offered({"compare", "a", ""}), Words{":files"});
  EXPECT_EQ(offered({"completion", ""}), (Words{"bash", "zsh", "fish"}));
  EXPECT_TRUE(offered({"plan", "--model", ""}).contains("llama3-70b"));
  EXPECT_TRUE(offered({"plan", "--gpu", ""}).contains("h200"));
  EXPECT_TRUE(offered({"keys", ""}).contains("training.recipe"));
  EXPECT_TRUE(offered({"keys", ""}).contains("training"));
  EXPECT_TRUE(offered({"metrics", "mem"}).contains("memory.peak_bytes"));
  EXPECT_EQ(offered({"schema", ""}), (Words{"scenario", "results", "comparison"}));
  EXPECT_TRUE(offered({"subjects", "--install", ""}).contains("torch=="));
  EXPECT_FALSE(offered({"subjects", "--install", ""}).contains("double==")) << "it cannot be installed";
  EXPECT_EQ(offered({"run", "-f", ""}), Words{}) << "an expression has no candidates";
  EXPECT_EQ(offered({"run", "--", "--"}), Words{":files"}) << "after -- come only arguments";
  EXPECT_EQ(offered({"no-such"}), Words{});
}

TEST(Completion, SettingOfAKey_IsCompletedInTwoParts) {
  EXPECT_EQ(offered({"plan", "--set", "model.vocab"}), Words{"model.vocabulary="});
  EXPECT_EQ(offered({"plan", "--set", "reduce_dtype=f"}), Words{"reduce_dtype=f32"});
  EXPECT_EQ(offered({"plan", "--set=training.quantized_weights="}),
            (Words{"--set=training.quantized_weights=true", "--set=training.quantized_weights=false"}));
  EXPECT_EQ(offered({"plan", "--set", "model.layers="}), Words{}) << "a number has no candidates";
}

TEST(Completion, EveryShellHasAScript) {
  for (const std::string shell : {"bash", "zsh", "fish"}) {
    const Ended script = run({"completion", shell});
    EXPECT_EQ(script.code, 0);
    EXPECT_TRUE(contains(script.output, "__complete")) << shell;
  }
  EXPECT_EQ(run({"completion", "tcsh"}).code, 2);
  EXPECT_EQ(run({"completion"}).code, 2);
}

}  // namespace
}  // namespace fp8lab
