// What ranks owe each other when they save and load: one rank's failure ends the call on all, with its type and its
// message; and the time to find entries and shards grows with their number, no faster.

#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "optim/saved_state_entries.h"
#include "optim/saved_state_format.h"
#include "optim/saved_state_items.h"
#include "optim/saved_state_runs.h"

namespace fp8lab {
namespace {

using namespace optim_test;

/// What a rank's call threw.
struct Thrown {
  std::string message;
  bool out_of_memory = false;
};
template <class Action>
Thrown thrown_by(const Action& action) {
  try {
    action();
  } catch (const OutOfMemory& error) {
    return {error.what(), true};
  } catch (const Error& error) {
    return {error.what(), false};
  } catch (const std::bad_alloc& error) {
    return {error.what(), true};
  }
  return {};
}

/// By rank, what fail_on_every_rank() throws when `work` runs on every rank.
std::vector<Thrown> thrown_on(int ranks, const std::function<void(int)>& work) {
  std::vector<Thrown> thrown(static_cast<std::size_t>(ranks));
  run_ranks("in_process", {.ranks = ranks}, [&](ProcessGroup& group) {
    const std::exception_ptr problem = problem_of([&] { work(group.rank()); });
    thrown[static_cast<std::size_t>(group.rank())] =
        thrown_by([&] { fail_on_every_rank(&group, problem, "do its part"); });
    group.barrier("after the failure");
  });
  return thrown;
}

TEST(FailuresOfOneRank, AreReportedByAll) {
  const std::vector<Thrown> thrown = thrown_on(3, [](int rank) {
    if (rank == 1) fail("the disk is full");
  });
  EXPECT_EQ(thrown[1].message, "the disk is full");
  for (const int other : {0, 2}) {
    EXPECT_EQ(thrown[other].message, "saved state: rank 1 could not do its part: the disk is full");
    EXPECT_FALSE(thrown[other].out_of_memory);
  }
}

TEST(FailuresOfOneRank, KeepTheirType) {
  for (const bool on_host : {false, true}) {
    const std::vector<Thrown> thrown = thrown_on(3, [&](int rank) {
      if (rank != 1) return;
      if (on_host) throw std::bad_alloc();
      throw OutOfMemory("1 byte too many");
    });
    for (const Thrown& own : thrown) EXPECT_TRUE(own.out_of_memory) << own.message;
    const std::string why = on_host ? "the host has no memory left" : "1 byte too many";
    EXPECT_EQ(thrown[0].message, "saved state: rank 1 could not do its part: " + why);
    EXPECT_EQ(thrown[2].message, thrown[0].message);
  }
}

TEST(FailuresOfOneRank, AreCutIfTheirMessageIsLong) {
  const std::string message = std::string(3000, 'a') + std::string(3000, 'b');
  const std::vector<Thrown> thrown = thrown_on(2, [&](int rank) {
    if (rank == 0) fail(message);
  });
  EXPECT_EQ(thrown[0].message, message);
  EXPECT_NE(thrown[1].message.find("could not do its part: " + message.substr(0, 3500)), std::string::npos);
  EXPECT_TRUE(thrown[1].message.ends_with("b ...")) << thrown[1].message;
  EXPECT_LT(thrown[1].message.size(), 5000u);
}

TEST(FailuresOfSeveralRanks, KeepTheirMessages) {
  const std::vector<Thrown> thrown = thrown_on(4, [](int rank) {
    if (rank == 1) throw OutOfMemory("one");
    if (rank == 2) fail("two");
  });
  EXPECT_EQ(thrown[1].message, "one");
  EXPECT_TRUE(thrown[1].out_of_memory);
  EXPECT_EQ(thrown[2].message, "two");
  EXPECT_EQ(thrown[0].message, "saved state: rank 2 could not do its part: two");
  EXPECT_EQ(thrown[3].message, thrown[0].message);
}

TEST(Success, CostsOneCollective) {
  run_ranks("in_process", {.ranks = 2}, [](ProcessGroup& group) {
    fail_on_every_rank(&group, nullptr, "do its part");
    EXPECT_EQ(group.traffic().of(CollectiveKind::kAllReduce).collectives, 1);
    EXPECT_EQ(group.traffic().of(CollectiveKind::kBroadcast).collectives, 0);
  });
}

/// A rank with shards of a vector and of a matrix, whose device has room for them and, on rank 1, only for the
/// optimizer's state of the vector.
struct SmallRank {
  static constexpr std::int64_t kRows = 512, kColumns = 1024;
  std::unique_ptr<Device> device;
  Runtime runtime{.device = *device, .behaviors = {}};
  Sharded vector;
  Sharded matrix;
  std::vector<Parameter*> list = {&vector.unsharded, &matrix.unsharded};
  Adam adam{list, kOptions};

