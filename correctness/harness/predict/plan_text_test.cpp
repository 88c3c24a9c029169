#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "harness/cli/plan/plan_tables.h"
#include "harness/cli/plan/planned.h"
#include "harness/predict/own_program.h"
#include "harness/temporary_directory.h"

// What `fp8lab plan` prints: what it claims of a page's rows holds of the rows, and nothing is dropped in silence.
namespace fp8lab {
namespace {

using Json = nlohmann::json;
using sample::TemporaryDirectory;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

struct Printed {
  int code = 0;
  std::string text;
};

Printed printed(const PlanRequest& request, const Program& program = own_program()) {
  ::testing::internal::CaptureStdout();
  const int code = plan_command(request, program);
  return {code, ::testing::internal::GetCapturedStdout()};
}

std::string error_of(const PlanRequest& request) {
  try {
    printed(request);
  } catch (const Error& error) {
    ::testing::internal::GetCapturedStdout();
    return error.what();
  }
  return "";
}

PlanRequest of_model(const std::string& gpu, int ranks, std::vector<std::string> settings = {},
                     std::vector<std::string> recipes = {}) {
  PlanRequest out;
  out.model = "llama3-8b";
  out.gpu = gpu;
  out.ranks = {ranks};
  out.settings = std::move(settings);
  out.recipes = std::move(recipes);
  return out;
}

Json json_of(PlanRequest request, const Program& program = own_program()) {
  request.json = true;
  return Json::parse(printed(request, program).text);
}

Json after_arm(const PlanRequest& request) { return json_of(request)[0]["arms"]["after"]; }

/// A request to plan a scenario file of 8192 tokens, with `more` keys and expectations.
PlanRequest of_file(const TemporaryDirectory& folder, const std::string& more, const std::string& training = "") {
  const std::string file = (folder / "planned.yaml").string();
  std::ofstream(file) << "version: 1\nname: planned\ntitle: A cell to plan\ndevice: meta\n"
                         "model: {layer: linear, hidden: 4096, seq: 8192}\ntraining: {recipe: delayed"
                      << training << "}\nmeasure: [memory]\n"
                      << more;
  PlanRequest out;
  out.selection.paths = {file};
  return out;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// The program with a PyTorch that needs 20 GiB more than the built-in runtime, and has no figures under delayed
/// scaling.
Program with_torch() {
  Program out = own_program();
  out.torch = [](const CellConfig& cell, Arm arm) {
    if (cell.training.recipe == "delayed") fail("no figures of PyTorch under recipe delayed");
    ReleaseFigures figures{cell.training.recipe == "bf16" ? "torch@2.99" : "torchao@0.99", estimate(cell, arm)};
    figures.estimate.figures["memory.peak_bytes"] += 20.0 * 1024 * 1024 * 1024;
    return figures;
  };
  return out;
}

TEST(AnswerOfAModel, StatesWhatTheBuiltInRuntimeAndPyTorchNeed) {
  const PlanRequest request = of_model("h100", 8, {"quantized_weights=false"}, {"bf16", "delayed", "current"});
  EXPECT_EQ(first_line(printed(request).text),
            "Over 8 ranks of 77.6 GiB each, the built-in runtime fits in all 3 rows by live bytes.");
  const std::string text = printed(request, with_torch()).text;
  EXPECT_EQ(
      first_line(text),
      "Over 8 ranks of 77.6 GiB each, torch@2.99 fits (bf16: 72.2 GiB live), torchao@0.99 fits (current: 67.7 GiB "
      "live), and the built-in runtime fits in all 3 rows by live bytes.");
  EXPECT_TRUE(contains(text, "\n-: no figures of PyTorch under recipe delayed\n")) << text;
}

TEST(AnswerOfAModel, OfLessMemoryThanPyTorchHolds_DoesNotFit) {
  PlanRequest request = of_model("", 8, {}, {"bf16"});
  request.capacity = "60GiB";
  const Printed plan = printed(request, with_torch());
  EXPECT_EQ(plan.code, 1) << "the larger of both needs decides";
  EXPECT_TRUE(
      contains(first_line(plan.text), "each, torch@2.99 does not fit (bf16: 72.2 GiB live), and the built-in runtime "))
      << plan.text;
  EXPECT_TRUE(contains(plan.text, "  the built-in runtime fits 60.0 GiB with 7.8 GiB to spare by live bytes\n"))
      << plan.text;
  EXPECT_TRUE(
      contains(plan.text, "  torch@2.99, FSDP2 in BF16, does not fit 60.0 GiB: its live bytes are 12.2 GiB too much\n"))
      << plan.text;
  const Json arm = json_of(request, with_torch())[0]["arms"]["after"];
  EXPECT_EQ(arm["fits"], false);
  EXPECT_EQ(arm["figures_of"], "own");
  EXPECT_GT(arm["spare_bytes"], 0);
  EXPECT_EQ(arm["pytorch"]["figures_of"], "torch@2.99");
  EXPECT_EQ(arm["pytorch"]["fits"], false);
  EXPECT_LT(arm["pytorch"]["spare_bytes"], 0);
  ASSERT_FALSE(arm["fits_with"].empty());
  for (const Json& fit : arm["fits_with"]) EXPECT_LE(fit["pytorch"]["peak_bytes"], arm["capacity"]);
  EXPECT_FALSE(json_of(request)[0]["arms"]["after"].contains("pytorch"));
}

TEST(AnswerOfAModel, NamesTheCheapestChangeOfAllRows) {
  const std::string answer = printed(of_model("h100", 8, {"batch=2"})).text;
  EXPECT_TRUE(contains(answer, "\nThe cheapest change is training.moments=bf16 in row current.\n")) << answer;
}

TEST(RemediesOfAModel, AreListedOnceWithTheirPriceAndRows) {
  const std::string text = printed(of_model("h100", 8, {"batch=2"})).text;
  const std::string change = "\n  model.batch=1, training.micro_batches=2\n";
  const std::size_t at = text.find(change);
  ASSERT_NE(at, std::string::npos) << text;
  EXPECT_EQ(text.find(change, at + 1), std::string::npos) << "listed once: " << text;
  const std::string list = text.substr(at);
  EXPECT_TRUE(contains(list, "price: time: half a micro-batch; time: twice as many: twice the gathers\n")) << list;
  for (const char* rows :
       {"    54.1 GiB by live bytes: bf16\n", "    49.8 GiB by live bytes: block; block, FP8 weights\n"})
    EXPECT_TRUE(contains(list, rows)) << rows << " in " << list;
}

TEST(RemediesOfAModel, HaveNumericsTimeAndGpusAsPrices) {
  PlanRequest request = of_model("h100", 16);
  request.model = "llama3-70b";
  const std::string text = printed(request).text;
  for (const char* price : {"numerics: Adam's moments are rounded to BF16", "time: every layer's forward runs twice"})
    EXPECT_TRUE(contains(text, price)) << price;
  EXPECT_TRUE(contains(printed(of_model("h100", 8, {"batch=2"})).text, "GPUs: more GPUs"));
  const Json fits = after_arm(request)["fits_with"];
  EXPECT_EQ(fits[0]["changes"][0]["price"], "numerics");
  EXPECT_EQ(fits[0]["changes"][1]["price"], "time");
}

TEST(TableOfAModel, HasDifferencesFromBf16InBytesHeldAndMoved) {
  const PlanRequest request = of_model("h100", 8, {}, {"delayed"});
  const std::string text = printed(request).text;
  EXPECT_TRUE(contains(text, "in brackets the difference from bf16")) << text;
  EXPECT_TRUE(contains(text, " 47.7 (-4.50) ?")) << text;
  EXPECT_TRUE(contains(text, " 13.1 (-11.4) ")) << "FP8 weights are gathered in eight bits: " << text;
  const Json rows = json_of(request);
  const Json of_fp8 = rows[1]["arms"]["after"];
  EXPECT_LT(of_fp8["less_bf16"]["memory.peak_bytes"], 0);
  EXPECT_LT(of_fp8["less_bf16"]["traffic.all_gather_bytes"], 0);
  EXPECT_EQ(of_fp8["less_bf16"]["traffic.reduce_scatter_bytes"], 0);
  // A rank receives 7 of 8 parts of an array.
  EXPECT_EQ(of_fp8["moved_by_rank"]["all_gather_received_bytes"].get<double>() * 8,
            of_fp8["predicted"]["traffic.all_gather_bytes"].get<double>() * 7);
}

// Each of eight ranks that share the experts sends seven of eight parts of its rows to the others.
TEST(TableOfAModel, WithSharedExperts_HasAColumnOfAllToAlls) {
  PlanRequest request = of_model("h100", 16, {"expert_parallel=8"}, {"bf16"});
  request.model = "mixtral-8x7b";
  const std::string text = printed(request).text;
  EXPECT_TRUE(contains(text, " all-to-alls\n")) << text;
  const Json arm = after_arm(request);
  EXPECT_GT(arm["moved_by_rank"]["all_to_all_sent_bytes"].get<double>(), 0);
  EXPECT_EQ(arm["moved_by_rank"]["all_to_all_sent_bytes"].get<double>() * 64,
            arm["predicted"]["traffic.all_to_all_bytes"].get<double>() * 7);
  EXPECT_FALSE(contains(printed(of_model("h100", 8)).text, "all-to-all"));
}

TEST(HelpOfPlan, DefinesCheapestInASentence) {
  EXPECT_TRUE(contains(plan_help(), "The cheapest change is the one with the smallest sum of these costs"))
      << plan_help();
  EXPECT_TRUE(contains(plan_help(), "moments in BF16 3, ")) << plan_help();
  EXPECT_TRUE(contains(plan_help(), "20 for each doubling of the GPUs.")) << plan_help();
}

TEST(AnswerOfAModel, AChangeOfTwoKeysIsTwoChanges) {
  const Json fits = json_of(of_model("h100", 8, {"batch=2"}, {"bf16"}))[0]["arms"]["after"]["fits_with"];
  ASSERT_EQ(fits[0]["changes"].size(), 2u) << fits.dump(2);
  EXPECT_EQ(fits[0]["changes"][0]["key"], "model.batch");
  EXPECT_EQ(fits[0]["changes"][0]["value"], "1");
  EXPECT_EQ(fits[0]["changes"][0]["cost"], "half a micro-batch");
  EXPECT_EQ(fits[0]["changes"][1]["key"], "training.micro_batches");
  EXPECT_EQ(fits[0]["changes"][1]["value"], "2");
  EXPECT_EQ(fits[0]["changes"][1]["cost"], "twice as many: twice the gathers");
}

/// Each fit as the settings that make it: {"model.batch=1", "training.micro_batches=2"}.
std::vector<std::vector<std::string>> fits_of_arm(const Json& arm) {
  std::vector<std::vector<std::string>> out;
  for (const Json& fit : arm["fits_with"]) {
    out.emplace_back();
    for (const Json& change : fit["changes"])
      out.back().push_back(change["key"].get<std::string>() + "=" + change["value"].get<std::string>());
  }
  return out;
}

std::int64_t peak_of(const Json& arm) {
  return arm["capacity"].get<std::int64_t>() - arm["spare_bytes"].get<std::int64_t>();
}

using Settings = std::vector<std::string>;

PlanRequest with(PlanRequest request, const Settings& more) {
  request.settings.insert(request.settings.end(), more.begin(), more.end());
  return request;
}

/// A sequence of 131072 tokens a rank with full recomputation, in delayed scaling.
PlanRequest long_sequence(const Settings& more = {}) {
  PlanRequest out = with(of_model("h100", 64, {"seq=131072", "training.checkpoint=full"}, {"delayed"}), more);
  out.model = "llama3-70b";
  return out;
}

TEST(RepeatedChanges, HalveMicroBatchesUntilTheyFit) {
  for (const int batch : {16, 64}) {
    const std::string number = std::to_string(batch);
    const PlanRequest request = of_model("h100", 8, {"batch=" + number}, {"delayed"});
    const Json arm = after_arm(request);
    const auto fits = fits_of_arm(arm);
    ASSERT_FALSE(fits.empty()) << arm.dump(2);
    EXPECT_EQ(fits[0], (Settings{"model.batch=1", "training.micro_batches=" + number}));
    EXPECT_EQ(arm["fits_with"][0]["changes"][1]["cost"], number + " times as many: " + number + " times the gathers");
    const Json changed = after_arm(with(request, fits[0]));
    EXPECT_EQ(changed["fits"], true);
    EXPECT_EQ(peak_of(changed), arm["fits_with"][0]["peak_bytes"]);
    const Settings less{"model.batch=2", "training.micro_batches=" + std::to_string(batch / 2)};
    EXPECT_EQ(after_arm(with(request, less))["fits"], false) << "the first that fits is reported";
  }
}

TEST(RepeatedChanges, SplitSequencesUntilTheyFit) {
  const Json arm = after_arm(long_sequence());
  const auto fits = fits_of_arm(arm);
  ASSERT_FALSE(fits.empty()) << arm.dump(2);
  EXPECT_EQ(fits[0], (Settings{"context_parallel=8", "training.micro_batches=8"}));
  EXPECT_EQ(arm["fits_with"][0]["changes"][0]["cost"],
            "8 ranks split every sequence: keys and values travel around them");
  const Json changed = after_arm(long_sequence(fits[0]));
  EXPECT_EQ(changed["fits"], true);
  EXPECT_EQ(peak_of(changed), arm["fits_with"][0]["peak_bytes"]);
  EXPECT_EQ(after_arm(long_sequence({"context_parallel=4", "micro_batches=4"}))["fits"], false);
  // Two changes of one key are one, and micro-batches are halved first.
  const auto both = fits_of_arm(after_arm(long_sequence({"batch=4"})));
  ASSERT_FALSE(both.empty());
  EXPECT_EQ(both[0], (Settings{"model.batch=1", "training.micro_batches=32", "context_parallel=8"}));
}

TEST(RepeatedChanges, ThatBreakARuleAreNotOffered) {
  const auto splits = [](const PlanRequest& request) { return contains(printed(request).text, "context_parallel="); };
  ASSERT_TRUE(splits(long_sequence()));
  EXPECT_FALSE(splits(long_sequence({"dropout=0.1"}))) << "masks do not follow tokens to other ranks";
  const auto tried = [](int ranks, const Settings& settings, const char* recipe = "delayed") {
    PlanRequest request = of_model("", ranks, settings, {recipe});
    request.capacity = "1MiB";
    return printed(request).text;
  };
  // Not beyond the ranks, nor beyond two chunks of a sequence for each of them.
  EXPECT_TRUE(contains(tried(12, {}), " context_parallel=4, ")) << tried(12, {});
  EXPECT_TRUE(contains(tried(64, {"seq=2064"}, "bf16"), " context_parallel=8, ")) << tried(64, {"seq=2064"}, "bf16");
  EXPECT_FALSE(contains(tried(64, {"seq=2047"}, "bf16"), "context_parallel="));
  // FP8 products need a multiple of 8 tokens, and a step has at most 65536 micro-batches.
  EXPECT_TRUE(contains(tried(64, {"seq=2064"}), " context_parallel=2, ")) << tried(64, {"seq=2064"});
  const std::string small = tried(64, {"seq=4", "batch=8"});
  EXPECT_TRUE(contains(small, " model.batch=2, ")) << small;
  EXPECT_FALSE(contains(small, "context_parallel=")) << small;
  const std::string many = tried(8, {"batch=16", "micro_batches=32768"});
  EXPECT_TRUE(contains(many, " model.batch=8, ")) << many;
  EXPECT_FALSE(contains(many, "context_parallel=")) << many;
  // A linear layer could be run so, but has no keys and values to exchange.
  TemporaryDirectory folder;
  PlanRequest linear = of_file(folder, "ranks: 4\n");
  linear.capacity = "1MiB";
  EXPECT_FALSE(splits(linear)) << printed(linear).text;
}

TEST(FitsOfAMesh, AreFewerReplicasAndMoreShards) {
  PlanRequest request = of_model("h100", 64, {"mesh=8x8"}, {"bf16"});
  request.model = "llama3-70b";
  request.settings.emplace_back("context_parallel=8");
  const std::string text = printed(request).text;
  EXPECT_TRUE(contains(text, "HSDP, 8 replicas of 8 shards,")) << text;
  EXPECT_TRUE(contains(text,
                       "1 sequence of 8192 tokens a micro-batch of every 8 ranks, which split them: 1024 tokens "
                       "of a sequence on each rank"))
      << text;
  EXPECT_TRUE(contains(text, "  mesh=64\n    price: time: one replica")) << text;
  EXPECT_TRUE(contains(text, "    46.2 GiB by live bytes: ")) << text;
  EXPECT_TRUE(contains(text, ", ranks=128, mesh=8x16\n")) << text;
  request.settings[0] = "mesh=64";
  EXPECT_TRUE(contains(printed(request).text, "; FSDP over all ranks,"));
}

TEST(FitsOfReplicas, AreShards) {
  PlanRequest request = of_model("h100", 8, {"sharding=ddp"}, {"bf16"});
  const std::string text = printed(request).text;
  EXPECT_TRUE(contains(text, "; DistributedDataParallel, all parameters on every rank;")) << text;
  EXPECT_TRUE(contains(text, "  sharding=fsdp\n    price: time: parameters are gathered before each pass")) << text;
}

TEST(FitsOfAMesh, WhatWasTriedIsNamedWhereNothingFits) {
  PlanRequest request = of_model("", 64, {"mesh=8x8"}, {"bf16"});
  request.capacity = "1MiB";
  const std::string text = printed(request).text;
  EXPECT_TRUE(contains(text,
                       "bf16: no change makes it fit; tried: mesh=64, training.moments=bf16, "
                       "training.checkpoint=full, context_parallel=64, up to 4096 ranks\n"))
      << text;
  TemporaryDirectory folder;
  request = of_file(folder, "");
  request.capacity = "1MiB";
  EXPECT_TRUE(contains(printed(request).text,
                       "no change makes it fit; tried: training.quantized_weights=true, "
                       "training.checkpoint=full, up to 64 ranks\n"))
      << printed(request).text;
}

TEST(SettingsOfAModel, AreHonouredOrRefusedByTheirKey) {
  const std::pair<const char*, const char*> cases[] = {
      {"capacity=40GiB", "--capacity"},
      {"arch=blackwell", "--gpu h100 is hopper"},
      {"recipe=current", "choose them by --recipe"},
      {"training.recipe=current", "choose them by --recipe"},
      {"ranks=8", "choose them by --ranks"},
      {"fix=release_attention_tensors", "--model plans only the after arm"},
      {"control=same", "--model plans only the after arm"},
      {"subject=torch", "fp8lab plan FILE --as transformer_engine@2.16"},
      {"versions.after=2.16", "fp8lab plan FILE --as transformer_engine@2.16"},
  };
  for (const auto& [setting, remedy] : cases)
    EXPECT_TRUE(contains(error_of(of_model("h100", 8, {setting})), remedy)) << setting;
  const Json rows = json_of(of_model("h100", 8, {"quantized_weights=true"}, {"delayed"}));
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_TRUE(contains(rows[0]["id"], "quantized_weights=true")) << rows[0]["id"];
  EXPECT_EQ(error_of(of_model("h100", 8, {"arch=hopper"})), "");
}

TEST(GpuWithoutFp8, RunsNoFp8Recipe) {
  const std::string error = error_of(of_model("a100-80gb", 8, {}, {"bf16", "delayed"}));
  EXPECT_TRUE(contains(error, "--recipe delayed: a100-80gb has no FP8 matrix products")) << error;
  EXPECT_EQ(printed(of_model("a100-80gb", 8, {}, {"bf16"})).code, 0);
  TemporaryDirectory folder;
  PlanRequest request = of_file(folder, "");
  request.gpu = "a100-80gb";
  const Printed plan = printed(request);
  EXPECT_EQ(plan.code, 1);
  EXPECT_TRUE(contains(plan.text, "does not run: a100-80gb has no FP8 matrix products\n")) << plan.text;
  const Json arms = json_of(request)[0]["arms"];
  EXPECT_EQ(arms["after"]["fits"], false);
  EXPECT_EQ(arms["after"]["cannot_run"], "a100-80gb has no FP8 matrix products");
  EXPECT_EQ(arms["bf16"]["fits"], true);
  request.gpu = "h100";
  EXPECT_EQ(printed(request).code, 0);
}

TEST(GpuWithoutMxfp8, EmulatesItAsThePageStates) {
  EXPECT_TRUE(contains(printed(of_model("h100", 8, {}, {"mxfp8"})).text, "mxfp8 is emulated: 'hopper' has no MXFP8"));
  EXPECT_FALSE(contains(printed(of_model("b200", 8, {}, {"mxfp8"})).text, "emulated"));
}

TEST(SpareBytes, OfLessThanThreeQuartersOfThePeakAreOfLiveBytes) {
  TemporaryDirectory folder;
  PlanRequest request = of_file(folder, "");
  const double peak = json_of(request)[0]["arms"]["after"]["predicted"]["memory.peak_bytes"];
  const auto with = [&](double capacity) {
    request.capacity = std::to_string(static_cast<std::int64_t>(capacity)) + "B";
    return printed(request).text;
  };
  const char* const kMarks[] = {" to spare by live bytes\n", "blocks of the allocator may need more",
                                "fp8lab run FILE -d meta"};
  for (const char* mark : kMarks) {
    EXPECT_TRUE(contains(with(peak * 1.74), mark)) << mark << with(peak * 1.74);
    EXPECT_FALSE(contains(with(peak * 1.76), mark)) << mark;
  }
  with(peak * 1.74);
  EXPECT_EQ(json_of(request)[0]["arms"]["after"]["reserved_may_exceed_capacity"], true);
  with(peak * 1.76);
  EXPECT_EQ(json_of(request)[0]["arms"]["after"]["reserved_may_exceed_capacity"], false);
}

TEST(SpareBytes, OfALibraryAreShownByNoRunOnMeta) {
  Program library = own_program();
  library.estimated_library = "transformer_engine 2.15 to 2.16";
  PlannedCell cell;
  cell.config.device = "meta";
  cell.config.model = {.layer = "linear", .hidden = 64, .seq = 64};
  EXPECT_EQ(planned(cell, {}, {Arm::kAfter}, own_program()).subject(), "the built-in runtime");
  Capacity of_one_byte;
  of_one_byte.bytes = 1;
  const Planned plan = planned(cell, of_one_byte, {Arm::kAfter}, library);
  EXPECT_EQ(plan.subject(), "transformer_engine 2.15 to 2.16");
  EXPECT_EQ(plan.figures_of(), "transformer_engine 2.15 to 2.16");
  EXPECT_FALSE(plan.arms[0].torch) << "a library's figures are PyTorch's";
  EXPECT_FALSE(plan.arms[0].search);
}

TEST(PageOfAModel, SaysWhoseFiguresTheyAre) {
  const std::string text = printed(of_model("h100", 8)).text;
  EXPECT_TRUE(contains(text, "Figures belong to the built-in runtime")) << text;
  // The sharded parameters are the fifth of the owners.
  EXPECT_TRUE(contains(text, "1.9 GiB parameters")) << text;
}

TEST(GatesOfAScenario, ThatFailSaySoWithTheirLimit) {
  TemporaryDirectory folder;
  const Printed plan = printed(of_file(folder, "expect:\n  - {metric: memory.peak_bytes, at_most: 0.5 of bf16}\n"));
  EXPECT_EQ(plan.code, 1);
  EXPECT_TRUE(contains(plan.text, "Predicted figures of the built-in runtime, on rank 0:\n")) << plan.text;
  EXPECT_TRUE(contains(plan.text, "  after less bf16 ")) << plan.text;
  EXPECT_TRUE(contains(plan.text, "; predictions for the built-in runtime decide 3 of 7 expectations: 1 fail"))
      << plan.text;
  EXPECT_EQ(
      json_of(of_file(
          folder, "expect:\n  - {metric: memory.peak_bytes, at_most: 0.5 of bf16}\n"))[0]["expect"][0]["figures_of"],
      "own");
  EXPECT_TRUE(contains(
      plan.text, "  fails for the built-in runtime: after memory.peak_bytes is at most 0.5 of bf16's: predicted "))
      << plan.text;
  EXPECT_TRUE(contains(plan.text, " B), limit ")) << plan.text;
  EXPECT_TRUE(contains(plan.text, "1 cell, 1 of them run here, ")) << plan.text;
}

}  // namespace
}  // namespace fp8lab
