#include "harness/subjects/scored/scored_values.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "core/check.h"
#include "harness/run/fake_process.h"

// Values that a worker leaves in files, scored without a worker.
namespace fp8lab {
namespace {

class ScoredValues : public ::testing::Test {
 protected:
  ScoredValues() {
    sample::write(directory_ / "cell.json", R"({"ranks": 2, "sharded": true, "has_ranks": true})");
    for (const char* run : {"arm", "bf16", "after"})
      for (int rank = 0; rank < 2; ++rank) {
        const std::string end = std::to_string(rank) + ".f32";
        sample::write(directory_ / run / ("rank-" + std::to_string(rank) + ".json"), description(rank));
        put(run, "losses-" + end, {3.0f, rank == 0 ? 1.0f : 2.0f});
        put(run, "output-" + end, {1.0f, 2.0f});
        put(run, "initial-" + end, {1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f});
        put(run, "weights-" + end, {1.5f, 2.0f, 3.5f, 4.0f, 5.5f, 6.5f});
        put(run, "gradients-" + end, {0.5f, 0.25f, 1.0f});
      }
  }

  static std::string description(int rank) {
    const std::string own = rank == 0 ? R"("begin": 0, "end": 2)" : R"("begin": 2, "end": 4)";
    const std::string other = rank == 0 ? R"("begin": 0, "end": 1)" : R"("begin": 1, "end": 2)";
    return R"({"gathered_equals_unsharded": true, "tensors": [{"name": "w", "elements": 4, "rows": 2, "gradient": 2, )" +
           own + R"(}, {"name": "b", "elements": 2, "rows": 1, "gradient": 1, )" + other + "}]}";
  }

  void put(const std::string& run, const std::string& name, const std::vector<float>& values) {
    std::ofstream file(directory_ / run / name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(sizeof(float) * values.size()));
  }

  std::optional<double> metric(const std::string& name) {
    return score_values(directory_.string()).metrics.at(name).value;
  }

  std::string reason(const std::string& name) { return score_values(directory_.string()).metrics.at(name).reason; }

