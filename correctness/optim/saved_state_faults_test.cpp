// Damaged checkpoints are refused before anything changes; a save that fails or is killed keeps the one before.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "optim/saved_state_runs.h"
#include "reference/compare.h"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;
using namespace optim_test;
using reference::bitwise_equal;

std::vector<char> contents(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}
void overwrite(const fs::path& file, const std::vector<char>& bytes) {
  std::ofstream(file, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

class Damaged : public ::testing::Test {
 protected:
  Damaged() : training_("delayed", kOptions, true, "linear") {
    training_.run(2);
    save_training_state(training_.runtime, path_of(folder_), training_.state());
    for (const fs::directory_entry& entry : fs::directory_iterator(path_of(folder_))) files_.push_back(entry.path());
    std::sort(files_.begin(), files_.end());
  }
  /// The error of loading into another training, which must stay as it is.
  std::string refused(Training& other) {
    const auto weights = other.weights();
    const bool had_state = !other.adam.state().empty();
    const std::string message =
        support::error_of([&] { load_training_state(other.runtime, path_of(folder_), other.state()); });
    EXPECT_FALSE(message.empty()) << "it was loaded";
    EXPECT_EQ(other.weights(), weights);
    EXPECT_EQ(!other.adam.state().empty(), had_state);
    EXPECT_EQ(other.adam.steps(), had_state ? 1 : 0);
    return message;
  }
  static void expect_words(const std::string& message, const std::vector<std::string>& words) {
    for (const std::string& word : words)
      EXPECT_NE(message.find(word), std::string::npos) << message << " lacks " << word;
  }
  const TemporaryDirectory folder_;
  Training training_;
  std::vector<fs::path> files_;
};

TEST_F(Damaged, IntactCheckpointIsAManifestAndAFile) {
  ASSERT_EQ(files_.size(), 2u);
  EXPECT_EQ(files_[0].filename(), "manifest");
  EXPECT_EQ(files_[1].filename(), "save-1.rank-0");
}

TEST_F(Damaged, AnyFlippedBitIsRefused) {
  Training other("delayed", kOptions, true, "linear");
  other.run(1);
  for (const fs::path& file : files_) {
    const std::vector<char> intact = contents(file);
    const std::size_t stride = std::max<std::size_t>(1, intact.size() / 150);
    for (std::size_t i = 0; i < intact.size(); i += i < 120 ? 1 : stride) {
      std::vector<char> flipped = intact;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << (i % 8)));
      overwrite(file, flipped);
      expect_words(refused(other), {folder_.string()});
    }
    overwrite(file, intact);
  }
  EXPECT_EQ(load_training_state(other.runtime, path_of(folder_), other.state()), 2);
}

TEST_F(Damaged, FlippedBitOfAnEntryNamesTheEntry) {
  std::vector<char> bytes = contents(files_[1]);
  bytes[bytes.size() - 5] ^= 1;
  overwrite(files_[1], bytes);
  Training other("delayed", kOptions, true, "linear");
  expect_words(refused(other),
               {"save-1.rank-0", "entry 'layers[1] backward: amax history'", "checksum", "load another save"});
}

TEST_F(Damaged, TruncatedFileIsRefused) {
  Training other("delayed", kOptions, true, "linear");
  for (const fs::path& file : files_) {
    const std::vector<char> intact = contents(file);
    for (const std::size_t keep : {std::size_t{0}, std::size_t{30}, intact.size() / 2, intact.size() - 1}) {
      overwrite(file, {intact.begin(), intact.begin() + static_cast<std::ptrdiff_t>(keep)});
      expect_words(refused(other), {file.filename().string(), "damaged"});
    }
    overwrite(file, intact);
  }
}

TEST_F(Damaged, MissingFileIsRefused) {
  Training other("delayed", kOptions, true, "linear");
  fs::remove(files_[1]);
  expect_words(refused(other), {"save-1.rank-0", "absent"});
  fs::remove(files_[0]);
  expect_words(refused(other), {"manifest", "absent", "no save"});
}

TEST_F(Damaged, NewerVersionIsRefused) {
  Training other("delayed", kOptions, true, "linear");
  std::vector<char> manifest = contents(files_[0]);
  manifest[18] = '4';
  overwrite(files_[0], manifest);
  expect_words(refused(other), {"manifest", "version 4", "reads version 3"});
}

