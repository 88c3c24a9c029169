// Gathers in the memory of a group's gather_source(): the bytes equal those gathered in any other memory, on every
// path; the memory outlives its group; and it runs out on all ranks at once.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/device_ranks.h"

namespace fp8lab::comm_test {
namespace {

int gathering_ranks() {
  if (launched_ranks() > 0) return launched_ranks();
  return on_gpu() ? count_gpus(support::test_device()) : 3;
}

/// Why the ranks of this run cannot gather from each other; empty if they can.
std::string too_few_for_gathers() {
  if (gathering_ranks() < 2) return "two ranks are needed";
  return !on_gpu() || count_gpus(support::test_device()) >= 2 ? "" : "two GPUs are needed";
}

/// One tensor of an all-gather: `each` bytes per rank; if it is uneven, each rank has one more than the rank before.
struct Gathered {
  std::int64_t each = 0;
  bool uneven = false;
  bool in_place = false;
  bool shared = true;  ///< both buffers in Pool::kGathered, else both elsewhere
};

std::ptrdiff_t notes_of_writes(Device& device) {
  const std::vector<std::string> notes = device.notes();
  return std::count(notes.begin(), notes.end(), "all-gathers over NCCL: written to the others' windows");
}

class GatherRank {
 public:
  explicit GatherRank(Gpu& gpu) : gpu_(gpu), shared_(gpu.device().holder(HolderKind::kUnsharded, "", "shared")) {
    gpu.device().memory().place(shared_, Pool::kGathered);
  }

  Tensor allocate(std::int64_t bytes, bool shared) {
    if (!shared) return gpu_.empty(bytes);
    return gpu_.device().allocate({Shape{bytes}, DType::kU8}, shared_);
  }

  /// Gathers all of `which` in one call and checks the received bytes.
  void gather(std::span<const Gathered> which, std::uint64_t seed, bool async) {
    ProcessGroup& group = gpu_.group();
    const auto rank = static_cast<std::size_t>(group.rank());
    std::vector<std::vector<std::int64_t>> offsets;
    std::vector<Tensor> froms, targets;
    std::vector<GatherPart> parts;
    for (const Gathered& part : which) {
      std::vector<std::int64_t>& places = offsets.emplace_back(1, 0);
      for (int other = 0; other < group.size(); ++other)
        places.push_back(places.back() + part.each + (part.uneven ? other : 0));
      const std::int64_t own = places[rank + 1] - places[rank];
      const Tensor& target = targets.emplace_back(allocate(places.back(), part.shared));
      froms.push_back(part.in_place ? target.reshaped({1, places.back()}).columns(places[rank], own).reshaped({own})
                                    : allocate(own, part.shared));
      gpu_.device().write_bytes(froms.back(), bytes_of(froms.size() - 1, group.rank(), own, seed));
    }
    for (std::size_t i = 0; i < which.size(); ++i)
      parts.push_back({.from = at(froms[i]), .to = at(targets[i]), .offsets_bytes = offsets[i]});
    if (async) {
      group.all_gather_async(parts, "parts");
      group.wait_for_async();
    } else {
      group.all_gather(parts, "parts");
    }
    for (std::size_t i = 0; i < which.size(); ++i) {
      const std::vector<std::byte> seen = gpu_.read(targets[i]);
      for (std::size_t other = 0; other + 1 < offsets[i].size(); ++other) {
        const std::int64_t first = offsets[i][other], bytes = offsets[i][other + 1] - first;
        EXPECT_TRUE(
            reference::same_bytes(part_of(seen, first, bytes), bytes_of(i, static_cast<int>(other), bytes, seed)))
            << "part " << i << " of seed " << seed << ": rank " << other << "'s bytes on rank " << group.rank();
      }
    }
  }

 private:
  static std::vector<std::byte> bytes_of(std::size_t part, int rank, std::int64_t bytes, std::uint64_t seed) {
    return test_bytes(100 * seed + part, rank, bytes);
  }

