#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "harness/temporary_directory.h"
#include "support/paths.h"

// One scenario file whose ranks are threads of one process, MPI processes, and processes that connect over sockets: the
// figures and hashes are the same.
namespace fp8lab {
namespace {

using Json = nlohmann::json;

std::string scenario(int steps) {
  constexpr const char* kText = R"(version: 1
name: over-ranks
title: Training over four ranks
ranks: 4
model: {layer: layernorm_mlp, layers: 2, hidden: 128, ffn: 256, seq: 32, batch: 1}
matrix:
  device: [cpu, meta]
  recipe: [delayed, mxfp8]
  mesh: [4, 2x2]
measure: [memory, parity, traffic]
training: {optimizer: adam, learning_rate: 0.01, recipe: delayed, loss: mse, quantized_weights: true,
           master_weights: f32, steps: )";
  return kText + std::to_string(steps) + "}\n";
}

struct Outcome {
  int code = -1;
  std::string log;
  std::map<std::string, Json> arms;  ///< by cell, without the figures that depend on the clock
};

Outcome run(const std::string& launcher) {
  const sample::TemporaryDirectory directory;
  sample::write(directory / "over-ranks.yaml", scenario(2));
  const std::string command = launcher + " " + paths::kProgram + " run " + (directory / "over-ranks.yaml").string() +
                              " -o " + (directory / "out").string() + " > " + (directory / "log").string() + " 2>&1";
  const int status = std::system(command.c_str());
  Outcome outcome;
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  outcome.log = sample::read(directory / "log");
  if (!std::filesystem::exists(directory / "out" / "results.json")) return outcome;
  const Json results = Json::parse(sample::read(directory / "out" / "results.json"));
  for (const Json& cell : results["cells"]) {
    Json arms = cell["arms"];
    for (auto& [name, arm] : arms.items()) arm.erase("seconds");
    outcome.arms.emplace(cell["id"], arms);
  }
  return outcome;
}

const Outcome& local() {
  static const Outcome kOutcome = run("");
  return kOutcome;
}

void expect_the_same(const Outcome& launched) {
  ASSERT_EQ(local().code, 0) << local().log;
  ASSERT_EQ(local().arms.size(), 8u);
  EXPECT_EQ(launched.code, 0) << launched.log;
  EXPECT_NE(launched.log.find("\n[8/8] pass "), std::string::npos) << launched.log;
  EXPECT_EQ(launched.log.find('\033'), std::string::npos) << launched.log;
  ASSERT_EQ(launched.arms.size(), local().arms.size()) << launched.log;
  for (const auto& [id, arms] : local().arms) {
    for (const auto& [name, arm] : arms.items()) {
      EXPECT_EQ(arm["status"], "ok") << id;
      EXPECT_FALSE(arm["sequence_hash"].is_null()) << id;
    }
    EXPECT_EQ(launched.arms.at(id), arms) << id << ": " << Json::diff(arms, launched.arms.at(id));
  }
}

TEST(LaunchedScenarios, MeasureOverSocketsWhatThreadsMeasure) { expect_the_same(run(paths::kTorchrun)); }

TEST(LaunchedScenarios, MeasureOverMpiWhatThreadsMeasure) {
  const std::string mpirun = paths::kMpirun;
  if (mpirun.empty()) GTEST_SKIP() << "this build found no MPI";
  expect_the_same(run(mpirun));
}

// mpirun sends the signal to one rank after the other, so a rank may see another one stop before it has the signal
// itself.
TEST(LaunchedScenarios, SignalWhileRanksTrainOverMpi_EveryRankEndsWithIt) {
  const std::string mpirun = paths::kMpirun;
  if (mpirun.empty()) GTEST_SKIP() << "this build found no MPI";
  constexpr int kRuns = 6;
  for (int run = 0; run < kRuns; ++run) {
    const sample::TemporaryDirectory directory;
    const std::string folder = directory.string() + "/";
    sample::write(directory / "over-ranks.yaml", scenario(1000));  // outlasts a busy machine's delays
    // mpirun waits for as long as this before SIGTERM, and again before SIGKILL; a second is short for a busy machine.
    const std::string command = "OMPI_MCA_odls_base_sigkill_timeout=10 " + mpirun + " " + paths::kProgram + " run " +
                                folder + "over-ranks.yaml -o " + folder + "out > " + folder +
                                "log 2>&1 & launcher=$!; " + "until grep -qs 'launched the ranks' " + folder +
                                "log; do sleep 0.001; done; " + "sleep 0." + std::to_string(run) +
                                "; kill -TERM $launcher; wait $launcher; true";
    EXPECT_EQ(std::system(command.c_str()), 0);
    const std::string log = sample::read(directory / "log");
    EXPECT_NE(log.find("exit 143: interrupted"), std::string::npos) << log;
    for (const char* crash : {"signal 6", "signal 11", "MPI_ERR"}) EXPECT_EQ(log.find(crash), std::string::npos) << log;
  }
}

}  // namespace
}  // namespace fp8lab
