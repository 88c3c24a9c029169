#include "harness/values/divergence.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <random>

#include "core/check.h"
#include "harness/temporary_directory.h"
#include "harness/values/recording.h"
#include "harness/values/sketch.h"

namespace fp8lab {
namespace {

std::vector<float> normal_values(std::uint64_t seed, std::size_t count = 5000) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(count);
  for (float& value : out) value = normal(random);
  return out;
}

/// `values` plus noise of `size` times their norm.
std::vector<float> disturbed(std::vector<float> values, double size, std::uint64_t seed) {
  const std::vector<float> noise = normal_values(seed, values.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] += static_cast<float>(size) * noise[i];
  return values;
}

constexpr int kSteps = 2, kLayers = 4;

/// Forward and backward of some layers, whose values a change of `size` reaches from tensor `planted` on. Every tensor
/// has noise of size `noise`.
std::vector<RecordedTensor> run_of(double noise, std::uint64_t seed, int planted = -1, double size = 0) {
  std::vector<RecordedTensor> out;
  const auto add = [&](int step, const char* phase, int layer, const char* name) {
    const int number = static_cast<int>(out.size());
    std::vector<float> values = normal_values(static_cast<std::uint64_t>(number));
    if (noise > 0) values = disturbed(values, noise, seed + static_cast<std::uint64_t>(number));
    if (planted >= 0 && number >= planted) values = disturbed(values, size, 77);
    out.push_back({.step = step,
                   .phase = phase,
                   .module = "layers." + std::to_string(layer),
                   .name = name,
                   .type = "float32",
                   .shape = "5000",
                   .sketch = sketch_of(values)});
  };
  for (int step = 1; step <= kSteps; ++step) {
    for (int layer = 0; layer < kLayers; ++layer) add(step, "forward", layer, "output");
    for (int layer = kLayers - 1; layer >= 0; --layer) add(step, "backward", layer, "gradient of output");
    for (int layer = 0; layer < kLayers; ++layer) add(step, "optimizer", layer, "updated weight");
  }
  return out;
}

std::string name_of(const RecordedTensor& tensor) { return tensor.phase + ", " + tensor.module + ": " + tensor.name; }

TEST(Sketch, RelativeDifference_OfDisturbedArrays_IsWithinFourDeviations) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed)
    for (const double size : {1e-6, 1e-3, 0.3}) {
      const std::vector<float> a = normal_values(seed), b = disturbed(a, size, seed + 1000);
      double squares = 0, norm_a = 0, norm_b = 0;
      for (std::size_t i = 0; i < a.size(); ++i) {
        const double d = static_cast<double>(a[i]) - b[i];
        squares += d * d;
        norm_a += static_cast<double>(a[i]) * a[i];
        norm_b += static_cast<double>(b[i]) * b[i];
      }
      const double exact = std::sqrt(squares / std::max(norm_a, norm_b));
      EXPECT_NEAR(relative_difference(sketch_of(a), sketch_of(b)) / exact, 1.0, 4 * 0.09) << seed << " " << size;
    }
}

TEST(Sketch, RelativeDifference_OfOneChangedElement_IsItsShare) {
  std::vector<float> a(1 << 21, 1.0f);
  std::vector<float> b = a;  // more rows than signs
  b[(1 << 20) + 77] = 3.0f;
  EXPECT_NEAR(relative_difference(sketch_of(a), sketch_of(b)), 2.0 / std::sqrt(double(1 << 21) + 8), 1e-6);
  EXPECT_EQ(relative_difference(sketch_of(a), sketch_of(a)), 0.0);
}

TEST(Sketch, RelativeDifference_OfNotFiniteValues_IsInfinite) {
  std::vector<float> a = normal_values(1), b = a;
  b[4] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isinf(relative_difference(sketch_of(a), sketch_of(b))));
  EXPECT_EQ(relative_difference(sketch_of(b), sketch_of(b)), 0.0) << "equal bits";
  EXPECT_EQ(relative_difference(sketch_of({}), sketch_of({})), 0.0);
}

