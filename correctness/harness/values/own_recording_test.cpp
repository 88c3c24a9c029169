#include "harness/values/own_recording.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "core/check.h"
#include "harness/scenario/scenario.h"
#include "harness/temporary_directory.h"
#include "harness/values/recordings.h"

namespace fp8lab {
namespace {

using sample::compare_recordings;
using sample::Recording;

class OwnRecordingTest : public ::testing::Test {
 protected:
  OwnRecordingTest() {
    cell_.scenario = cell_.id = "recorded";
    cell_.device = "cpu";
    cell_.model.layers = 2;
    cell_.model.hidden = 64;
    cell_.model.heads = 2;
    cell_.model.ffn = 96;
    cell_.model.seq = 16;
    cell_.training.steps = 2;
    cell_.training.optimizer = "adam";
    cell_.training.recipe = "current";
  }
  ~OwnRecordingTest() override {
    ::unsetenv(kValuesVariable);
    ::unsetenv(kValuesStepsVariable);
  }

  Recording record(Arm arm) {
    const std::string run = "run-" + std::to_string(runs_++);
    ::setenv(kValuesVariable, (directory_ / run).c_str(), 1);
    with_recording([](const CellConfig&, Arm) -> ArmResult { throw Error("measured"); })(cell_, arm);
    return sample::read_recording(directory_ / run / name(arm));
  }

  sample::TemporaryDirectory directory_;
  CellConfig cell_;
  int runs_ = 0;
};

TEST_F(OwnRecordingTest, EqualRuns_HaveEqualBits_OnEveryRank) {
  cell_.ranks = 2;
  const Recording one = record(Arm::kAfter), other = record(Arm::kAfter);
  ASSERT_EQ(one.size(), 2u);
  const Divergence seen = compare_recordings(one, other);
  EXPECT_FALSE(seen.first.has_value());
  EXPECT_EQ(seen.only_in_one, 0u);
  EXPECT_GT(seen.tensors, 2u * 2u * 2u * 3u);
}

TEST_F(OwnRecordingTest, QuantizedArm_DivergesFromBf16_InTheFirstCast) {
  const Recording bf16 = record(Arm::kBf16), quantized = record(Arm::kAfter);
  const Divergence seen = compare_recordings(bf16, quantized);
  ASSERT_TRUE(seen.first.has_value());
  EXPECT_EQ(seen.first->place, "forward, layers[0]: output");
  EXPECT_GT(seen.first->size, 1e-4);
  EXPECT_NE(seen.first_only.find("forward, layers[0]: cast of "), std::string::npos) << seen.first_only;
}

TEST_F(OwnRecordingTest, OtherSeed_DivergesInTheFirstInput) {
  const Recording one = record(Arm::kAfter);
  cell_.training.seed += 1;
  const Divergence seen = compare_recordings(one, record(Arm::kAfter));
  ASSERT_TRUE(seen.first.has_value());
  EXPECT_EQ(seen.first->place, "forward, layers[0]: input");
}

TEST_F(OwnRecordingTest, OnlyTheWantedSteps_AreRecorded) {
  ::setenv(kValuesStepsVariable, "2:2", 1);
  const Recording recorded = record(Arm::kAfter);
  for (const RecordedTensor& tensor : recorded.at(0).tensors) EXPECT_EQ(tensor.step, 2);
  EXPECT_EQ(recorded.at(0).incomplete, "");
}

TEST_F(OwnRecordingTest, DeviceWithoutValues_IsRefused_AndNoFolderMeasures) {
  cell_.device = "meta";
  EXPECT_THROW(record(Arm::kAfter), Error);
  ::unsetenv(kValuesVariable);
  const MeasureArm measured = with_recording([](const CellConfig&, Arm) {
    ArmResult out;
    out.reason = "measured";
    return out;
  });
  EXPECT_EQ(measured(cell_, Arm::kAfter).reason, "measured");
}

}  // namespace
}  // namespace fp8lab
