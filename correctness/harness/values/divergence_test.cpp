#include "harness/values/divergence.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>

#include "core/check.h"
#include "harness/temporary_directory.h"
#include "harness/values/recordings.h"
#include "harness/values/sketch.h"
#include "support/error_of.h"

namespace fp8lab {
namespace {

using sample::compare_recordings;
using sample::Recording;
using sample::recording_of;

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

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

using support::error_of;

std::string name_of(const RecordedTensor& tensor) { return tensor.phase + ", " + tensor.module + ": " + tensor.name; }

/// The estimated and the true relative difference of `a` and `b`.
double share_of_truth(const std::vector<float>& a, const std::vector<float>& b) {
  double squares = 0, norm_a = 0, norm_b = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    squares += std::pow(static_cast<double>(a[i]) - b[i], 2);
    norm_a += std::pow(static_cast<double>(a[i]), 2);
    norm_b += std::pow(static_cast<double>(b[i]), 2);
  }
  return relative_difference(sketch_of(a), sketch_of(b)) / std::sqrt(squares / std::max(norm_a, norm_b));
}

TEST(Sketch, RelativeDifference_OfDisturbedArrays_IsWithinFourDeviations) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed)
    for (const double size : {1e-6, 1e-3, 0.3}) {
      const std::vector<float> a = normal_values(seed), b = disturbed(a, size, seed + 1000);
      EXPECT_NEAR(share_of_truth(a, b), 1.0, 4 * 0.09) << seed << " " << size;
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
  b[4] = kNaN;
  EXPECT_TRUE(std::isinf(relative_difference(sketch_of(a), sketch_of(b))));
  a[4] = kInfinity;
  EXPECT_TRUE(std::isinf(relative_difference(sketch_of(a), sketch_of(b)))) << "another kind";
  EXPECT_EQ(relative_difference(sketch_of(b), sketch_of(b)), 0.0) << "equal bits";
  EXPECT_EQ(relative_difference(sketch_of({}), sketch_of({})), 0.0);
}

TEST(Sketch, AForgottenBias_HasItsSize_WithEveryNumberOfTokens) {
  for (const std::size_t hidden : {std::size_t{64}, std::size_t{96}, std::size_t{1024}})
    for (const std::size_t tokens : {1u, 2u, 8u, 16u, 72u, 96u}) {
      const std::vector<float> a = normal_values(tokens, tokens * hidden), bias = normal_values(hidden + 1, hidden);
      std::vector<float> b = a;
      for (std::size_t i = 0; i < b.size(); ++i) b[i] += bias[i % hidden];
      EXPECT_NEAR(share_of_truth(a, b), 1.0, 4 * 0.09) << tokens << "x" << hidden;
    }
}

TEST(Sketch, AWrongChannel_HasItsSize) {
  for (const std::size_t hidden : {std::size_t{64}, std::size_t{1024}})
    for (std::size_t channel = 0; channel < 64; ++channel) {
      const std::size_t tokens = 128;
      const std::vector<float> a = normal_values(channel, tokens * hidden);
      std::vector<float> b = a;
      for (std::size_t token = 0; token < tokens; ++token) b[token * hidden + channel] += 1.0f;
      EXPECT_NEAR(share_of_truth(a, b), 1.0, 4 * 0.1) << channel << " of " << hidden;
    }
}

TEST(Divergence, PlantedTensor_IsNamedFirst_AtEveryPlace) {
  const Recording a = recording_of({{0, run_of(1e-5, 100)}, {1, run_of(1e-5, 200)}});
  const Recording again = recording_of({{0, run_of(1e-5, 300)}, {1, run_of(1e-5, 400)}});
  const int count = static_cast<int>(a.at(0).tensors.size());
  for (int planted = 0; planted < count; ++planted) {
    const Recording b = recording_of({{0, run_of(1e-5, 500)}, {1, run_of(1e-5, 600, planted, 1e-2)}});
    const Divergence seen = compare_recordings(a, b, {{&a, &again}});
    ASSERT_TRUE(seen.first.has_value()) << planted;
    const RecordedTensor& tensor = a.at(1).tensors[static_cast<std::size_t>(planted)];
    EXPECT_EQ(seen.first->place, name_of(tensor));
    EXPECT_EQ(seen.first->step, tensor.step);
    EXPECT_EQ(seen.first->rank, 1);
    EXPECT_EQ(seen.different, static_cast<std::size_t>(count - planted));
    EXPECT_EQ(seen.tensors, static_cast<std::size_t>(2 * count));
  }
}

