#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "harness/run/fake_process.h"
#include "support/paths.h"

// `fp8lab watch` with programs that write what instruments would: no PyTorch is needed.
namespace fp8lab {
namespace {

using Json = nlohmann::json;
using sample::contains;

Json figure(const Json& value, const char* unit = "B", const char* reason = nullptr) {
  Json out{{"value", value}, {"predicted", nullptr}, {"unit", unit}};
  if (reason) out["reason"] = reason;
  return out;
}

/// What a rank leaves that found nothing.
Json process(int rank, int world, double peak) {
  return {{"schema", "fp8lab.watch/1"},
          {"pid", 100 + rank},
          {"rank", rank},
          {"world", world},
          {"state", "ended"},
          {"device", "cpu"},
          {"torch", "2.11"},
          {"python", "3.12"},
          {"steps", 5},
          {"guesses", {"model: Net (the outermost module called)"}},
          {"lines", {{{"topic", "model"}, {"text", "Net"}}}},
          {"findings", Json::array()},
          {"overhead", "instruments take 1 ms a step"},
          {"result",
           {{"status", "ok"},
            {"reason", nullptr},
            {"seconds", 1},
            {"metrics",
             {{"memory.peak_bytes", figure(peak)},
              {"memory.growth_bytes", figure(0)},
              {"memory.retained_bytes", figure(0)},
              {"parity.weights_moved", figure(1, "1")},
              {"parity.gradients_not_finite", figure(0, "1")}}},
            {"retained_by_holder", Json::array()},
            {"peak_by_holder", {{{"holder", "parameter of weight"}, {"bytes", 64}}}},
            {"notes", {"a note"}},
            {"sequence_hash", nullptr}}}};
}

Json finding(const char* kind, const char* subject, const std::string& text, double size) {
  return {{"kind", kind}, {"subject", subject}, {"text", text}, {"size", size}};
}

class Watch : public ::testing::Test {
 protected:
  Watch() {
    ::setenv("FP8LAB_WORKER", paths::kWorkerFolder, 1);
    ::setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
  }

  /// Watches a shell script, to which $FP8LAB_WATCH_FOLDER is known. `processes`: what it leaves there.
  int watch(const std::vector<Json>& processes, const std::string& then = "", std::vector<std::string> options = {}) {
    std::string script;
    for (const Json& one : processes) {
      const std::string name = "process-" + std::to_string(one.at("pid").get<int>()) + ".json";
      sample::write(directory_ / name, one.dump());
      script += "cp '" + (directory_ / name).string() + "' \"$FP8LAB_WATCH_FOLDER\"\n";
    }
    sample::write(directory_ / "train.sh", script + then + "\n");
    options.insert(options.begin(), {"watch", "-o", out()});
    options.insert(options.end(), {"--", "/bin/sh", (directory_ / "train.sh").string()});
    sample::Process program(options, directory_.string());
    const int code = program.finish();
    output_ = program.output;
    errors_ = program.errors;
    cell_ = Json();
    if (const std::string text = sample::read(directory_ / "out/results.json"); !text.empty())
      cell_ = Json::parse(text).at("cells").at(0);
    return code;
  }

  int plan(std::vector<std::string> options = {}) {
    options.insert(options.begin(), {"plan", out()});
    sample::Process program(options, directory_.string());
    const int code = program.finish();
    output_ = program.output;
    errors_ = program.errors;
    return code;
  }

  std::string out() const { return (directory_ / "out").string(); }
  Json gate(const std::string& metric) const {
    for (const Json& one : cell_.at("gates"))
      if (one.at("metric") == metric) return one;
    return {};
  }

