#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "subjects/fake_training.h"

// `subject: script`: a training program in a scenario. The program needs no PyTorch: see fake_training.h.
namespace fp8lab {
namespace {

using Json = nlohmann::json;
using sample::contains;
using sample::Ended;

class Script : public ::testing::Test {
 protected:
  int run(const std::string& keys, const std::vector<std::string>& options = {}) {
    return run_file(training_.scenario(keys), options);
  }
  int run_file(const std::string& file, const std::vector<std::string>& options = {}) {
    std::vector<std::string> words{"run", file, "-o", training_.path("out").string()};
    words.insert(words.end(), options.begin(), options.end());
    const Ended ended = sample::run(words, training_.folder());
    text_ = ended.output + ended.errors;
    const std::string results = sample::read(training_.path("out/results.json"));
    cells_ = results.empty() ? Json() : Json::parse(results).at("cells");
    return ended.code;
  }
  /// The errors that validate prints.
  std::string refusal(const std::string& keys, const std::string& version = "versions: {after: ./fake}\n") {
    const Ended ended = sample::run({"validate", training_.scenario(keys, version)}, training_.folder());
    EXPECT_EQ(ended.code, 2) << ended.output;
    return ended.output + ended.errors;
  }
  Json arm(const std::string& name) const { return cells_.at(0).at("arms").at(name); }
  Json value(const std::string& name, const std::string& metric) const {
    return arm(name).at("metrics").at(metric).at("value");
  }

