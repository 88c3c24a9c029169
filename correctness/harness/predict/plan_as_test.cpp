#include <gtest/gtest.h>

#include <string>

#include "harness/cli/plan/planned.h"
#include "harness/predict/own_program.h"
#include "support/paths.h"

// `fp8lab plan --model NAME --as LIBRARY@RELEASE`: the model by the library's memory profile.
namespace fp8lab {
namespace {

std::string planned_as(std::vector<std::string> settings) {
  Program program = own_program();
  program.worker_directory = std::string(paths::kScenarios) + "/../lib/subjects";
  PlanRequest request;
  request.model = "llama3-8b";
  request.gpu = "h100";
  request.ranks = {8};
  request.recipes = {"bf16"};
  request.as = "transformer_engine@2.16";
  request.settings = {"vocabulary=0", "loss=sum", "gather_ahead=false"};
  request.settings.insert(request.settings.end(), settings.begin(), settings.end());
  ::testing::internal::CaptureStdout();
  plan_command(request, program);
  return ::testing::internal::GetCapturedStdout();
}

TEST(PlanOfAModelAsALibrary, WithKeysOfTheProfile_HasTheLibrarysFigures) {
  const std::string text = planned_as({});
  EXPECT_NE(text.find("Figures belong to transformer_engine "), std::string::npos) << text;
  EXPECT_NE(text.find(" fits 77.6 GiB with "), std::string::npos) << text;
  EXPECT_EQ(text.find("the built-in runtime"), std::string::npos) << text;
  EXPECT_EQ(text.find("holds at least"), std::string::npos) << text;
}

TEST(PlanOfAModelAsALibrary, WithKeysThatTheProfileLacks_ListsThemAll) {
  const std::string text = planned_as({"dropout=0.1", "param_dtype=f32", "master_weights=none"});
  EXPECT_NE(text.find("the profile has transformer_layer in form llama, but lacks: "), std::string::npos) << text;
  EXPECT_NE(text.find("model.dropout=0.1 ("), std::string::npos) << text;
  EXPECT_NE(text.find("training.param_dtype=f32 ("), std::string::npos) << text;
}

}  // namespace
}  // namespace fp8lab