  sample::TemporaryDirectory directory_;
  std::string output_, errors_;
  Json cell_;
};

TEST_F(Watch, AProgramInWhichNothingIsFoundPasses) {
  EXPECT_EQ(watch({process(0, 1, 1000)}), 0) << output_ << errors_;
  EXPECT_TRUE(contains(output_, "fp8lab watch: sh: 5 steps on 1 rank, cpu, PyTorch 2.11\n")) << output_;
  EXPECT_TRUE(contains(output_, "  model     Net\n"));
  EXPECT_TRUE(contains(output_, "  guessed   model: Net (the outermost module called)\n"));
  EXPECT_TRUE(contains(output_, "  found     nothing")) << output_;
  EXPECT_EQ(cell_.at("verdict"), "pass");
  EXPECT_EQ(cell_.at("config").at("subject"), "script");
  EXPECT_EQ(cell_.at("config").at("training.steps"), 5);
  EXPECT_FALSE(cell_.at("config").contains("training.recipe")) << "the program has its own";
  EXPECT_EQ(cell_.at("gates").size(), 4U);
  EXPECT_EQ(cell_.at("arms").at("after").at("metrics").at("memory.peak_bytes").at("value"), 1000);
}

TEST_F(Watch, TheProgramSeesTheInstrumentsFirstOnItsPathAndItsOwnAfterThem) {
  ::setenv("PYTHONPATH", "/own", 1);
  watch({}, "echo \"path $PYTHONPATH\"; echo \"$FP8LAB_WATCH_MEASURE $FP8LAB_WATCH_STEPS\"",
        {"--measure", "memory,host", "--steps", "3:10"});
  ::unsetenv("PYTHONPATH");
  const std::string worker = paths::kWorkerFolder;
  EXPECT_TRUE(contains(output_, "path " + worker + "/fp8lab_subjects/watching/attach:" + worker + ":/own\n"))
      << output_;
  EXPECT_TRUE(contains(output_, "memory,host 3:10\n"));
}

TEST_F(Watch, AFindingFailsItsGateAndNamesTheRanks) {
  Json zero = process(0, 2, 1000), one = process(1, 2, 3000);
  zero["findings"] =
      Json::array({finding("growth", "variable history", "memory grows by 1.0 KiB a step: history", 1024)});
  one["findings"] = {finding("growth", "variable history", "memory grows by 2.0 KiB a step: history", 2048),
                     finding("still", "", "1 of 3 weights have not moved", 1)};
  zero["result"]["metrics"]["memory.growth_bytes"]["value"] = 1024;
  zero["result"]["metrics"]["parity.weights_moved"]["value"] = 0.5;
  one["result"]["metrics"]["memory.growth_bytes"]["value"] = 2048;
  EXPECT_EQ(watch({zero, one}), 1) << output_ << errors_;
  EXPECT_TRUE(contains(output_, "figures of rank 1, the worst: its peak is largest")) << output_;
  EXPECT_TRUE(contains(output_, "FOUND     memory grows by 2.0 KiB a step: history (every rank)")) << output_;
  EXPECT_TRUE(contains(output_, "FOUND     1 of 3 weights have not moved (rank 1 of 2)")) << output_;
  EXPECT_EQ(cell_.at("verdict"), "fail");
  EXPECT_EQ(cell_.at("config").at("ranks"), 2);
  EXPECT_EQ(gate("memory.growth_bytes").at("pass"), false);
  EXPECT_EQ(gate("memory.growth_bytes").at("observed"), 2048);
  EXPECT_EQ(gate("parity.weights_moved").at("pass"), false);
  EXPECT_EQ(gate("parity.weights_moved").at("observed"), 0.5) << "the worst of the ranks";
  EXPECT_EQ(gate("memory.retained_bytes").at("pass"), true);
}

TEST_F(Watch, AFigureThatIsAbsentHasNoGate) {
  Json one = process(0, 1, 1000);
  one["result"]["metrics"]["memory.growth_bytes"] = figure(nullptr, "B", "needs 4 steps");
  EXPECT_EQ(watch({one}), 0);
  EXPECT_TRUE(gate("memory.growth_bytes").is_null());
  EXPECT_EQ(cell_.at("gates").size(), 3U);
}

TEST_F(Watch, AProgramThatFailsLeavesWhatWasMeasured) {
  Json zero = process(0, 2, 1000), one = process(1, 2, 500);
  zero["state"] = "error";
  zero["error"] = "RuntimeError: connection reset";
  one["state"] = "running";
  EXPECT_EQ(watch({zero, one}, "exit 3"), 4);
  EXPECT_TRUE(contains(
      output_,
      "failed    exit status 3; rank 1: killed; its last recorded step is 5; rank 0: RuntimeError: connection"))
      << output_;
  EXPECT_EQ(cell_.at("verdict"), "crashed");
  EXPECT_EQ(cell_.at("arms").at("after").at("metrics").at("memory.peak_bytes").at("value"), 1000);
  EXPECT_EQ(watch({}, "kill -SEGV $$"), 4);
  EXPECT_TRUE(contains(output_, "SIGSEGV")) << output_;
  EXPECT_EQ(watch({}, "", {"--name", "mine"}), 5);
  EXPECT_EQ(cell_.at("id"), "mine");
}

TEST_F(Watch, AProgramThatHangsIsEndedAndSaysWhereItStood) {
  Json one = process(0, 1, 1000);
  one["state"] = "running";
  one["where"] = "in backward of step 6, for 4 s, at train.py:3 in main";
  EXPECT_EQ(watch({one}, "sleep 600", {"--timeout", "1.5"}), 124);
  EXPECT_TRUE(contains(output_, "failed    it took longer than 1.5 s")) << output_;
  EXPECT_TRUE(contains(output_, "stood     rank 0: in backward of step 6, for 4 s, at train.py:3 in main")) << output_;
  EXPECT_EQ(cell_.at("verdict"), "timeout");
}

TEST_F(Watch, AProgramWithoutStepsOrWithoutPyTorchIsNamedAsSuch) {
  EXPECT_EQ(watch({}), 5);
  EXPECT_TRUE(contains(output_, "no process of the program imported PyTorch")) << output_;
  EXPECT_EQ(cell_.at("verdict"), "inconclusive");
  EXPECT_EQ(watch({{{"schema", "fp8lab.watch/1"}, {"pid", 1}, {"state", "started"}}}), 5);
  EXPECT_TRUE(contains(output_, "no step ended: ")) << output_;
}

TEST_F(Watch, OfTwoProcessesOfOneRankTheOneWithStepsCounts) {
  Json launcher = process(0, 1, 99999), rank = process(0, 1, 1000);
  launcher["steps"] = 0;
  launcher["pid"] = 7;
  EXPECT_EQ(watch({launcher, rank}), 0);
  EXPECT_EQ(cell_.at("arms").at("after").at("metrics").at("memory.peak_bytes").at("value"), 1000);
}

TEST_F(Watch, OfTwoProcessesOfOneRankThatTrainedBothFindingsCount) {
  Json first = process(0, 1, 1000), second = process(0, 1, 3000);
  first["findings"] = Json::array({finding("still", "", "1 of 3 weights have not moved", 1)});
  second["pid"] = 7;
  second["steps"] = 6;
  EXPECT_EQ(watch({first, second}), 1) << output_;
  EXPECT_TRUE(contains(output_, "sh: 6 steps on 1 rank")) << output_;
  EXPECT_TRUE(contains(output_, "  others    rank 0: 1 more process trained, whose figures are not shown\n"))
      << output_;
  second["steps"] = 5;
  EXPECT_EQ(watch({first, second}), 1);
  EXPECT_EQ(cell_.at("arms").at("after").at("metrics").at("memory.peak_bytes").at("value"), 3000)
      << "the lower pid decides";
}

TEST_F(Watch, WhatAnInstrumentThatFailedDidNotSeeIsNotFoundToBeSound) {
  Json zero = process(0, 2, 1000), one = process(1, 2, 500);
  one["failed"] =
      Json::array({finding("failed", "parity", "parity: NotImplementedError: no kernel (step 1, before_update)", 0)});
  EXPECT_EQ(watch({zero, one}), 5) << output_;
  EXPECT_TRUE(
      contains(output_, "  failed    parity: NotImplementedError: no kernel (step 1, before_update) (rank 1 of 2)\n"))
      << output_;
  EXPECT_TRUE(contains(output_, "  found     nothing in what was measured\n")) << output_;
  EXPECT_EQ(cell_.at("verdict"), "inconclusive");
  EXPECT_TRUE(contains(cell_.at("reason"), "NotImplementedError")) << cell_.at("reason");
  EXPECT_TRUE(gate("parity.weights_moved").is_null()) << "a weight of rank 1 may stay";
  EXPECT_EQ(gate("memory.growth_bytes").at("pass"), true);
  one["findings"] = Json::array({finding("not_finite", "", "gradients are not finite since step 1: w", 1)});
  EXPECT_EQ(watch({zero, one}), 1) << output_;
  EXPECT_EQ(gate("parity.gradients_not_finite").at("pass"), false);
  Json lost = process(0, 1, 1000);
  lost["state"] = "error";
  lost["error"] = "while results were written: OSError: no space";
  EXPECT_EQ(watch({lost}), 5) << output_ << "the program itself ended with status 0";
  EXPECT_TRUE(contains(output_, "  failed    while results were written: OSError: no space\n")) << output_;
}

TEST_F(Watch, RanksWithoutFiguresAreMissed) {
  Json zero = process(0, 4, 1000), one = process(1, 4, 500), two = process(2, 4, 9000);
  two["steps"] = 0;
  EXPECT_EQ(watch({zero, one, two}), 5) << output_;
  EXPECT_TRUE(contains(output_, "  missing   ranks 2, 3 of 4 left no figures\n")) << output_;
  EXPECT_TRUE(contains(output_, "figures of rank 0, the worst")) << output_ << "rank 2 has none";
  EXPECT_EQ(cell_.at("verdict"), "inconclusive");
  for (Json* each : {&zero, &one})
    (*each)["findings"] = Json::array({finding("still", "", "1 weight has not moved", 1)});
  EXPECT_EQ(watch({zero, one}), 1);
  EXPECT_TRUE(contains(output_, "FOUND     1 weight has not moved (ranks 0, 1 of 4)")) << output_;
  for (Json* each : {&zero, &one}) {
    (*each)["on_this_host"] = 2;
    (*each)["findings"] = Json::array();
  }
  EXPECT_EQ(watch({zero, one}), 0) << output_ << "the other two are on another host";
  EXPECT_EQ(watch({zero}), 5) << output_;
  EXPECT_TRUE(contains(output_, "  missing   1 of the 2 ranks on this host left no figures\n")) << output_;
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK"}) ::setenv(name, name[0] == 'W' ? "2" : "0", 1);
  EXPECT_EQ(watch({zero}), 0) << output_ << "each rank has an fp8lab of its own";
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK"}) ::unsetenv(name);
}

TEST_F(Watch, TensorsThatNoRankRecordedAreMissed) {
  const std::string folder = (directory_ / "values").string();
  EXPECT_EQ(watch({process(0, 1, 1000)}, "", {"--values", folder}), 5) << output_;
  EXPECT_TRUE(contains(output_, "  failed    values: no rank left a file in " + folder + "\n")) << output_;
  EXPECT_EQ(
      watch({process(0, 1, 1000)}, "mkdir -p " + folder + "; echo > " + folder + "/rank-0.tsv", {"--values", folder}),
      0)
      << output_;
  EXPECT_EQ(watch({process(0, 1, 1000)}, "", {"--values", folder + "/rank-0.tsv"}), 2) << output_;
  EXPECT_FALSE(contains(output_, "model")) << "the program did not run";
}

// torchrun starts each rank in a session of its own, which signals to torchrun's process group do not reach.
class WatchedRank : public Watch {
 protected:
  WatchedRank() {
    std::filesystem::create_directory(directory_ / "tmp");
    ::setenv("TMPDIR", (directory_ / "tmp").c_str(), 1);
    sample::write(directory_ / "launch.sh",
                  "trap '' TERM\nsetsid sleep 600 > /dev/null 2>&1 &\necho $! > pid\n"
                  "echo started\n[ \"$1\" = ends ] || wait\n");
  }
  ~WatchedRank() override { ::unsetenv("TMPDIR"); }