  Gpu& gpu_;
  HolderId shared_;
};

constexpr std::int64_t kKiB = 1024;

// Gathers through each path of NCCL's ranks, and through several in one call. If the machine's GPUs lack a path,
// another one serves.
TEST(GatherMemory, GathersHaveTheSameBytesOnEveryPath) {
  if (const std::string reason = too_few_for_gathers(); !reason.empty()) GTEST_SKIP() << reason;
  constexpr std::array kParts = {
      Gathered{.each = 1500 * kKiB},
      Gathered{.each = 1},
      Gathered{.each = 4099},
      Gathered{.each = 700 * kKiB, .in_place = true},
      Gathered{.each = 0},
      Gathered{.each = 512, .in_place = true},
      Gathered{.each = 300 * kKiB + 6, .shared = false},
      Gathered{.each = 800 * kKiB, .shared = false},
      Gathered{.each = 40 * kKiB, .uneven = true, .shared = false},
      Gathered{.each = 1030},
      Gathered{.each = 1200 * kKiB + 2},
  };
  struct Case {
    PeerCopyPath path = PeerCopyPath::kBySize;
    std::int64_t writes_from_bytes = 0;
  };
  std::vector<Case> cases(1);
  if (on_gpu()) {
    for (const PeerCopyPath path : {PeerCopyPath::kProcessors, PeerCopyPath::kCopyEngines})
      cases.push_back({.path = path});
    for (const std::int64_t from : {kKiB * kKiB, std::int64_t{1} << 50}) cases.push_back({.writes_from_bytes = from});
  }
  for (const Case& one : cases) {
    RunOptions options = run_options(gathering_ranks());
    options.peer_copies = one.path;
    options.writes_from_bytes = one.writes_from_bytes;
    run_ranks(row(), options, [&](ProcessGroup& world) {
      Gpu gpu(world);
      GatherRank rank(gpu);
      std::unique_ptr<SegmentSource> source = gpu.group().gather_source();
      if (row() == "nccl") {
        EXPECT_NE(source, nullptr);
      }
      gpu.device().memory().gather_from(std::move(source));
      for (std::uint64_t round = 0; round < 4; ++round) rank.gather(kParts, round, round % 2 == 1);
      rank.gather(std::vector(70, Gathered{.each = 4 * kKiB + 16}), 5, false);  // more than one launch holds
      // One part at a time, so that each call uses only that part's path.
      for (std::size_t i = 0; i < kParts.size(); ++i) rank.gather(std::span(kParts).subspan(i, 1), 10 + i, i % 2 == 1);
      if (row() == "nccl" && one.writes_from_bytes == 0) {
        EXPECT_EQ(notes_of_writes(gpu.device()), 1) << "GPUs that reach each other write";
      }
      // Without a source, gathers work in any memory.
      gpu.device().memory().gather_from(nullptr);
      rank.gather(kParts, 30, false);
    });
  }
}

// A chain of gathers without a wait by the host, on ranks of different speed. The bytes to send are written late and
// overwritten as soon as the call has returned; the buffer that receives them is overwritten as well.
TEST(GatherMemory, IsReadAndWrittenInTheOrderOfTheDevice) {
  if (const std::string reason = too_few_for_gathers(); !reason.empty()) GTEST_SKIP() << reason;
  const RunOptions options = run_options(gathering_ranks());
  run_ranks(row(), options, [&](ProcessGroup& world) {
    constexpr std::uint64_t kRounds = 12;
    const std::int64_t bytes = on_gpu() ? 1 << 22 : 1 << 16;
    Gpu gpu(world);
    GatherRank rank(gpu);
    gpu.device().memory().gather_from(gpu.group().gather_source());
    std::vector<std::int64_t> offsets;
    for (int other = 0; other <= world.size(); ++other) offsets.push_back(other * bytes);
    std::vector<Tensor> patterns, seen;
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      patterns.push_back(gpu.bytes(std::vector(static_cast<std::size_t>(bytes), test_byte(round, world.rank(), 5))));
      seen.push_back(gpu.empty(offsets.back()));
    }
    const Tensor own = rank.allocate(bytes, true), target = rank.allocate(offsets.back(), true);
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const auto slow = static_cast<std::uint64_t>(world.size()) - 1 - round % static_cast<std::uint64_t>(world.size());
      for (int i = 0; i < 20 && slow == static_cast<std::uint64_t>(world.rank()); ++i)
        gpu.device().copy_bytes(patterns[(round + 1) % kRounds], own);
      gpu.device().copy_bytes(patterns[round], own);
      const GatherPart part{.from = at(own), .to = at(target), .offsets_bytes = offsets};
      if (round % 3 == 1) {
        gpu.group().all_gather_async({&part, 1}, "w");
        gpu.group().wait_for_async();
      } else {
        gpu.group().all_gather({&part, 1}, "w");
      }
      gpu.device().copy_bytes(target, seen[round]);
    }
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const std::vector<std::byte> read = gpu.read(seen[round]);
      for (std::size_t other = 0; other + 1 < offsets.size(); ++other)
        EXPECT_TRUE(
            reference::all_are(part_of(read, offsets[other], bytes), test_byte(round, static_cast<int>(other), 5)))
            << "round " << round << ", rank " << other << "'s bytes on rank " << world.rank();
    }
    gpu.device().memory().gather_from(nullptr);
  });
}

