#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "harness/results/document_file.h"
#include "harness/run/fake_process.h"
#include "support/paths.h"

// `fp8lab snapshot`, as a user sees it; snapshots_test.py holds what its Python program makes of a file.
namespace fp8lab {
namespace {

using Json = nlohmann::json;
using sample::contains;
using sample::Ended;
using sample::run;

class SnapshotCommand : public ::testing::Test {
 protected:
  SnapshotCommand() {
    ::setenv("FP8LAB_WORKER", paths::kWorkerFolder, 1);
    ::setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
  }

  /// A snapshot with so many blocks of 1 MiB that a layer holds, and a block that it had and freed.
  std::string snapshot(const std::string& name, int blocks) {
    sample::write(directory_ / "make.py",
                  "import pickle, sys\n"
                  "frames = [{'filename': '/a/site-packages/library/layer.py', 'line': 9, 'name': 'forward'},\n"
                  "          {'filename': '/home/me/train.py', 'line': 33, 'name': 'main'}]\n"
                  "block = {'size': 1 << 20, 'state': 'active_allocated', 'frames': frames}\n"
                  "blocks = [block] * int(sys.argv[2])\n"
                  "segment = {'device': 0, 'address': 4096, 'total_size': 8 << 20, 'blocks': blocks}\n"
                  "trace = [{'action': action, 'addr': 1 << 40, 'size': 2 << 20, 'frames': frames}\n"
                  "         for action in ('alloc', 'free_requested')]\n"
                  "pickle.dump({'segments': [segment], 'device_traces': [trace]}, open(sys.argv[1], 'wb'))\n");
    const std::string path = (directory_ / name).string();
    const std::string command =
        "python3 '" + (directory_ / "make.py").string() + "' '" + path + "' " + std::to_string(blocks);
    EXPECT_EQ(std::system(command.c_str()), 0);
    return path;
  }

  sample::TemporaryDirectory directory_;
};

TEST_F(SnapshotCommand, OneSnapshotIsShownByHolderAndStack) {
  const Ended ended = run({"snapshot", snapshot("a.pickle", 3)});
  EXPECT_EQ(ended.code, 0) << ended.errors;
  EXPECT_TRUE(
      contains(ended.output, "GPU 0: 3.00 MiB in use in 3 blocks, 8.00 MiB reserved, peak of the history 5.00 MiB"))
      << ended.output;
  EXPECT_TRUE(contains(ended.output, "3.00 MiB        3 layer.forward (from train.py:33)\n")) << ended.output;
  EXPECT_TRUE(contains(ended.output, "/home/me/train.py:33 main\n"));
}

TEST_F(SnapshotCommand, OfTwoTheDifferenceIsShown) {
  const std::string first = snapshot("a.pickle", 1), second = snapshot("b.pickle", 4);
  const Ended ended = run({"snapshot", first, second});
  EXPECT_TRUE(contains(ended.output, "The second holds +3.00 MiB in use, +0 B reserved:\n")) << ended.output;
  EXPECT_TRUE(contains(ended.output, "+3.00 MiB       +3 layer.forward (from train.py:33)\n")) << ended.output;
  const Ended same = run({"snapshot", first, first});
  EXPECT_TRUE(contains(same.output, "The second holds +0 B in use, +0 B reserved:\n  they hold the same\n"))
      << same.output;
  const Json json = Json::parse(run({"snapshot", first, second, "--json"}).output);
  EXPECT_EQ(json.at("schema"), "fp8lab.snapshot/1");
  EXPECT_EQ(json.at("difference").at("in_use_bytes"), 3 << 20);
}

TEST_F(SnapshotCommand, ResultsHoldBothAndTheirHistory) {
  const std::string out = (directory_ / "out").string();
  const Ended ended = run({"snapshot", snapshot("a.pickle", 1), snapshot("b.pickle", 4), "-o", out});
  EXPECT_EQ(ended.code, 0) << ended.errors;
  const std::string results = sample::read(out + "/results.json");
  EXPECT_EQ(sample::schema_violations(results_schema(), results), std::vector<std::string>{});
  const Json cell = Json::parse(results).at("cells").at(0);
  const auto peak = [&](const char* arm) {
    return cell.at("arms").at(arm).at("metrics").at("memory.peak_bytes").at("value");
  };
  EXPECT_EQ(peak("before"), 3 << 20);
  EXPECT_EQ(peak("after"), 6 << 20);
  const Json timeline = Json::parse(read_document(out + "/" + cell.at("timelines").at("after").get<std::string>()));
  EXPECT_EQ(timeline.at("events").size(), 3U);
}

TEST_F(SnapshotCommand, AFileThatIsNoSnapshotExitsTwoAndIsNamed) {
  sample::write(directory_ / "code.pickle", "cos\nmkdir\n(S'" + (directory_ / "planted").string() + "'\ntR.");
  sample::write(directory_ / "text", "text");
  for (const char* name : {"code.pickle", "text", "absent"}) {
    const Ended ended = run({"snapshot", (directory_ / name).string()});
    EXPECT_EQ(ended.code, 2);
    EXPECT_TRUE(contains(ended.errors, name)) << ended.errors;
  }
  EXPECT_FALSE(std::filesystem::exists(directory_ / "planted"));
  EXPECT_EQ(run({"snapshot"}).code, 2);
}

}  // namespace
}  // namespace fp8lab