  sample::FakeTraining training_;
  std::string text_;
  Json cells_;
};

constexpr const char* kGrowth =
    "measure: [memory]\nexpect:\n  - {metric: memory.growth_bytes, arm: after, equals: 0}\n";

TEST_F(Script, ArmsDifferByTheirArguments_FiguresAreGated) {
  EXPECT_EQ(run("arguments: {before: [\"512\"], after: [\"0\"]}\nmeasure: [memory, parity]\nexpect:\n"
                "  - {metric: memory.growth_bytes, arm: before, equals: 512}\n"
                "  - {metric: memory.growth_bytes, arm: after, equals: 0}\n"
                "  - {metric: parity.weights_moved, arm: [before, after], equals: 1}\n"),
            0)
      << text_;
  EXPECT_EQ(cells_.at(0).at("verdict"), "confirmed");
  EXPECT_EQ(value("before", "memory.growth_bytes"), 512);
  EXPECT_EQ(value("after", "memory.peak_bytes"), 1000);
  EXPECT_EQ(cells_.at(0).at("arguments").at("before"), Json({"512"}));
  EXPECT_FALSE(cells_.at(0).at("config").contains("model.hidden")) << "the program has its own model";
}

TEST_F(Script, AFigureBeyondItsGate_FailsTheCell) {
  EXPECT_EQ(run(std::string("arguments: [\"64\"]\n") + kGrowth), 1) << text_;
  EXPECT_EQ(cells_.at(0).at("verdict"), "fail");
  EXPECT_EQ(cells_.at(0).at("gates").at(0).at("observed"), 64);
}

TEST_F(Script, APlanHasNoFiguresOfAnotherModelForAScript) {
  EXPECT_EQ(run(std::string("arguments: [\"0\"]\n") + kGrowth), 0) << text_;
  for (const std::vector<std::string>& as : std::vector<std::vector<std::string>>{{}, {"--as", "torch@2.15"}}) {
    std::vector<std::string> words{"plan", training_.path("out").string()};
    words.insert(words.end(), as.begin(), as.end());
    const Ended ended = sample::run(words, training_.folder());
    EXPECT_EQ(ended.code, 3) << ended.output;
    EXPECT_TRUE(contains(ended.output, "the program builds a model of its own")) << ended.output;
    EXPECT_TRUE(contains(ended.output, "after, measured")) << ended.output;
  }
}

TEST_F(Script, EqualArmsOfAControl_ShowNoDifference) {
  EXPECT_EQ(run("arguments: [\"8\"]\ncontrol: same\nmeasure: [memory]\nexpect:\n"
                "  - {metric: memory.growth_bytes, arm: difference, equals: 0}\n"),
            0)
      << text_;
  EXPECT_EQ(value("before", "memory.growth_bytes"), 8);
}

TEST_F(Script, ValuesOfAxesReplaceTheirNames_TwoBracesStandForOne) {
  EXPECT_EQ(run("arguments: [\"0\", \"--b={batch}\", \"{variant}\", \"{{batch}}\", '{\"a\": 1}', \"$(id); {device}\"]\n"
                "matrix: {batch: [2, 4], variant: [x y]}\nmeasure: [memory]\n"),
            0)
      << text_;
  EXPECT_EQ(cells_.size(), 2U);
  EXPECT_EQ(cells_.at(1).at("arguments").at("after"),
            Json({"0", "--b=4", "x y", "{batch}", "{\"a\": 1}", "$(id); cpu"}))
      << "no shell reads them";
}

TEST_F(Script, ACrash_IsTheArmsEndWithItsLastLine) {
  EXPECT_EQ(run(std::string("arguments: [crash]\n") + kGrowth), 4) << text_;
  EXPECT_EQ(arm("after").at("status"), "crashed");
  EXPECT_TRUE(contains(arm("after").at("reason"), "exit status 3: the last line of it")) << arm("after");
  EXPECT_TRUE(contains(arm("after").at("output_tail"), "arguments ['crash']"));
}

TEST_F(Script, AnExpectedSignal_PassesAndTheFiguresThatWereLeftAreKept) {
  EXPECT_EQ(run("arguments: [killed]\nmeasure: [memory]\nexpect:\n"
                "  - {arm: after, status: crashed, signal: SIGKILL}\n"),
            0)
      << text_;
  EXPECT_EQ(value("after", "memory.peak_bytes"), 1000);
}

TEST_F(Script, AHang_EndsAtItsLimit) {
  EXPECT_EQ(run(std::string("arguments: [hang]\ntimeout: 3\n") + kGrowth), 124) << text_;
  EXPECT_EQ(arm("after").at("status"), "timeout");
  EXPECT_EQ(arm("after").at("reason"), "took longer than 3 s");
}

TEST_F(Script, AProgramThatMeasuresNothing_IsAnErrorWithTheReason) {
  EXPECT_NE(run(std::string("arguments: [nothing]\n") + kGrowth), 0) << text_;
  EXPECT_TRUE(contains(arm("after").at("reason"), "no process of the program imported PyTorch")) << arm("after");
}

TEST_F(Script, APatch_ChangesACopyOfTheCheckout) {
  training_.add("fix.diff", "--- a/amount.py\n+++ b/amount.py\n@@ -1 +1 @@\n-GROWTH = 64\n+GROWTH = 0\n");
  const std::string keys =
      "patch: {after: fix.diff}\narguments: [checkout]\nmeasure: [memory]\nexpect:\n"
      "  - {metric: memory.growth_bytes, arm: before, equals: 64}\n"
      "  - {metric: memory.growth_bytes, arm: after, equals: 0}\n";
  EXPECT_EQ(run_file(training_.scenario(keys, "versions: {before: ./fake, after: ./fake}\n")), 0) << text_;
  EXPECT_EQ(sample::read(training_.path("fake/amount.py")), "GROWTH = 64\n") << "the checkout itself is as it was";
}

TEST_F(Script, APatchThatDoesNotApply_IsAnErrorWithGitsMessage) {
  training_.add("fix.diff", "--- a/amount.py\n+++ b/amount.py\n@@ -1 +1 @@\n-GROWTH = 65\n+GROWTH = 0\n");
  EXPECT_NE(run(std::string("patch: {after: fix.diff}\narguments: [checkout]\n") + kGrowth), 0);
  EXPECT_TRUE(contains(arm("after").at("reason"), "does not apply to a copy of")) << arm("after");
  EXPECT_TRUE(contains(arm("after").at("reason"), "amount.py")) << arm("after");
}

TEST_F(Script, APatchWithoutACheckout_ChangesACopyOfTheScript) {
  training_.add("quiet.diff",
                "--- a/train.py\n+++ b/train.py\n@@ -1,2 +1,3 @@\n import json, os, signal, sys, time\n"
                "+sys.argv[1:] = [\"0\"]\n def figure(value, unit=\"B\"):\n");
  ::setenv("PYTHONPATH", training_.path("fake").c_str(), 1);
  EXPECT_EQ(
      run_file(training_.scenario(std::string("patch: {after: quiet.diff}\narguments: [\"64\"]\n") + kGrowth, "")), 0)
      << text_;
  ::unsetenv("PYTHONPATH");
}

TEST_F(Script, Resume_RunsAnEditedScriptAgain) {
  const std::string keys = std::string("arguments: [\"0\"]\n") + kGrowth;
  EXPECT_EQ(run(keys), 0) << text_;
  EXPECT_EQ(run(keys, {"--resume"}), 0) << text_;
  EXPECT_TRUE(contains(text_, "1 of 1 cells are finished already")) << text_;
  training_.add("train.py", sample::read(training_.path("train.py")) + "# edited\n");
  EXPECT_EQ(run(keys, {"--resume"}), 0) << text_;
  EXPECT_FALSE(contains(text_, "finished already")) << text_;
}

TEST_F(Script, WithoutPyTorch_ItsCellsAreSkippedWithTheReason) {
  training_.add("empty/readme", "");
  ::setenv("FP8LAB_SUBJECT_PYTHON", "/nowhere/python", 1);
  EXPECT_EQ(run(kGrowth), 5) << text_;
  ::unsetenv("FP8LAB_SUBJECT_PYTHON");
  EXPECT_EQ(cells_.at(0).at("verdict"), "skipped");
}

TEST_F(Script, AReleaseThatIsNotInstalled_IsSkippedWithTheCommandThatInstallsIt) {
  ::setenv("FP8LAB_SUBJECTS", training_.path("subjects").c_str(), 1);
  EXPECT_EQ(run_file(training_.scenario(kGrowth, "versions: {after: torch==9.9}\n")), 5) << text_;
  ::unsetenv("FP8LAB_SUBJECTS");
  EXPECT_TRUE(contains(cells_.at(0).at("reason"), "fp8lab subjects --install torch==9.9")) << cells_;
}

TEST_F(Script, AReleaseThatPipInstalls_RunsTheScript) {
  // A wheel of a package called torch; pip finds it in this folder and uses no network.
  training_.add("wheel.py", R"(import zipfile
made = {"torch/__init__.py": "__version__ = '9.9'\n",
        "torch-9.9.dist-info/METADATA": "Metadata-Version: 2.1\nName: torch\nVersion: 9.9\n",
        "torch-9.9.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "torch-9.9.dist-info/RECORD": ""}
with zipfile.ZipFile("torch-9.9-py3-none-any.whl", "w") as wheel:
    for name, text in made.items():
        wheel.writestr(name, text)
)");
  ASSERT_EQ(std::system(("cd " + training_.folder() + " && python3 wheel.py").c_str()), 0);
  ::setenv("PIP_NO_INDEX", "1", 1);
  ::setenv("PIP_FIND_LINKS", training_.folder().c_str(), 1);
  ::setenv("FP8LAB_SUBJECTS", training_.path("subjects").c_str(), 1);
  training_.add("train.py", "import sys, torch\nsys.exit(f'{sys.prefix} has {torch.__version__}')\n");
  const Ended absent = sample::run({"subjects", "--install", "torch==9.8"}, training_.folder());
  EXPECT_EQ(absent.code, 2);
  EXPECT_TRUE(contains(absent.errors, "No matching distribution found for torch==9.8")) << absent.errors;
  const Ended installed = sample::run({"subjects", "--install", "torch==9.9"}, training_.folder());
  EXPECT_EQ(installed.code, 0) << installed.errors;
  EXPECT_EQ(run_file(training_.scenario(kGrowth, "versions: {after: torch==9.9}\n")), 4) << text_;
  EXPECT_TRUE(contains(arm("after").at("reason"), "subjects/torch-9.9 has 9.9")) << arm("after");
  for (const char* name : {"PIP_NO_INDEX", "PIP_FIND_LINKS", "FP8LAB_SUBJECTS"}) ::unsetenv(name);
}

TEST_F(Script, SeveralRanksAreStartedByTorchrun_OrByTheScriptItself) {
  training_.add("fake/torch/distributed/__init__.py", "");
  training_.add("fake/torch/distributed/run.py", "import sys\nsys.exit(f'torchrun {sys.argv[1:]}')\n");
  const std::string keys = std::string("ranks: 2\narguments: [\"0\"]\n") + kGrowth;
  EXPECT_EQ(run(keys), 4) << text_;
  EXPECT_TRUE(contains(arm("after").at("reason"), "torchrun ['--standalone', '--nproc-per-node', '2', '")) << text_;
  EXPECT_EQ(run("launcher: python\n" + keys), 0) << text_;
  EXPECT_TRUE(contains(arm("after").at("notes").dump(), "the program ran on 1 ranks, the cell names 2"));
  EXPECT_EQ(run(std::string("launcher: torchrun\narguments: [\"0\"]\n") + kGrowth), 4) << text_;
  EXPECT_TRUE(contains(arm("after").at("reason"), "'--nproc-per-node', '1', '")) << text_;
}

TEST_F(Script, ListDryRunAndValidate_RunNothingOfIt) {
  training_.add("train.py", "open('ran', 'w')\n");
  const std::string file = training_.scenario(kGrowth);
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"validate", file}, {"run", file, "--list"}, {"run", file, "--dry-run"}}) {
    const Ended ended = sample::run(words, training_.folder());
    EXPECT_EQ(ended.code, 0) << ended.errors;
    EXPECT_TRUE(words[0] == "validate" || contains(ended.errors, "`script` names the program")) << ended.errors;
  }
  EXPECT_FALSE(std::filesystem::exists(training_.path("ran")));
}