TEST(Divergence, EqualRuns_HaveNone_InTwentyPairs) {
  for (std::uint64_t pair = 0; pair < 20; ++pair) {
    const Recording a = recording_of({{0, run_of(1e-5, 1000 * pair)}}),
                    b = recording_of({{0, run_of(1e-5, 1000 * pair + 200)}});
    const Recording again = recording_of({{0, run_of(1e-5, 1000 * pair + 400)}});
    const Divergence seen = compare_recordings(a, b, {{&a, &again}});
    EXPECT_FALSE(seen.first.has_value()) << pair << ": " << seen.first->place;
    EXPECT_GT(seen.largest_noise, 0.9e-5);
    EXPECT_EQ(compare_recordings(a, a).different, 0u);
  }
}

TEST(Divergence, RecipesThatDifferEverywhere_ShowAPlantedErrorAsARise) {
  const Recording a = recording_of({{0, run_of(0, 0)}}), b = recording_of({{0, run_of(0.02, 5)}});
  EXPECT_EQ(compare_recordings(a, b).first->place, name_of(a.at(0).tensors.front()));
  EXPECT_FALSE(compare_recordings(a, b).rise.has_value());
  EXPECT_FALSE(compare_recordings(a, b, {}, 0.05).first.has_value()) << "within the tolerance";
  const Recording wrong = recording_of({{0, run_of(0.02, 5, 6, 1.0)}});
  const Divergence seen = compare_recordings(a, wrong);
  ASSERT_TRUE(seen.rise.has_value());
  EXPECT_EQ(seen.rise->place, name_of(a.at(0).tensors[6]));
  EXPECT_EQ(compare_recordings(a, wrong, {}, 0.05).first->place, name_of(a.at(0).tensors[6]));
}

TEST(Divergence, TensorsOfOneRunOnly_AndOtherShapes_AreNamed) {
  Recording a = recording_of({{0, run_of(0, 0)}}), b = a;
  b.at(0).tensors[3].shape = "50x100";
  b.at(0).tensors.erase(b.at(0).tensors.begin() + 1);
  const Divergence seen = compare_recordings(a, b);
  EXPECT_EQ(seen.only_in_one, 1u);
  EXPECT_EQ(seen.first_only, "step 1, forward, layers.1: output (only in the first)");
  ASSERT_TRUE(seen.first.has_value());
  EXPECT_EQ(seen.first->why, "shape 50x100 instead of 5000");
  const Recording empty{{0, {}}};
  EXPECT_EQ(error_of([&] { compare_recordings(a, empty); }).find("no tensor is in both recordings, such as step 1"),
            0u);
  EXPECT_EQ(error_of([&] { compare_recordings(empty, empty); }).find("no tensor is in either recording"), 0u);
}

TEST(Divergence, OneMoreCall_IsOnlyInOneRun_AndTheLaterOnesAreThemselves) {
  Recording a = recording_of({{0, run_of(0, 0)}});
  for (RecordedTensor& tensor : a.at(0).tensors) tensor.module = "layer";
  Recording b = a;
  RecordedTensor more = b.at(0).tensors[0];
  more.sketch = sketch_of(normal_values(99));
  b.at(0).tensors.insert(b.at(0).tensors.begin() + 1, more);
  const Divergence seen = compare_recordings(a, b);
  EXPECT_EQ(seen.only_in_one, 1u);
  EXPECT_EQ(seen.first_only, "step 1, forward, layer: output (only in the second)");
  EXPECT_EQ(seen.tensors, a.at(0).tensors.size());
  EXPECT_FALSE(seen.first.has_value()) << seen.first->place;
}

TEST(Divergence, TheFirst_IsOfTheEarlierStep_OnWhicheverRank) {
  std::vector<RecordedTensor> of_second_step = run_of(0, 0);
  std::erase_if(of_second_step, [](const RecordedTensor& tensor) { return tensor.step == 1; });
  const Recording a = recording_of({{0, run_of(0, 0)}, {1, of_second_step}});
  Recording b = a;
  b.at(0).tensors[2].sketch = b.at(1).tensors[1].sketch = sketch_of(normal_values(99));
  const Divergence seen = compare_recordings(a, b);
  ASSERT_TRUE(seen.first.has_value());
  EXPECT_EQ(seen.first->step, 1);
  EXPECT_EQ(seen.first->rank, 0);
}