  sample::TemporaryDirectory directory_;
};

TEST_F(ScoredValues, EqualValuesHaveNoNoiseAndAreEqualBitForBit) {
  const ArmResult result = score_values(directory_.string());
  EXPECT_EQ(result.losses, (std::vector<double>{3.0, 1.5}));
  EXPECT_EQ(result.metrics.at("parity.loss_gap").value, 0.0);
  EXPECT_EQ(result.metrics.at("parity.weights_moved").value, 1.0);
  EXPECT_EQ(result.metrics.at("parity.shards_moved").value, 1.0);
  EXPECT_EQ(result.metrics.at("parity.ranks_equal").value, 1.0);
  EXPECT_EQ(result.metrics.at("parity.gathered_equals_unsharded").value, 1.0);
  EXPECT_EQ(result.metrics.at("parity.bitwise_equal").value, 1.0);
  EXPECT_FALSE(result.metrics.at("parity.grad_sqnr_db").value.has_value());
  EXPECT_EQ(result.noise.size(), 5u) << "output, and gradient and weight of two tensors";
}

TEST_F(ScoredValues, OneValueOfOneRankShowsInItsMetric) {
  put("arm", "gradients-1.f32", {0.5f, 0.25f, 1.1f});
  EXPECT_NEAR(metric("parity.grad_sqnr_db").value(), 10 * std::log10((2 * (0.25 + 0.0625 + 1.0)) / 0.01), 1e-5);
  EXPECT_EQ(metric("parity.bitwise_equal"), 0.0);
  put("arm", "weights-1.f32", {1.5f, 2.0f, 3.5f, 4.0f, 5.5f, 6.25f});
  EXPECT_EQ(metric("parity.ranks_equal"), 0.0);
  put("arm", "losses-1.f32", {3.0f, 5.0f});
  EXPECT_EQ(metric("parity.loss_gap"), 1.0);
}

TEST_F(ScoredValues, GradientsWithTheSameWeightsAreScoredByTensor) {
  EXPECT_FALSE(score_values(directory_.string()).metrics.contains("parity.same_weights_grad_sqnr_db"));
  for (int rank = 0; rank < 2; ++rank) {
    std::string text = description(rank);
    sample::write(directory_ / "arm" / ("rank-" + std::to_string(rank) + ".json"),
                  text.replace(0, 1, R"({"input_gradient": 2, )"));
    for (const char* of : {"own", "bf16"}) {
      const std::string end = std::to_string(rank) + ".f32";
      put("arm", std::string(of) + "_pass_output-" + end, {1.0f, 2.0f});
      put("arm", std::string(of) + "_pass_gradients-" + end, {3.0f, 4.0f, 1.0f, 1.0f, 2.0f});
    }
  }
  EXPECT_FALSE(metric("parity.same_weights_grad_sqnr_db"));
  EXPECT_EQ(reason("parity.same_weights_grad_sqnr_db"), "no tensor has noise");
  // The second rank's rows of w, and its input: of w both ranks' rows count.
  put("arm", "own_pass_gradients-1.f32", {3.0f, 4.5f, 1.0f, 1.0f, 4.0f});
  EXPECT_NEAR(metric("parity.same_weights_grad_sqnr_db").value(), 10 * std::log10(10.0 / 4.0), 1e-5);
  EXPECT_EQ(reason("parity.same_weights_grad_sqnr_db"), "input has the least");
  put("arm", "own_pass_gradients-0.f32", {std::numeric_limits<float>::quiet_NaN(), 4.0f, 1.0f, 1.0f, 2.0f});
  EXPECT_TRUE(std::isnan(metric("parity.same_weights_grad_sqnr_db").value()));
  EXPECT_EQ(reason("parity.same_weights_grad_sqnr_db"), "w: a value is not finite");
  for (const char* name : {"own_pass_gradients-0.f32", "own_pass_gradients-1.f32"})
    put("arm", name, {3.0f, 4.0f, 1.0f, 1.0f, 2.0f});
  put("arm", "bf16_pass_gradients-1.f32", {std::numeric_limits<float>::infinity(), 4.0f, 1.0f, 1.0f, 2.0f});
  EXPECT_FALSE(metric("parity.same_weights_grad_sqnr_db"));
  EXPECT_EQ(reason("parity.same_weights_grad_sqnr_db"), "w: a value of BF16's is not finite");
  put("arm", "own_pass_gradients-0.f32", {3.0f});
  EXPECT_THROW(score_values(directory_.string()), Error);
}

TEST_F(ScoredValues, APassIsComparedWithNewlyBuiltLayersAndWithOneRank) {
  const auto fault = [&] { return reason("parity.twin_faults"); };
  EXPECT_EQ(fault(), "the worker recorded no plain twin");
  sample::write(directory_ / "cell.json",
                R"({"ranks": 2, "sharded": true, "has_ranks": true, "shards": 2, "micro_batches": 1,
                "in_f32": false, "reduced_in_f32": false, "sums_loss": false, "why_not_joined": ""})");
  for (int rank = 0; rank < 2; ++rank) {
    std::string text = description(rank);
    sample::write(directory_ / "arm" / ("rank-" + std::to_string(rank) + ".json"),
                  text.replace(0, 1, R"({"input_gradient": 1, )"));
    for (const char* of : {"own", "again"}) {
      const std::string end = std::to_string(rank) + ".f32";
      put("arm", std::string(of) + "_pass_output-" + end, {1.0f, 2.0f});
      put("arm", std::string(of) + "_pass_gradients-" + end, {3.0f, 4.0f, 1.0f, 2.0f});
    }
  }
  EXPECT_EQ(metric("parity.twin_faults"), 0.0);
  EXPECT_EQ(metric("parity.twin_tensors"), 8.0) << "each rank has the output, two gradients and the input's";
  put("arm", "again_pass_gradients-1.f32", {3.0f, 4.0f, 1.0f, 2.5f});
  EXPECT_EQ(metric("parity.twin_faults"), 1.0);
  EXPECT_EQ(fault().find("gradient input, rank 1, after the last step: 1 of 1 values differ"), 0u) << fault();
  put("arm", "again_pass_gradients-1.f32", {3.0f, 4.0f, 1.0f, 2.0f});