TEST(Divergence, PlantedTensor_IsNamedFirst_AtEveryPlace) {
  const Recording a{{0, run_of(1e-5, 100)}, {1, run_of(1e-5, 200)}};
  const Recording again{{0, run_of(1e-5, 300)}, {1, run_of(1e-5, 400)}};
  const int count = static_cast<int>(a.at(0).size());
  for (int planted = 0; planted < count; ++planted) {
    const Recording b{{0, run_of(1e-5, 500)}, {1, run_of(1e-5, 600, planted, 1e-2)}};
    const Divergence seen = compare_recordings(a, b, {{&a, &again}}, 0);
    ASSERT_TRUE(seen.first.has_value()) << planted;
    const RecordedTensor& tensor = a.at(1)[static_cast<std::size_t>(planted)];
    EXPECT_EQ(seen.first->place, name_of(tensor));
    EXPECT_EQ(seen.first->step, tensor.step);
    EXPECT_EQ(seen.first->rank, 1);
    EXPECT_EQ(seen.different, static_cast<std::size_t>(count - planted));
    EXPECT_EQ(seen.tensors, static_cast<std::size_t>(2 * count));
  }
}

TEST(Divergence, EqualRuns_HaveNone_InTwentyPairs) {
  for (std::uint64_t pair = 0; pair < 20; ++pair) {
    const Recording a{{0, run_of(1e-5, 1000 * pair)}}, b{{0, run_of(1e-5, 1000 * pair + 200)}};
    const Recording again{{0, run_of(1e-5, 1000 * pair + 400)}};
    const Divergence seen = compare_recordings(a, b, {{&a, &again}}, 0);
    EXPECT_FALSE(seen.first.has_value()) << pair << ": " << seen.first->place;
    EXPECT_GT(seen.largest_noise, 0.9e-5);
    EXPECT_EQ(compare_recordings(a, a, {}, 0).different, 0u);
  }
}

TEST(Divergence, RecipesThatDifferEverywhere_ShowAPlantedErrorAsARise) {
  const Recording a{{0, run_of(0, 0)}}, b{{0, run_of(0.02, 5)}};
  EXPECT_EQ(compare_recordings(a, b, {}, 0).first->place, name_of(a.at(0).front()));
  EXPECT_FALSE(compare_recordings(a, b, {}, 0).rise.has_value());
  EXPECT_FALSE(compare_recordings(a, b, {}, 0.05).first.has_value()) << "within the tolerance";
  const Recording wrong{{0, run_of(0.02, 5, 6, 1.0)}};
  const Divergence seen = compare_recordings(a, wrong, {}, 0);
  ASSERT_TRUE(seen.rise.has_value());
  EXPECT_EQ(seen.rise->place, name_of(a.at(0)[6]));
  EXPECT_EQ(compare_recordings(a, wrong, {}, 0.05).first->place, name_of(a.at(0)[6]));
}

TEST(Divergence, TensorsOfOneRunOnly_AndOtherShapes_AreNamed) {
  Recording a{{0, run_of(0, 0)}}, b = a;
  b.at(0)[3].shape = "50x100";
  b.at(0).erase(b.at(0).begin() + 1);
  const Divergence seen = compare_recordings(a, b, {}, 0);
  EXPECT_EQ(seen.only_in_one, 1u);
  EXPECT_EQ(seen.first_only, "step 1, forward, layers.1: output (only in the first)");
  ASSERT_TRUE(seen.first.has_value());
  EXPECT_EQ(seen.first->why, "shape 50x100 instead of 5000");
  EXPECT_THROW(compare_recordings(a, {{0, {}}, {1, {}}}, {}, 0), Error);
  EXPECT_THROW(compare_recordings(a, {{0, {}}}, {}, 0), Error) << "no tensor in common";
  EXPECT_THROW(compare_recordings(a, {{1, {}}}, {}, 0), Error);
}

TEST(Divergence, NotFiniteValues_AreNoNoise) {
  const auto with_nan = [](std::uint64_t seed) {
    std::vector<RecordedTensor> out = run_of(1e-5, seed);
    std::vector<float> values = normal_values(seed);
    values[0] = std::numeric_limits<float>::quiet_NaN();
    out[4].sketch = sketch_of(values);
    return out;
  };
  const Recording a{{0, run_of(1e-5, 1)}}, a2{{0, run_of(1e-5, 100)}}, b{{0, with_nan(200)}}, b2{{0, with_nan(300)}};
  const Divergence seen = compare_recordings(a, b, {{&a, &a2}, {&b, &b2}}, 0);
  ASSERT_TRUE(seen.first.has_value());
  EXPECT_EQ(seen.first->place, name_of(a.at(0)[4]));
  EXPECT_EQ(seen.first->why, "a value is not finite in the second");
  EXPECT_LT(seen.largest_noise, 1e-3);
}