TEST(Divergence, EqualInfinities_AreNone_AndOtherOnesShowInTheNoise) {
  const auto masked = [](double noise, std::size_t at) {
    std::vector<float> values = disturbed(normal_values(1), noise, 5);
    for (std::size_t i = 0; i < 100; ++i) values[i] = -kInfinity;
    values[at] = kNaN;
    return sketch_of(values);
  };
  const Recording healthy = recording_of({{0, run_of(0, 0)}});
  const auto with = [&](double noise, std::size_t at) {
    Recording out = healthy;
    out.at(0).tensors[4].sketch = masked(noise, at);
    return out;
  };
  const Recording a = with(0, 200), near = with(1e-6, 200), other = with(0, 201);
  const Divergence seen = compare_recordings(a, near, {{&a, &near}});
  EXPECT_FALSE(seen.first.has_value());
  EXPECT_NEAR(seen.largest_noise, 1e-6, 4e-7);
  EXPECT_EQ(seen.unlike, 0u);
  const Divergence unlike = compare_recordings(a, other, {{&a, &other}});
  EXPECT_EQ(unlike.first->why, "other values are not finite");
  EXPECT_EQ(unlike.unlike, 1u);
  EXPECT_EQ(unlike.first_unlike, "step 1, backward, layers.3: gradient of output: other values are not finite");
  EXPECT_EQ(compare_recordings(healthy, a).first->why, "a value is not finite in the second");
}

TEST(Divergence, NotFiniteValues_AreNoNoise) {
  const auto with_nan = [](std::uint64_t seed) {
    std::vector<RecordedTensor> out = run_of(1e-5, seed);
    std::vector<float> values = disturbed(normal_values(4), 1e-5, seed);
    values[0] = kNaN;
    out[4].sketch = sketch_of(values);
    return out;
  };
  const Recording a = recording_of({{0, run_of(1e-5, 1)}}), a2 = recording_of({{0, run_of(1e-5, 100)}}),
                  b = recording_of({{0, with_nan(200)}}), b2 = recording_of({{0, with_nan(300)}});
  const Divergence seen = compare_recordings(a, b, {{&a, &a2}, {&b, &b2}});
  ASSERT_TRUE(seen.first.has_value());
  EXPECT_EQ(seen.first->place, name_of(a.at(0).tensors[4]));
  EXPECT_EQ(seen.first->why, "a value is not finite in the second");
  EXPECT_LT(seen.largest_noise, 1e-3);
}

TEST(Divergence, OneRoundingInAMillionElements_IsADifference) {
  std::vector<float> values = normal_values(1, 1 << 20);
  Recording a = recording_of({{0, run_of(0, 0)}});
  a.at(0).tensors[2].sketch = sketch_of(values);
  Recording b = a;
  values[12345] = std::nextafter(values[12345], 10.0f);
  b.at(0).tensors[2].sketch = sketch_of(values);
  const Divergence seen = compare_recordings(a, b);
  EXPECT_EQ(seen.different, 1u);
  EXPECT_EQ(seen.first->place, name_of(a.at(0).tensors[2]));
}

TEST(Recording, WrittenTensors_AreReadBack) {
  const sample::TemporaryDirectory directory;
  std::vector<RecordedTensor> tensors = run_of(0, 0);
  tensors[2].sketch = sketch_of(std::vector<float>{kInfinity, 1.0f});
  tensors[3].module.clear();
  RecordingWriter writer(directory / "run", 3);
  for (const RecordedTensor& tensor : tensors) writer.add(tensor);
  writer.finish();
  const Recording read = sample::read_recording(directory / "run");
  ASSERT_EQ(read.size(), 1u);
  ASSERT_EQ(read.at(3).tensors.size(), tensors.size());
  EXPECT_EQ(compare_recordings(recording_of({{3, tensors}}), read).different, 0u);
  EXPECT_EQ(read.at(3).incomplete, "");
  EXPECT_EQ(read.at(3).tensors[2].sketch.not_finite, tensors[2].sketch.not_finite);
  EXPECT_EQ(read.at(3).tensors[2].sketch.norm, 1.0);
  EXPECT_NEAR(read.at(3).tensors[5].sketch.sums[9], tensors[5].sketch.sums[9], 1e-6);
}

TEST(Recording, ClearedFolder_KeepsForeignFiles) {
  const sample::TemporaryDirectory directory;
  for (const char* name : {"rank-0.tsv", "rank-12.tsv", "rank-x.tsv", "rank-00.tsv", "notes.txt"})
    sample::write(directory / name, "x");
  clear_recording(directory.string());
  clear_recording(directory / "absent");
  for (const char* name : {"rank-0.tsv", "rank-12.tsv"}) EXPECT_FALSE(std::filesystem::exists(directory / name));
  for (const char* name : {"rank-x.tsv", "rank-00.tsv", "notes.txt"})
    EXPECT_TRUE(std::filesystem::exists(directory / name));
}