  SmallRank(ProcessGroup& group, bool limited)
      : device(open_device("cpu", {.memory = {.capacity_bytes = limited && group.rank() == 1 ? std::size_t{2} << 20 : 0,
                                              .poison = true}})),
        vector(*device, {.name = "v", .shape = {8 / group.size()}}, {8}),
        matrix(*device, {.shape = {kRows / group.size(), kColumns}, .group = &group}, {kRows, kColumns}) {}
  TrainingState state() {
    return {.parameters = list, .optimizer = &adam, .forward_scales = {}, .backward_scales = {}, .step = 1};
  }
};

TEST(MemoryOfOneRank, EndsSavingAndLoadingAsOutOfMemoryOnAll) {
  const TemporaryDirectory folder;
  run_ranks("in_process", {.ranks = 2}, [&](ProcessGroup& group) {
    SmallRank rank(group, false);
    save_training_state(rank.runtime, path_of(folder), rank.state(), &group);
  });
  for (const bool saves : {true, false}) {
    std::vector<Thrown> thrown(2);
    run_ranks("in_process", {.ranks = 2}, [&](ProcessGroup& group) {
      SmallRank rank(group, true);
      thrown[static_cast<std::size_t>(group.rank())] = thrown_by([&] {
        if (saves)
          save_training_state(rank.runtime, path_of(folder), rank.state(), &group);
        else
          load_training_state(rank.runtime, path_of(folder), rank.state(), &group);
      });
      EXPECT_TRUE(rank.adam.state().empty());
      group.barrier("after the failure");
    });
    for (const Thrown& own : thrown) {
      EXPECT_TRUE(own.out_of_memory) << own.message;
      EXPECT_NE(own.message.find("out of device memory"), std::string::npos) << own.message;
    }
    EXPECT_NE(thrown[0].message.find("rank 1 could not"), std::string::npos) << thrown[0].message;
  }
}

// In one process the first error of all ranks is the error that the run reports, whichever rank it belongs to.
TEST(DamagedFileOfOneRank, IsNamedByTheErrorOfTheRun) {
  const TemporaryDirectory folder;
  const auto on_three = [&](const auto& work) {
    run_ranks("in_process", {.ranks = 3}, [&](ProcessGroup& group) {
      Rank rank(group, "current", kThree, kOptions);
      rank.run(1, 1);
      work(rank, group);
    });
  };
  on_three([&](Rank& rank, ProcessGroup& group) {
    save_training_state(rank.runtime, path_of(folder), rank.state(), &group);
  });
  std::fstream file(path_of(folder) / "save-1.rank-2", std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(-1, std::ios::end);
  file.put('\x55');
  file.close();
  for (int run = 0; run < 5; ++run) {
    const std::string message = support::error_of([&] {
      on_three([&](Rank& rank, ProcessGroup& group) {
        load_training_state(rank.runtime, path_of(folder), rank.state(), &group);
      });
    });
    EXPECT_NE(message.find("save-1.rank-2: entry '"), std::string::npos) << message;
  }
}

double seconds_of_this_thread() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// The least processor time of several calls of `work`, without what other threads and processes use.
template <class Work>
double seconds_of(const Work& work) {
  double least = std::numeric_limits<double>::infinity();
  for (int run = 0; run < 5; ++run) {
    const double before = seconds_of_this_thread();
    work();
    least = std::min(least, seconds_of_this_thread() - before);
  }
  return least;
}

RankFileRow write_entries(const TemporaryDirectory& folder, int rank, const std::vector<SavedEntry>& entries) {
  std::vector<EntryToWrite> to_write;
  for (const SavedEntry& entry : entries) to_write.push_back({entry, {}});
  return write_rank_file(path_of(folder), rank_file_name(1, rank), to_write);
}

/// To find every entry of a file once.
double seconds_to_find(int entries) {
  const TemporaryDirectory folder;
  std::vector<SavedEntry> list;
  for (int i = 0; i < entries; ++i)
    list.emplace_back().name = "layers[" + std::to_string(i) + "].mlp.fc1.weight: value";
  const RankFile file(path_of(folder), write_entries(folder, 0, list));
  return seconds_of([&] {
    for (const SavedEntry& entry : list) ASSERT_EQ(file.find(entry.name)->name, entry.name);
  });
}

// A search through all entries for each of them costs 256 times as much.
TEST(TimeToFindEntries, GrowsWithTheirNumber) {
  const double few = seconds_to_find(500), many = seconds_to_find(16 * 500);
  EXPECT_LT(many, 80 * few) << few << " s and " << many << " s";
}

/// To find the last rank's shard of a parameter, of which each of `ranks` files has one row.
double seconds_to_find_own_shard(int ranks) {
  const TemporaryDirectory folder;
  Manifest manifest;
  for (int rank = 0; rank < ranks; ++rank) {
    SavedEntry entry;
    entry.name = "w: value";
    entry.dtype = DType::kBF16;
    entry.global_rows = ranks;
    entry.first_row = rank;
    entry.rows = 1;
    manifest.files.push_back(write_entries(folder, rank, {entry}));
  }
  double seconds = 0.0;
  run_ranks("in_process", {.ranks = ranks}, [&](ProcessGroup& group) {
    const std::unique_ptr<Device> device = open_host();
    Sharded matrix(*device, {.shape = {1, 2}}, {std::int64_t{ranks}, 2});
    const std::vector<Parameter*> list = {&matrix.unsharded};
    const TrainingState state{.parameters = list, .optimizer = nullptr, .forward_scales = {}, .backward_scales = {}};
    const RowCuts cuts(state, &group);
    if (group.rank() + 1 < ranks) return;
    const SavedEntries entries(path_of(folder), manifest, state, cuts, group.rank());
    const EntryRequest request = entries.request_for(0, "value", DType::kBF16);
    const RankFile* own = nullptr;
    seconds = seconds_of([&] {
      for (int call = 0; call < 50; ++call) own = entries.own_file(request);
    });
    ASSERT_NE(own, nullptr);
    EXPECT_EQ(own->path().filename(), rank_file_name(1, group.rank()));
  });
  return seconds;
}

// Asking every file for every rank's rows costs 256 times as much.
TEST(TimeToFindShards, GrowsWithTheRanks) {
  const double few = seconds_to_find_own_shard(6), many = seconds_to_find_own_shard(16 * 6);
  EXPECT_LT(many, 80 * few) << few << " s and " << many << " s";
}

}  // namespace
}  // namespace fp8lab
