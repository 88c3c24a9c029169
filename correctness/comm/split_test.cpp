#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "comm/ranks.h"

// Sub-groups: which ranks they have, and that each proceeds independently.
namespace fp8lab::comm_test {
namespace {

class Splits : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Splits, testing::ValuesIn(rank_counts()), testing::PrintToStringParamName());

template <class Place>
std::vector<SplitPlace> places(int ranks, const Place& place) {
  std::vector<SplitPlace> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(place(rank));
  return all;
}

/// The world ranks of `group` as its members report them.
std::vector<std::int32_t> reported_members(ProcessGroup& group, int world_rank) {
  std::vector<std::int32_t> members(static_cast<std::size_t>(group.size()));
  std::vector<std::int64_t> offsets;
  for (int rank = 0; rank <= group.size(); ++rank) offsets.push_back(4 * rank);
  const std::int32_t own = world_rank;
  const GatherPart part{.from = reinterpret_cast<const std::byte*>(&own),
                        .to = reinterpret_cast<std::byte*>(members.data()),
                        .offsets_bytes = offsets};
  group.all_gather({&part, 1}, "who");
  return members;
}

TEST_P(Splits, RowsAndColumnsOfAMeshHaveTheirRanks) {
  for (int shards = 1; shards <= GetParam(); ++shards) {
    if (GetParam() % shards != 0) continue;
    on_ranks(GetParam(), [&](ProcessGroup& world) {
      const int rank = world.rank();
      const auto shard =
          world.split(places(world.size(), [&](int r) { return SplitPlace{r / shards, r % shards}; }), "shard");
      const auto replicate =
          world.split(places(world.size(), [&](int r) { return SplitPlace{r % shards, r / shards}; }), "replicate");
      std::vector<std::int32_t> row_ranks;
      for (int r = 0; r < shards; ++r) row_ranks.push_back(rank / shards * shards + r);
      std::vector<std::int32_t> column_ranks;
      for (int r = rank % shards; r < world.size(); r += shards) column_ranks.push_back(r);
      EXPECT_EQ(shard->name(), "shard");
      EXPECT_EQ(shard->rank(), rank % shards);
      EXPECT_EQ(replicate->rank(), rank / shards);
      EXPECT_EQ(reported_members(*shard, rank), row_ranks);
      EXPECT_EQ(reported_members(*replicate, rank), column_ranks);
      for (int r = 0; r < shard->size(); ++r) EXPECT_EQ(shard->world_rank(r), row_ranks[static_cast<std::size_t>(r)]);
    });
  }
}

TEST_P(Splits, RanksAreOrderedByKeyThenByRank) {
  on_ranks(GetParam(), [&](ProcessGroup& world) {
    const auto reversed = world.split(places(world.size(), [](int r) { return SplitPlace{0, -r}; }), "reversed");
    EXPECT_EQ(reversed->rank(), world.size() - 1 - world.rank());
    EXPECT_EQ(reversed->world_rank(0), world.size() - 1);
    const auto same = world.split(places(world.size(), [](int) { return SplitPlace{7, 7}; }), "same");
    EXPECT_EQ(same->rank(), world.rank());
    const auto alone = world.split(places(world.size(), [](int r) { return SplitPlace{r, 0}; }), "alone");
    EXPECT_EQ(alone->size(), 1);
    EXPECT_EQ(reported_members(*alone, world.rank()), std::vector<std::int32_t>{world.rank()});
  });
}

TEST_P(Splits, SumsFollowTheOrderOfTheSubGroup) {
  if (GetParam() < 3) GTEST_SKIP() << "three ranks are needed";
  on_ranks(GetParam(), [&](ProcessGroup& world) {
    const auto reversed = world.split(places(world.size(), [](int r) { return SplitPlace{0, -r}; }), "reversed");
    // Every 1.0f added before 2^24 counts; every 1.0f added after it vanishes.
    float in_order = world.rank() == 0 ? 0x1p24f : 1.0f;
    float backwards = in_order;
    const ReducePart first{.data = reinterpret_cast<std::byte*>(&in_order), .elems = 1};
    const ReducePart second{.data = reinterpret_cast<std::byte*>(&backwards), .elems = 1};
    world.all_reduce(ReduceOp::kSum, {&first, 1}, "x");
    reversed->all_reduce(ReduceOp::kSum, {&second, 1}, "x");
    EXPECT_EQ(in_order, 0x1p24f);
    EXPECT_EQ(backwards, static_cast<float>(world.size() - 1) + 0x1p24f);
  });
}

TEST_P(Splits, SubGroupsProceedIndependently) {
  on_ranks(GetParam(), [&](ProcessGroup& world) {
    const auto half = world.split(places(world.size(), [](int r) { return SplitPlace{r % 2, 0}; }), "half");
    std::vector<std::int32_t> expected;
    for (int r = world.rank() % 2; r < world.size(); r += 2) expected.push_back(r);
    for (int round = 0; round < (world.rank() % 2 == 0 ? 20 : 3); ++round)
      EXPECT_EQ(reported_members(*half, world.rank()), expected);
    world.barrier("all");
    // One sub-group splits again, then all ranks split: groups made after different histories must not be confused.
    std::unique_ptr<ProcessGroup> quarter;
    if (world.rank() % 2 == 0)
      quarter = half->split(places(half->size(), [](int r) { return SplitPlace{r % 2, r}; }), "quarter");
    const auto again = world.split(places(world.size(), [](int r) { return SplitPlace{r / 2, 0}; }), "again");
    std::vector<std::int32_t> pair;
    for (int r = world.rank() / 2 * 2; r < std::min(world.size(), world.rank() / 2 * 2 + 2); ++r) pair.push_back(r);
    EXPECT_EQ(reported_members(*again, world.rank()), pair);
    if (quarter) {
      std::vector<std::int32_t> fourths;
      for (int r = world.rank() % 4; r < world.size(); r += 4) fourths.push_back(r);
      EXPECT_EQ(reported_members(*quarter, world.rank()), fourths);
    }
  });
}

TEST_P(Splits, RunDoesNotInheritSplitsOfTheRunBefore) {
  on_ranks(GetParam(), [&](ProcessGroup& world) {
    const auto half = world.split(places(world.size(), [](int r) { return SplitPlace{r % 2, 0}; }), "half");
    if (world.rank() % 2 == 0) half->split(places(half->size(), [](int r) { return SplitPlace{r, 0}; }), "alone");
  });
  on_ranks(GetParam(), [&](ProcessGroup& world) {
    std::vector<std::int32_t> everyone;
    for (int r = 0; r < world.size(); ++r) everyone.push_back(r);
    EXPECT_EQ(reported_members(world, world.rank()), everyone);
  });
}

TEST_P(Splits, SubGroupsCountTheirTrafficSeparately) {
  on_ranks(GetParam(), [&](ProcessGroup& world) {
    const auto half = world.split(places(world.size(), [](int r) { return SplitPlace{r % 2, 0}; }), "half");
    half->barrier("x");
    half->barrier("y");
    EXPECT_EQ(half->traffic().of(CollectiveKind::kBarrier).collectives, 2);
    EXPECT_EQ(world.traffic().of(CollectiveKind::kBarrier).collectives, 0);
    EXPECT_EQ(world.traffic().of(CollectiveKind::kSplit).collectives, 1);
  });
}

}  // namespace
}  // namespace fp8lab::comm_test