TEST(Recording, FoldersAreCompared_WithTheirNamesInErrors) {
  const sample::TemporaryDirectory directory;
  const auto write = [&](const std::string& name, int rank, int planted, bool ends = true) {
    RecordingWriter writer(directory / name, rank);
    for (const RecordedTensor& tensor : run_of(0, 0, planted, 0.5)) writer.add(tensor);
    if (ends) writer.finish();
  };
  for (const char* name : {"a", "b", "again"})
    for (const int rank : {0, 1}) write(name, rank, name == std::string("b") && rank == 1 ? 5 : -1);
  const Divergence seen =
      compare_folders({directory / "a", directory / "b"}, {{directory / "a", directory / "again"}}, 0);
  ASSERT_TRUE(seen.first.has_value());
  EXPECT_EQ(seen.first->rank, 1);
  EXPECT_TRUE(seen.incomplete.empty());
  write("c", 0, -1, false);
  EXPECT_EQ(error_of([&] { compare_folders({directory / "a", directory / "c"}, {}, 0); }),
            (directory / "c").string() + ": has no rank 1, which " + (directory / "a").string() + " has");
  write("c", 1, -1);
  EXPECT_EQ(compare_folders({directory / "a", directory / "c"}, {}, 0).incomplete,
            std::set<std::string>{(directory / "c/rank-0.tsv").string() +
                                  ": ends at line 25 in step 2; the program was killed"});
  EXPECT_NE(error_of([&] { recorded_ranks(std::string(300, 'x')); }), "");
}

class MalformedRecordingTest : public ::testing::Test {
 protected:
  std::string error(const std::string& text) {
    const std::filesystem::path path = directory_ / "rank-0.tsv";
    sample::write(path, text);
    return error_of([&] { incomplete_ = read_rank(path).incomplete; });
  }
  std::string incomplete_;
  sample::TemporaryDirectory directory_;
};

TEST_F(MalformedRecordingTest, EachFault_IsRefusedWithItsLine) {
  const std::string head = "fp8lab.values/2\n", sums = [] {
    std::string out = "1";
    for (int i = 1; i < 64; ++i) out += ",1";
    return out;
  }();
  const std::string line = "1\tforward\ta\toutput\tf32\t4\t1.5\tff\t0\t" + sums;
  EXPECT_EQ(error(head + line + "\nend\t1\n"), "");
  EXPECT_EQ(incomplete_, "");
  EXPECT_EQ(error(head + line + "\n" + line), "") << "a killed program's last line";
  EXPECT_NE(incomplete_.find("rank-0.tsv: ends at line 2 in step 1; the program was killed"), std::string::npos)
      << incomplete_;
  const auto refused = [&](const std::string& text, const std::string& what) {
    const std::string message = error(text);
    EXPECT_NE(message.find("rank-0.tsv:"), std::string::npos) << message;
    EXPECT_NE(message.find(what), std::string::npos) << message;
  };
  refused("fp8lab.values/1\n", "a recording begins with 'fp8lab.values/2'");
  refused(head + "1\tforward\n", ":2: has 2 columns instead of 10");
  refused(head + "x\tforward\ta\toutput\tf32\t4\t1.5\tff\t0\t" + sums + "\n", "'x' is no step");
  refused(head + "1\tsleep\ta\toutput\tf32\t4\t1.5\tff\t0\t" + sums + "\n", "'sleep' is no phase");
  refused(head + "1\tforward\ta\toutput\tf32\t4\tinf\tff\t0\t" + sums + "\n", "'inf' is no norm");
  refused(head + "1\tforward\ta\toutput\tf32\t4\t-5\tff\t0\t" + sums + "\n", "'-5' is no norm");
  refused(head + "1\tforward\ta\toutput\tf32\t4\t1.5\tzz\t0\t" + sums + "\n", "'zz' is no checksum");
  refused(head + "1\tforward\ta\toutput\tf32\t4\t1.5\tff\t0\t1,2\n", "has 2 sums instead of 64");
  refused(head + line + "\nend\t2\n", "'end\\t2' ends 1 tensors");
  refused(head + "end\t0\n" + line + "\n", ":3: comes after the end");
  refused("", "a recording begins with 'fp8lab.values/2'");
  refused(head + "the recording is incomplete: RuntimeError: planted (step 2, observe)\n",
          "the recording is incomplete: RuntimeError: planted");
  EXPECT_THROW(recorded_ranks(directory_ / "absent"), Error);
  std::filesystem::remove(directory_ / "rank-0.tsv");
  ASSERT_EQ(::mkfifo((directory_ / "rank-0.tsv").c_str(), 0600), 0);
  EXPECT_NE(error_of([&] { read_rank(directory_ / "rank-0.tsv"); }).find("a pipe"), std::string::npos);
}

}  // namespace
}  // namespace fp8lab