TEST(Divergence, OneRoundingInAMillionElements_IsADifference) {
  std::vector<float> values = normal_values(1, 1 << 20);
  Recording a{{0, run_of(0, 0)}};
  a.at(0)[2].sketch = sketch_of(values);
  Recording b = a;
  values[12345] = std::nextafter(values[12345], 10.0f);
  b.at(0)[2].sketch = sketch_of(values);
  const Divergence seen = compare_recordings(a, b, {}, 0);
  EXPECT_EQ(seen.different, 1u);
  EXPECT_EQ(seen.first->place, name_of(a.at(0)[2]));
}

TEST(Recording, WrittenTensors_AreReadBack) {
  const sample::TemporaryDirectory directory;
  std::vector<RecordedTensor> tensors = run_of(0, 0);
  tensors[2].sketch = sketch_of(std::vector<float>{std::numeric_limits<float>::infinity()});
  tensors[3].module.clear();
  RecordingWriter writer(directory / "run", 3);
  for (const RecordedTensor& tensor : tensors) writer.add(tensor);
  writer.finish();
  const Recording read = read_recording(directory / "run");
  ASSERT_EQ(read.size(), 1u);
  ASSERT_EQ(read.at(3).size(), tensors.size());
  EXPECT_EQ(compare_recordings({{3, tensors}}, read, {}, 0).different, 0u);
  EXPECT_TRUE(std::isnan(read.at(3)[2].sketch.norm));
  EXPECT_NEAR(read.at(3)[5].sketch.sums[9], tensors[5].sketch.sums[9], 1e-6);
}

TEST(Recording, ClearedFolder_KeepsForeignFiles) {
  const sample::TemporaryDirectory directory;
  for (const char* name : {"rank-0.tsv", "rank-12.tsv", "rank-x.tsv", "notes.txt"})
    sample::write(directory / name, "x");
  clear_recording(directory.string());
  clear_recording(directory / "absent");
  for (const char* name : {"rank-0.tsv", "rank-12.tsv"}) EXPECT_FALSE(std::filesystem::exists(directory / name));
  for (const char* name : {"rank-x.tsv", "notes.txt"}) EXPECT_TRUE(std::filesystem::exists(directory / name));
}

class MalformedRecordingTest : public ::testing::Test {
 protected:
  std::string error(const std::string& text) {
    std::ofstream(directory_ / "rank-0.tsv") << text;
    try {
      read_recording(directory_.string());
    } catch (const Error& problem) {
      return problem.what();
    }
    return "";
  }
  sample::TemporaryDirectory directory_;
};

TEST_F(MalformedRecordingTest, EachFault_IsRefusedWithItsLine) {
  const std::string head = "fp8lab.values/1\n", sums = [] {
    std::string out = "1";
    for (int i = 1; i < 64; ++i) out += ",1";
    return out;
  }();
  EXPECT_EQ(error(head + "1\tforward\ta\toutput\tf32\t4\t1.5\tff\t" + sums + "\n"), "");
  EXPECT_EQ(error(head + "1\tforward\ta\toutput\tf32\t4\t1.5\tff\t" + sums), "") << "a killed program's last line";
  const auto refused = [&](const std::string& text, const std::string& what) {
    const std::string message = error(text);
    EXPECT_NE(message.find("rank-0.tsv:"), std::string::npos) << message;
    EXPECT_NE(message.find(what), std::string::npos) << message;
  };
  refused("fp8lab.values/9\n", "a recording begins with 'fp8lab.values/1'");
  refused(head + "1\tforward\n", ":2: has 2 columns instead of 9");
  refused(head + "x\tforward\ta\toutput\tf32\t4\t1.5\tff\t" + sums + "\n", "'x' is no step");
  refused(head + "1\tforward\ta\toutput\tf32\t4\tinf\tff\t" + sums + "\n", "'inf' is no norm");
  refused(head + "1\tforward\ta\toutput\tf32\t4\t1.5\tzz\t" + sums + "\n", "'zz' is no checksum");
  refused(head + "1\tforward\ta\toutput\tf32\t4\t1.5\tff\t1,2\n", "has 2 sums instead of 64");
  refused("", "a recording begins with 'fp8lab.values/1'");
  refused(head + "the recording is incomplete: RuntimeError: planted (step 2, observe)\n",
          "the recording is incomplete: RuntimeError: planted");
  EXPECT_THROW(read_recording(directory_ / "absent"), Error);
}

}  // namespace
}  // namespace fp8lab