  for (const char* of : {"joined", "exact"}) {
    put("arm", std::string(of) + "_outputs-0.f32", {1.0f, 2.0f, 1.0f, 2.0f});
    put("arm", std::string(of) + "_gradients-0.f32", {3.0f, 4.0f, 3.0f, 4.0f, 1.0f, 1.0f});
  }
  EXPECT_EQ(metric("parity.twin_faults"), 0.0);
  EXPECT_EQ(metric("parity.twin_tensors"), 12.0) << "and the outputs of both ranks, and two unsharded gradients";
  for (const char* of : {"joined", "exact"})
    put("arm", std::string(of) + "_gradients-0.f32", {3.0f, 4.0f, 1.5f, 2.0f, 1.0f, 1.0f});
  EXPECT_EQ(metric("parity.twin_faults"), 1.0) << "the second rank's rows are doubled";
  EXPECT_EQ(fault().find("gradient w, after the last step: "), 0u) << fault();
  put("arm", "joined_gradients-0.f32", {3.0f, 4.0f, std::numeric_limits<float>::quiet_NaN(), 4.0f, 1.0f, 1.0f});
  EXPECT_EQ(fault(), "gradient w, after the last step: a value is not finite");
}

TEST_F(ScoredValues, NormsOfGradientsAndUpdatesAreRelativeToBf16) {
  for (const char* name : {"gradients-0.f32", "gradients-1.f32"}) put("arm", name, {1.0f, 0.5f, 2.0f});
  put("arm", "weights-0.f32", {2.0f, 2.0f, 4.0f, 4.0f, 6.0f, 7.0f});
  EXPECT_DOUBLE_EQ(metric("parity.grad_norm_ratio").value(), 2.0);
  EXPECT_DOUBLE_EQ(metric("parity.update_norm_ratio").value(), 2.0);
}

TEST_F(ScoredValues, ShardsThatStayAndValuesThatAreNotFiniteAreFound) {
  for (const char* name : {"weights-0.f32", "weights-1.f32"}) put("arm", name, {1.5f, 2.0f, 3.0f, 4.0f, 5.5f, 6.5f});
  EXPECT_EQ(metric("parity.weights_moved"), 1.0);
  EXPECT_EQ(metric("parity.shards_moved"), 0.5) << "only the second rank's rows of w";
  EXPECT_EQ(reason("parity.weights_moved"), "");
  EXPECT_EQ(reason("parity.shards_moved"), "not moved: w");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const char* name : {"weights-0.f32", "weights-1.f32"}) put("arm", name, {nan, 2.0f, 3.0f, 4.0f, 5.5f, 6.5f});
  EXPECT_TRUE(std::isnan(metric("parity.ranks_equal").value()));
  EXPECT_TRUE(std::isnan(metric("parity.weight_sqnr_db").value()));
  EXPECT_EQ(metric("parity.weights_moved"), 0.5);
  EXPECT_EQ(reason("parity.weights_moved"), "not moved: w (not finite)");
}

TEST_F(ScoredValues, FilesThatDoNotFitTheirDescriptionAreRefused) {
  put("arm", "weights-0.f32", {1.0f});
  EXPECT_THROW(score_values(directory_.string()), Error);
  std::filesystem::remove(directory_ / "arm/weights-0.f32");
  EXPECT_THROW(score_values(directory_.string()), Error);
}

TEST_F(ScoredValues, AShardThatEndsBeforeItBeginsIsRefused) {
  std::string text = description(1);
  text.replace(text.find(R"("end": 4)"), 8, R"("end": 1)");
  sample::write(directory_ / "arm/rank-1.json", text);
  EXPECT_THROW(score_values(directory_.string()), Error);
}

TEST_F(ScoredValues, AModelWithoutWeightsHasMovedNone) {
  for (const char* run : {"arm", "bf16", "after"})
    for (const char* rank : {"0", "1"}) {
      sample::write(directory_ / run / (std::string("rank-") + rank + ".json"), R"({"tensors": []})");
      for (const char* kind : {"initial-", "weights-", "gradients-"}) put(run, std::string(kind) + rank + ".f32", {});
    }
  EXPECT_EQ(metric("parity.weights_moved"), 0.0);
  EXPECT_EQ(reason("parity.weights_moved"), "there are no weights");
}

}  // namespace
}  // namespace fp8lab
