#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "harness/run/file_lock.h"
#include "harness/values/recording.h"
#include "subjects/pytorch_program.h"
#include "support/paths.h"

// `fp8lab divergence` with programs that PyTorch runs (watched/planted.py). Skipped if $FP8LAB_SUBJECT_PYTHON
// (python3) has no PyTorch.
namespace fp8lab {
namespace {

using sample::contains;

struct Plant {
  const char* defect;
  int block, step;
  const char* place;  ///< the first tensor that differs
};

constexpr Plant kPlants[] = {
    {"keyword", 0, 2, "step 2, forward, Blocks: input offset"},
    {"output", 0, 1, "step 1, forward, 0: output"},
    {"output", 1, 1, "step 1, forward, 1: output"},
    {"output", 2, 2, "step 2, forward, 2: output"},
    {"output", 3, 3, "step 3, forward, 3: output"},
    {"output", 4, 1, "step 1, forward, 4: output"},
    {"gradient", 0, 1, "step 1, backward, 0.down: gradient of output"},
    {"gradient", 1, 2, "step 2, backward, 1.down: gradient of output"},
    {"gradient", 2, 3, "step 3, backward, 2.down: gradient of output"},
    {"gradient", 3, 1, "step 1, backward, 3.down: gradient of output"},
    {"gradient", 4, 2, "step 2, backward, 4.down: gradient of output"},
    {"parameter", 0, 1, "step 1, backward, 0.up.weight: gradient"},
    {"parameter", 1, 2, "step 2, backward, 1.up.weight: gradient"},
    {"parameter", 2, 3, "step 3, backward, 2.up.weight: gradient"},
    {"parameter", 3, 1, "step 1, backward, 3.up.weight: gradient"},
    {"parameter", 4, 2, "step 2, backward, 4.up.weight: gradient"},
    {"weight", 0, 1, "step 2, forward, 0.down: operand 3 of addmm"},
    {"weight", 1, 2, "step 3, forward, 1.down: operand 3 of addmm"},
    {"weight", 2, 1, "step 2, forward, 2.down: operand 3 of addmm"},
    {"weight", 3, 2, "step 3, forward, 3.down: operand 3 of addmm"},
    {"weight", 4, 1, "step 2, forward, 4.down: operand 3 of addmm"},
};

class DivergenceOfProgramsTest : public PyTorchProgramTest {
 protected:
  DivergenceOfProgramsTest() : PyTorchProgramTest(paths::kWorkerFolder) {}

  /// Records the program under `name`.
  void record(const std::string& name, const std::string& defect, int block, int step, int ranks = 1,
              const std::string& steps = "1:3") {
    std::vector<std::string> words{"watch",
                                   "--steps",
                                   steps,
                                   "--measure",
                                   "parity",
                                   "--values",
                                   (directory_ / name).string(),
                                   "-o",
                                   (directory_ / "out").string(),
                                   "--"};
    for (const std::string& word : launch(ranks)) words.push_back(word);
    words.insert(words.end(),
                 {std::string(paths::kWatched) + "/planted.py", defect, std::to_string(block), std::to_string(step)});
    sample::Process process(words, directory_.string());
    EXPECT_EQ(process.finish() == 0, defect != "killed") << process.output;
  }