TEST_F(Script, KeysOfAModel_AreRefusedWithTheLineAndTheArgumentThatWouldUseThem) {
  const std::string text = refusal(std::string("model: {hidden: 64}\ntraining: {steps: 3}\nmesh: 2\n") + kGrowth);
  EXPECT_TRUE(contains(text, "s.yaml:7:")) << text;
  EXPECT_TRUE(contains(text,
                       "`model.hidden` has no effect: the script builds its own model and training; remove it, "
                       "or give the script its value (`arguments: [\"--hidden={hidden}\"]`)"))
      << text;
  EXPECT_TRUE(contains(text, "`training.steps` has no effect")) << text;
  EXPECT_TRUE(contains(text, "`mesh` has no effect")) << text;
}

TEST_F(Script, MistakesOfItsOwnKeys_AreRefused) {
  EXPECT_TRUE(contains(refusal(std::string("arguments: [\"{batchh}\"]\n") + kGrowth), "`{batchh}` names no key"));
  EXPECT_TRUE(contains(refusal(std::string("arguments: {later: [a]}\n") + kGrowth), "`arguments.later`: no such key"));
  EXPECT_TRUE(contains(refusal(std::string("patch: {after: absent.diff}\n") + kGrowth), "`patch`: there is no file"));
  EXPECT_TRUE(contains(refusal(std::string("variant: x\n") + kGrowth), "no argument of the script has its value"));
  EXPECT_TRUE(contains(refusal(std::string("matrix: {device: [meta]}\n") + kGrowth), "a script cannot run on meta"));
  EXPECT_TRUE(contains(refusal(std::string("control: planted\n") + kGrowth), "nothing can be planted in a script"));
  EXPECT_TRUE(contains(refusal(kGrowth, "versions: {after: 2.10.0}\n"), "2.10.0 is no version for a script"));
  EXPECT_TRUE(contains(refusal("measure: [time]\n"), "time is not measured in a script"));
  EXPECT_TRUE(contains(refusal("measure: [memory]\nexpect: [{metric: memory.peak_bytes, arm: bf16, equals: 0}]\n"),
                       "a script has no bf16 arm"));
}

TEST_F(Script, KeysOfScripts_AreRefusedForOtherSubjects) {
  training_.add("own.yaml",
                "version: 1\nname: own\ntitle: t\nscript: train.py\narguments: [a]\nmodel: {layer: linear, hidden: 64, "
                "seq: 8}\nmeasure: [memory]\n");
  const Ended ended = sample::run({"validate", training_.path("own.yaml").string()});
  EXPECT_EQ(ended.code, 2);
  EXPECT_TRUE(contains(ended.output + ended.errors, "`arguments` has no effect: no cell has `subject: script`"));
  EXPECT_TRUE(contains(ended.output + ended.errors, "`script` has no effect: subject own does not read it"));
}

}  // namespace
}  // namespace fp8lab