TEST(GatherMemory, OutlivesItsGroup) {
  if (const std::string reason = too_few_for_gathers(); !reason.empty()) GTEST_SKIP() << reason;
  run_ranks(row(), run_options(gathering_ranks()), [&](ProcessGroup& world) {
    const std::unique_ptr<Device> device = open_rank_device(world);
    const HolderId shared = device->holder(HolderKind::kUnsharded, "", "shared");
    device->memory().place(shared, Pool::kGathered);
    constexpr std::int64_t kBytes = 5 * kKiB * kKiB;
    std::array<Tensor, 2> kept;
    for (Tensor& tensor : kept) {
      const auto group = world.for_device(*device);
      device->memory().gather_from(group->gather_source());
      tensor = device->allocate({Shape{kBytes}, DType::kU8}, shared);
      const Tensor gone = device->allocate({Shape{30 * kKiB * kKiB}, DType::kU8}, shared);
      if (&tensor == &kept[0]) device->memory().gather_from(nullptr);  // before its group ends; the other one after it
    }
    const std::vector<std::byte> ones(kBytes, std::byte{1});
    device->write_bytes(kept[0], ones);
    device->write_bytes(kept[1], ones);
    kept[0] = {};
    const Tensor later = device->allocate({Shape{kBytes}, DType::kU8}, shared);  // the group of the source is gone
    device->memory().gather_from(nullptr);
    EXPECT_TRUE(reference::same_bytes(device->read_bytes(kept[1]), ones));
    if (world.rank() == 0) kept[1] = {};
  });
}

// A request that one rank cannot satisfy fails on every rank, so that none waits for it; smaller requests succeed.
TEST(GatherMemory, RunsOutOnAllRanksOrNone) {
  if (const std::string reason = too_few_for_gathers(); !reason.empty()) GTEST_SKIP() << reason;
  if (!on_gpu()) GTEST_SKIP() << "the memory of a GPU is needed";
  constexpr std::int64_t kMiB = kKiB * kKiB;
  run_ranks(row(), run_options(gathering_ranks()), [&](ProcessGroup& world) {
    const std::size_t capacity = world.rank() == 0 ? static_cast<std::size_t>(64 * kMiB) : 0;
    const auto device =
        open_device(support::test_device(), {.rank = world.local_rank(), .memory = {.capacity_bytes = capacity}});
    const auto group = world.for_device(*device);
    std::unique_ptr<SegmentSource> source = group->gather_source();
    const bool together = source != nullptr;
    device->memory().gather_from(std::move(source));
    const HolderId shared = device->holder(HolderKind::kUnsharded, "", "shared");
    device->memory().place(shared, Pool::kGathered);
    const auto takes = [&](std::int64_t bytes) {
      try {
        device->allocate({Shape{bytes}, DType::kU8}, shared);
      } catch (const OutOfMemory&) {
        return false;
      }
      return true;
    };
    EXPECT_EQ(takes(100 * kMiB), !together && world.rank() != 0);
    EXPECT_FALSE(takes(std::int64_t{1} << 42)) << "no GPU has that";
    EXPECT_TRUE(takes(50 * kMiB));
    EXPECT_TRUE(takes(60 * kMiB)) << "after free segments were returned";
    device->memory().gather_from(nullptr);
  });
}

}  // namespace
}  // namespace fp8lab::comm_test