  /// The exit code of the comparison; `output_` has its lines.
  int compare(const std::string& a, const std::string& b) {
    sample::Process process({"divergence", (directory_ / a).string(), (directory_ / b).string(), "--noise",
                             (directory_ / "again").string()},
                            directory_.string());
    const int code = process.finish();
    output_ = process.output;
    return code;
  }
};

TEST_F(DivergenceOfProgramsTest, PlantedTensor_IsNamed_InEveryPlant) {
  record("healthy", "none", 0, 0);
  record("again", "none", 0, 0);
  for (const Plant& plant : kPlants) {
    record("planted", plant.defect, plant.block, plant.step);
    EXPECT_EQ(compare("healthy", "planted"), 1) << plant.place;
    EXPECT_TRUE(contains(output_, std::string("first  ") + plant.place)) << plant.place << "\n" << output_;
  }
}

TEST_F(DivergenceOfProgramsTest, EqualRuns_HaveNone) {
  record("healthy", "none", 0, 0);
  record("again", "none", 0, 0);
  record("other", "none", 0, 0);
  EXPECT_EQ(compare("healthy", "other"), 0) << output_;
  EXPECT_TRUE(contains(output_, "no tensor of both runs differs by more than noise")) << output_;
}

TEST_F(DivergenceOfProgramsTest, KilledProgram_LeavesAnIncompleteRecording) {
  record("healthy", "none", 0, 0, 1, "1:9");
  record("again", "none", 0, 0);
  EXPECT_EQ(compare("healthy", "again"), 0) << "a program that ends early is complete\n" << output_;
  record("killed", "killed", 0, 3);
  EXPECT_EQ(compare("healthy", "killed"), 1);
  EXPECT_TRUE(contains(output_, "in step 2; the program was killed")) << output_;
}

TEST_F(DivergenceOfProgramsTest, BothRecorders_MakeTheSameSketch) {
  sample::write(directory_ / "sketch.py",
                "import sys, torch\n"
                "sys.path.insert(0, sys.argv[1])\n"
                "from fp8lab_subjects.watching import values\n"
                "x = torch.arange(300001, dtype=torch.float32) % 1000 - 499\n"
                "x[5], x[6], x[299999] = float('inf'), float('-inf'), float('nan')\n"
                "line = '\\t'.join(['1', 'forward', '', 'x', *values.columns_of(x)])\n"
                "open('rank-0.tsv', 'w').write(f'{values.SCHEMA}\\n{line}\\nend\\t1\\n')\n");
  ASSERT_EQ(
      std::system(("cd " + directory_.string() + " && " + python_ + " sketch.py " + paths::kWorkerFolder).c_str()), 0);
  std::vector<float> values(300001);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000) - 499;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  values[5] = kInfinity, values[6] = -kInfinity, values[299999] = std::numeric_limits<float>::quiet_NaN();
  const Sketch own = sketch_of(values), python = read_rank(directory_ / "rank-0.tsv").tensors.at(0).sketch;
  EXPECT_EQ(own.norm, python.norm);
  EXPECT_EQ(own.not_finite, python.not_finite);
  EXPECT_EQ(own.sums, python.sums);
}

TEST_F(DivergenceOfProgramsTest, ShardedProgram_IsComparedOnEachRank) {
  if (!shards_on_host()) GTEST_SKIP() << "this PyTorch shards on GPUs only";
  record("healthy", "none", 0, 0, 2);
  record("again", "none", 0, 0, 2);
  record("planted", "output", 3, 2, 2);
  EXPECT_EQ(compare("healthy", "planted"), 1);
  EXPECT_TRUE(contains(output_, "first  step 2, forward, 3: output differs by")) << output_;
}

TEST_F(DivergenceOfProgramsTest, ScenarioOfAScript_RunsBothArmsTwice) {
  sample::write(directory_ / "planted.yaml",
                "version: 1\nname: planted\ntitle: t\nsubject: script\nscript: " + std::string(paths::kWatched) +
                    "/planted.py\narguments: {before: [none, '0', '0'], after: [gradient, '2', '2']}\n"
                    "matrix: {device: [cpu]}\nmeasure: [parity]\n"
                    "expect: [{metric: parity.weights_moved, arm: [before, after], equals: 1}]\n");
  sample::Process process({"divergence", (directory_ / "planted.yaml").string(), "-o", (directory_ / "out").string()},
                          directory_.string());
  EXPECT_EQ(process.finish(), 1) << process.output;
  EXPECT_TRUE(contains(process.output, "noise  none: two runs of an arm have equal bits")) << process.output;
  EXPECT_TRUE(contains(process.output, "first  step 2, backward, 2.down: gradient of output")) << process.output;
}

TEST_F(DivergenceOfProgramsTest, LibraryCell_IsRecordedByItsWorker) {
  sample::write(directory_ / "stale.yaml",
                "version: 1\nname: stale\ntitle: t\nsubject: double\nversions: {before: stale_transpose}\n"
                "model: {layer: layernorm_mlp, form: llama, layers: 2, hidden: 64, ffn: 128, seq: 16}\n"
                "training: {steps: 2, optimizer: adam, moments: bf16, learning_rate: 1e-2}\n"
                "matrix: {device: [cpu]}\nmeasure: [parity]\n"
                "expect: [{metric: parity.weights_moved, arm: [before, after], equals: 1}]\n");
  sample::Process process({"divergence", (directory_ / "stale.yaml").string(), "-o", (directory_ / "out").string()},
                          directory_.string());
  EXPECT_EQ(process.finish(), 1) << process.output;
  EXPECT_TRUE(contains(process.output, "noise  none: two runs of an arm have equal bits")) << process.output;
  EXPECT_TRUE(contains(process.output, "first  step 1, backward: operand 1 of mm: shape")) << process.output;
}

TEST(DivergenceOfOwnRuntime, AFolderHasOneRun_AndStepsThatNoProgramReachesAreNamed) {
  const sample::TemporaryDirectory directory;
  const std::string file = (directory / "own.yaml").string(), out = (directory / "recordings").string();
  sample::write(file,
                "version: 1\nname: own\ntitle: Own\nupstream: [TransformerEngine#1935]\n"
                "fix: release_attention_tensors\n"
                "model: {layer: transformer_layer, layers: 1, hidden: 64, heads: 2, ffn: 96, seq: 16}\n"
                "training: {steps: 2, recipe: delayed, fp8_attention: true}\nmatrix: {device: [cpu]}\n"
                "measure: [memory]\nexpect: [{metric: memory.retained_bytes, arm: [before, after], at_least: 0}]\n");
  const auto divergence = [&](const std::string& steps) {
    return sample::run({"divergence", file, "--arms", "before,after", "--steps", steps, "-o", out});
  };
  const sample::Ended first = divergence("1:2");
  EXPECT_LE(first.code, 1) << first.errors;
  EXPECT_TRUE(contains(first.output, "recordings: " + out + "\n")) << first.output;
  EXPECT_TRUE(contains(divergence("9:10").errors, "no tensor is in either recording")) << "both are empty";
  const FileLock lock(out + "/lock", FileLock::Create::kYes);
  ASSERT_TRUE(lock.held());
  const sample::Ended locked = divergence("1:2");
  EXPECT_EQ(locked.code, 2);
  EXPECT_TRUE(contains(locked.errors, out + " is used by another run; name another folder with -o")) << locked.errors;
}

}  // namespace
}  // namespace fp8lab