TEST_F(Damaged, FormerVersionsAreRefused) {
  Training other("delayed", kOptions, true, "linear");
  std::vector<char> manifest = contents(files_[0]);
  for (const char version : {'1', '2'}) {
    manifest[18] = version;
    overwrite(files_[0], manifest);
    expect_words(refused(other), {"manifest", std::string("version ") + version, "the program that saved it"});
  }
}

TEST_F(Damaged, AnotherModelIsRefused) {
  Training others[] = {{"delayed", kOptions, true, "layernorm_mlp"},
                       {"delayed", kOptions, false, "linear"},
                       {"current", kOptions, true, "linear"},
                       {"delayed", {.master = MasterWeights::kF32, .exp_avg = DType::kBF16}, true, "linear"},
                       {"bf16", {}, false, "linear"}};
  for (Training& other : others) expect_words(refused(other), {"save-1.rank-0: entry '", "that w"});
}

TEST_F(Damaged, DamagedFileOfOneRankStopsLoadingOnAll) {
  const TemporaryDirectory folder;
  on_ranks("current", kThree, kOptions, [&](ProcessGroup& group, Rank& rank) {
    rank.run(1, 1);
    save_training_state(rank.runtime, path_of(folder), rank.state(), &group);
  });
  std::vector<char> bytes = contents(path_of(folder) / "save-1.rank-1");
  bytes[bytes.size() - 5000] ^= 1;
  overwrite(path_of(folder) / "save-1.rank-1", bytes);
  std::mutex mutex;
  std::vector<std::string> messages;
  on_ranks("current", kThree, kOptions, [&](ProcessGroup& group, Rank& rank) {
    rank.run(1, 2);
    const auto before = all_bytes(*rank.device, rank.matrix.shard->quantized);
    const std::string message =
        support::error_of([&] { load_training_state(rank.runtime, path_of(folder), rank.state(), &group); });
    EXPECT_EQ(all_bytes(*rank.device, rank.matrix.shard->quantized), before);
    EXPECT_EQ(rank.adam.steps(), 2);
    const std::scoped_lock lock(mutex);
    messages.push_back(message);
  });
  int named = 0, reported = 0;
  for (const std::string& message : messages) {
    named += message.find("save-1.rank-1: entry") != std::string::npos ? 1 : 0;
    reported += message.find("rank 1 could not load") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(named, 3) << "ranks that report the cause";
  EXPECT_EQ(reported, 2) << "ranks that name the one that failed";
}

// Its first rows would fit, but they belong to another matrix.
TEST(EntriesWithOtherRows, AreRefused) {
  const TemporaryDirectory folder;
  const std::unique_ptr<Device> device = open_host();
  Runtime runtime{.device = *device, .behaviors = {}};
  run_ranks("in_process", {.ranks = 1}, [&](ProcessGroup& group) {
    Sharded saved(*device, {.shape = {384, 128}}, {384, 128}), smaller(*device, {.shape = {256, 128}}, {256, 128});
    const auto state_of = [](const std::vector<Parameter*>& list) {
      return TrainingState{
          .parameters = list, .optimizer = nullptr, .forward_scales = {}, .backward_scales = {}, .step = 1};
    };
    const std::vector<Parameter*> large = {&saved.unsharded}, other = {&smaller.unsharded};
    save_training_state(runtime, path_of(folder), state_of(large), &group);
    device->write(smaller.shard->value, std::vector<float>(256 * 128, 3.0f));
    const std::string message =
        support::error_of([&] { load_training_state(runtime, path_of(folder), state_of(other), &group); });
    EXPECT_NE(message.find("384 rows, the model's 256"), std::string::npos) << message;
    EXPECT_EQ(support::read(*device, smaller.shard->value), std::vector<double>(256 * 128, 3.0));
  });
}

// An entry of a checkpoint without a parameter is a sign of another model, so it is not ignored.
TEST(EntriesWithoutAParameter, AreRefused) {
  const TemporaryDirectory folder;
  const std::unique_ptr<Device> device = open_host();
  Runtime runtime{.device = *device, .behaviors = {}};
  const auto a = optim_test::make_parameter(*device, {.name = "a", .shape = {8, 4}}),
             b = optim_test::make_parameter(*device, {.name = "b", .shape = {8, 4}});
  const auto state_of = [](const std::vector<Parameter*>& list) {
    return TrainingState{
        .parameters = list, .optimizer = nullptr, .forward_scales = {}, .backward_scales = {}, .step = 1};
  };
  const std::vector<Parameter*> both = {a.get(), b.get()}, one = {a.get()};
  save_training_state(runtime, path_of(folder), state_of(both), nullptr);
  const std::string message =
      support::error_of([&] { load_training_state(runtime, path_of(folder), state_of(one), nullptr); });
  EXPECT_NE(message.find("entry 'b: value'"), std::string::npos) << message;
  EXPECT_NE(message.find("no such parameter"), std::string::npos) << message;
  EXPECT_EQ(load_training_state(runtime, path_of(folder), state_of(both), nullptr), 1);
}

TEST_F(Damaged, FailedSaveKeepsTheOneBefore) {
  const auto saved = training_.weights();
  fs::create_directory(path_of(folder_) / "manifest.tmp");  // a directory of this name prevents writing the file
  training_.run(1);
  const std::string message =
      support::error_of([&] { save_training_state(training_.runtime, path_of(folder_), training_.state()); });
  expect_words(message, {"manifest.tmp"});
  EXPECT_FALSE(fs::exists(path_of(folder_) / "save-2.rank-0"));
  EXPECT_EQ(load_training_state(training_.runtime, path_of(folder_), training_.state()), 2);
  EXPECT_EQ(training_.weights(), saved);
  fs::remove(path_of(folder_) / "manifest.tmp");
  training_.run(1);
  save_training_state(training_.runtime, path_of(folder_), training_.state());
  EXPECT_FALSE(fs::exists(files_[1])) << "the previous one is still there";
  EXPECT_EQ(load_training_state(training_.runtime, path_of(folder_), training_.state()), 4);
}

TEST_F(Damaged, SaveBeforeTheFirstStepLoads) {
  Training fresh("delayed", kOptions, true, "linear");
  const TemporaryDirectory folder;
  save_training_state(fresh.runtime, path_of(folder), fresh.state());
  EXPECT_TRUE(fresh.adam.state().empty());
  Training other("delayed", kOptions, true, "linear"), unsaved("delayed", kOptions, true, "linear");
  EXPECT_EQ(load_training_state(other.runtime, path_of(folder), other.state()), 0);
  EXPECT_TRUE(bitwise_equal(other.run(3), unsaved.run(3)));
}

/// True while a save is being written, which its temporary file shows.
bool is_saving(const fs::path& folder) {
  std::error_code gone;
  for (fs::directory_iterator entry(folder, gone), end; !gone && entry != end; entry.increment(gone))
    if (entry->path().extension() == ".tmp") return true;
  return false;
}

// A child saves again and again and is killed while it writes. The checkpoint that is left must load and be one of its
// states. Runs on the host, since a GPU's context does not survive a fork.
TEST(KilledSaves, KeepACheckpointThatLoads) {
  const TemporaryDirectory folder;
  AdamOptions options = kOptions;
  Training training("mxfp8", options, true, "linear", open_host());
  training.run(1);
  save_training_state(training.runtime, path_of(folder), training.state());
  const std::vector<float> next = training.run(1);
  for (int round = 0; round < 8; ++round) {
    Training reader("mxfp8", options, true, "linear", open_host());
    load_training_state(reader.runtime, path_of(folder), reader.state());
    fs::remove(path_of(folder) / "manifest.tmp");  // left by the round before
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // the child ends with a test that is itself killed
      [&]() noexcept {                   // an error ends it here: beyond, it would remove the folder as its own
        for (;;) save_training_state(reader.runtime, path_of(folder), reader.state());
      }();
    }
    while (!is_saving(path_of(folder))) ASSERT_EQ(waitpid(child, nullptr, WNOHANG), 0) << "a save failed";
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    Training resumed("mxfp8", options, true, "linear", open_host());
    ASSERT_NO_THROW(load_training_state(resumed.runtime, path_of(folder), resumed.state()));
    resumed.step = 1;
    EXPECT_TRUE(bitwise_equal(resumed.run(1), next)) << "round " << round;
  }
}

}  // namespace
}  // namespace fp8lab