  std::vector<std::string> words(const std::string& mode) const {
    return {"watch", "-o", out(), "--", "/bin/sh", "launch.sh", mode};
  }
  bool rank_lives() const {
    const std::string state =
        sample::read("/proc/" + std::to_string(std::stoi(sample::read(directory_ / "pid"))) + "/stat");
    return !state.empty() && !contains(state, ") Z ");
  }
};

TEST_F(WatchedRank, EndsWithTheProgram) {
  sample::Process program(words("ends"), directory_.string());
  EXPECT_EQ(program.finish(), 5) << program.output;
  EXPECT_FALSE(rank_lives());
}

TEST_F(WatchedRank, EndsAtTheSecondSignal) {
  sample::Process program(words("waits"), directory_.string());
  program.read_until("started");
  program.signal(SIGTERM);
  ::usleep(200'000);
  EXPECT_TRUE(rank_lives()) << "the first signal is for the launcher";
  program.signal(SIGTERM);
  EXPECT_EQ(program.finish(), 128 + SIGTERM) << program.output;
  EXPECT_FALSE(rank_lives());
}

TEST_F(WatchedRank, EndsWithAProgramThatIsKilled_ItsFilesEndWithTheNextRun) {
  sample::Process program(words("waits"), directory_.string());
  program.read_until("started");
  program.signal(SIGKILL);
  EXPECT_EQ(program.finish(), -SIGKILL);
  for (int tries = 0; rank_lives() && tries < 500; ++tries) ::usleep(20'000);
  EXPECT_FALSE(rank_lives());
  EXPECT_FALSE(std::filesystem::is_empty(directory_ / "tmp"));
  EXPECT_EQ(watch({process(0, 1, 1000)}), 0) << output_ << errors_;
  EXPECT_TRUE(std::filesystem::is_empty(directory_ / "tmp"));
}

TEST_F(Watch, JsonOnStandardOutputIsResultsAlone) {
  EXPECT_EQ(watch({process(0, 1, 1000)}, "echo from the program", {"--json"}), 0);
  EXPECT_EQ(Json::parse(output_).at("cells").size(), 1U);
  EXPECT_TRUE(contains(errors_, "from the program"));
  EXPECT_TRUE(contains(errors_, "found     nothing"));
}

TEST_F(Watch, ResultsAreComparedAsThoseOfRun) {
  EXPECT_EQ(watch({process(0, 1, 1000)}), 0);
  sample::write(directory_ / "before.json", sample::read(directory_ / "out/results.json"));
  EXPECT_EQ(watch({process(0, 1, 1001)}), 0);
  sample::Process compare({"compare", (directory_ / "before.json").string(), out()}, directory_.string());
  EXPECT_EQ(compare.finish(), 1);
  EXPECT_TRUE(contains(compare.output, "after memory.peak_bytes")) << compare.output;
  const std::string results = sample::read(directory_ / "out/results.json");
  EXPECT_EQ(sample::schema_violations(results_schema(), results), std::vector<std::string>{});
}

/// What a rank leaves whose model has a Hugging Face config.
Json llama(int world, const Json& keys, const Json& differs = Json::array()) {
  Json out = process(0, world, 100e6);
  out["trained"] = {{"schema", "fp8lab.model/1"},
                    {"model", "LlamaForCausalLM"},
                    {"config",
                     {{"model_type", "llama"},
                      {"num_hidden_layers", 2},
                      {"hidden_size", 256},
                      {"num_attention_heads", 4},
                      {"intermediate_size", 688},
                      {"max_position_embeddings", 512},
                      {"vocab_size", 1000}}},
                    {"unknown", ""},
                    {"keys", keys},
                    {"differs", differs}};
  return out;
}

const Json kKeysOnHost{{"device", "cpu"},
                       {"model.batch", 2},
                       {"model.seq", 256},
                       {"training.param_dtype", "f32"},
                       {"training.master_weights", "none"},
                       {"training.moments", "f32"}};

TEST_F(Watch, ThePlanOfAProgramHasItsKeysAndStandsBesideWhatWasMeasured) {
  EXPECT_EQ(watch({llama(1, kKeysOnHost, {"it computes under autocast"})}), 0);
  EXPECT_EQ(plan(), 0) << output_ << errors_;
  EXPECT_TRUE(contains(output_, "LlamaForCausalLM, watched for 5 steps over 1 rank on cpu")) << output_;
  EXPECT_TRUE(contains(output_, "measured 95.4 MiB (")) << output_;
  EXPECT_TRUE(contains(output_, "differs   it computes under autocast")) << output_;
  EXPECT_TRUE(contains(output_, "2 layers, hidden 256, vocabulary 1000; 2 sequences of 256 tokens")) << output_;
  EXPECT_EQ(plan({"--json"}), 0);
  const Json arm = Json::parse(output_).at(0).at("arms").at("after");
  EXPECT_EQ(arm.at("measured").at("memory.peak_bytes"), 100000000);
  EXPECT_TRUE(arm.at("figures_of").get<std::string>().starts_with("torch@")) << arm;
  EXPECT_TRUE(arm.at("predicted").contains("memory.peak_bytes")) << arm;
  EXPECT_EQ(Json::parse(output_).at(0).at("differs"), Json::array({"it computes under autocast"}));
}

// A prediction with other keys is not compared with what the program needed.
TEST_F(Watch, ThePlanOfAChangedProgramIsNotComparedWithWhatWasMeasured) {
  EXPECT_EQ(watch({llama(1, kKeysOnHost)}), 0);
  EXPECT_EQ(plan({"--set", "model.batch=4"}), 0) << output_ << errors_;
  EXPECT_TRUE(contains(output_, "measured 95.4 MiB; the rows below have other keys")) << output_;
  EXPECT_EQ(plan({"--json", "--set", "model.batch=4"}), 0);
  EXPECT_FALSE(Json::parse(output_).at(0).at("arms").at("after").contains("measured")) << output_;
}

TEST_F(Watch, WhatIsAskedForReplacesTheProgramsOwnRanksAndDevice) {
  EXPECT_EQ(watch({llama(1, kKeysOnHost)}), 0);
  EXPECT_EQ(plan({"--gpu", "h100", "--ranks", "1,8", "--set", "model.batch=4"}), 0) << output_ << errors_;
  EXPECT_TRUE(contains(output_, "measured 95.4 MiB; the rows below have other keys, ranks, another device")) << output_;
  EXPECT_TRUE(contains(output_, "Over 8 ranks")) << output_;
  EXPECT_TRUE(contains(output_, "4 sequences of 256 tokens")) << output_;
}

TEST_F(Watch, OptionsThatChooseCellsAreRefused) {
  EXPECT_EQ(watch({llama(1, kKeysOnHost)}), 0);
  for (const auto& [option, value] : {std::pair{"-d", "cpu"}, {"-f", "llama"}, {"--sample", "1"}}) {
    EXPECT_EQ(plan({option, value}), 2) << option;
    EXPECT_TRUE(contains(errors_, "--device, --filter and --sample choose cells of files")) << errors_;
  }
}

TEST_F(Watch, AModelThatIsNotKnownIsNamedByTheUser) {
  Json nameless = llama(1, kKeysOnHost);
  nameless["trained"]["config"] = nullptr;
  nameless["trained"]["unknown"] = "Net has no Hugging Face config";
  EXPECT_EQ(watch({nameless}), 0);
  EXPECT_EQ(plan(), 2);
  EXPECT_TRUE(contains(errors_, "model.json: Net has no Hugging Face config; name its model by --model")) << errors_;
  EXPECT_EQ(plan({"--model", "llama2-7b"}), 0) << errors_;
  EXPECT_TRUE(contains(output_, "llama2-7b: 32 layers")) << output_;
}

TEST_F(Watch, AModelFileThatNoProgramLeftIsRefused) {
  EXPECT_EQ(watch({process(0, 1, 1000)}), 0);
  EXPECT_EQ(plan(), 2);
  EXPECT_TRUE(contains(errors_, "model.json: no such file")) << errors_;
  EXPECT_EQ(watch({llama(1, {{"model.batch", "many"}})}), 0);
  EXPECT_EQ(plan(), 2);
  EXPECT_TRUE(contains(errors_, "model.batch must be")) << errors_;
  for (const char* text : {"", "[]", R"({"schema": "fp8lab.model/2"})", R"({"schema": "fp8lab.model/1"})"}) {
    sample::write(directory_ / "out/model.json", text);
    EXPECT_EQ(plan(), 2);
    EXPECT_TRUE(contains(errors_, "model.json: ")) << errors_;
  }
}

TEST_F(Watch, BadUsageExitsTwo) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"watch"},
                                             {"watch", "--measure", "speed", "--", "true"},
                                             {"watch", "--steps", "0:3", "--", "true"},
                                             {"watch", "--steps", "5:3", "--", "true"},
                                             {"watch", "--steps", "a", "--", "true"},
                                             {"watch", "--timeout", "-1", "--", "true"}}) {
    sample::Process program(words, directory_.string());
    EXPECT_EQ(program.finish(), 2) << program.output << program.errors;
  }
  ::setenv("FP8LAB_WORKER", directory_.string().c_str(), 1);
  sample::Process program({"watch", "-o", out(), "--", "true"}, directory_.string());
  EXPECT_EQ(program.finish(), 2);
  EXPECT_TRUE(contains(program.errors, "FP8LAB_WORKER")) << program.errors;
}

}  // namespace
}  // namespace fp8lab
