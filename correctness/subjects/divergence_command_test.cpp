#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "harness/run/fake_process.h"
#include "harness/values/recording.h"

// The result set of `fp8lab divergence`, from two folders of recordings.
namespace fp8lab {
namespace {

using sample::contains;

class DivergenceCommand : public ::testing::Test {
 protected:
  std::string record(const std::string& name, float last) const {
    const std::filesystem::path folder = directory_ / name;
    RecordingWriter writer(folder, 0);
    for (const char* module : {"up", "down"}) {
      RecordedTensor tensor{.step = 2,
                            .phase = "forward",
                            .module = module,
                            .name = "output",
                            .type = "float32",
                            .shape = "2",
                            .sketch = {}};
      tensor.sketch = sketch_of(std::vector<float>{3.0F, std::string(module) == "down" ? last : 4.0F});
      writer.add(tensor);
    }
    writer.finish();
    return folder.string();
  }
  int compare(const std::string& a, const std::string& b) {
    const sample::Ended ended =
        sample::run({"divergence", a, b, "--noise", record("again", 4.0F), "-o", (directory_ / "out").string()},
                    directory_.string());
    output_ = ended.output + ended.errors;
    const auto json = nlohmann::json::parse(sample::read(directory_ / "out/results.json"));
    cell_ = json.at("cells").at(0);
    return ended.code;
  }

  sample::TemporaryDirectory directory_;
  std::string output_;
  nlohmann::json cell_;
};

TEST_F(DivergenceCommand, FirstTensorFailsAGateWithBothNormsAndTheNoise) {
  EXPECT_EQ(compare(record("a", 4.0F), record("b", 5.0F)), 1) << output_;
  EXPECT_EQ(cell_.at("verdict"), "fail");
  const auto& gate = cell_.at("gates").at(0);
  EXPECT_EQ(gate.at("pass"), false);
  EXPECT_GT(gate.at("observed"), 0.1);
  EXPECT_EQ(gate.at("limit"), 0);
  const std::string detail = gate.at("detail");
  EXPECT_TRUE(contains(detail, "first: step 2, forward, down: output differs by ")) << detail;
  EXPECT_TRUE(contains(detail, "norms 5 and 5.831")) << detail;
  EXPECT_TRUE(contains(detail, "1 of 2 tensors differ; noise: none: two runs of an arm have equal bits")) << detail;
  EXPECT_TRUE(contains(output_, "fp8lab report ")) << output_;
}

TEST_F(DivergenceCommand, EqualRecordingsPass) {
  EXPECT_EQ(compare(record("a", 4.0F), record("b", 4.0F)), 0) << output_;
  EXPECT_EQ(cell_.at("verdict"), "pass");
}

}  // namespace
}  // namespace fp8lab
