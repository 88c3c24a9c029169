#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "comm/device_ranks.h"
#include "comm/staged.h"

// Collectives over device memory leave the bits there that the same collectives leave in host memory, in the order of
// the device's work. Without a GPU the device is made of host memory; under a launcher the ranks are processes.
namespace fp8lab::comm_test {
namespace {

using reference::all_are;
using reference::same_bytes;

class OnDevices : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, OnDevices, testing::ValuesIn(rank_counts()), testing::PrintToStringParamName());

std::uint64_t draw(std::uint64_t step, std::uint64_t what) {
  return reference::scramble(reference::scramble(771 + step) ^ what);
}

/// Arbitrary bits, or values whose sums are mostly finite and rounded.
std::vector<std::byte> summands(std::uint64_t step, int rank, std::int64_t bytes) {
  std::vector<std::byte> all = test_bytes(step, rank, bytes);
  if (step % 2 == 0 || bytes < 4) return all;
  const std::vector<float> values = test_values(step, rank, bytes / 4);
  std::memcpy(all.data(), values.data(), 4 * values.size());
  return all;
}

TEST_P(OnDevices, CollectivesLeaveTheBitsThatTheyLeaveInHostMemory) {
  constexpr std::array kTypes = {DType::kF32, DType::kBF16, DType::kI32, DType::kI64};
  on_ranks(GetParam(), [&](ProcessGroup& world) {
    Gpu gpu(world);
    ProcessGroup& group = gpu.group();
    const auto rank = static_cast<std::size_t>(world.rank());
    for (std::uint64_t step = 0; step < 48; ++step) {
      const DType dtype = kTypes[draw(step, 0) % kTypes.size()];
      const auto element = static_cast<std::int64_t>(size_bytes(dtype));
      // Every third step has sizes that are multiples of 16 elements, which the fast paths need; some ranks have
      // nothing.
      const std::int64_t unit = step % 3 == 0 ? 16 : 1;
      std::vector<std::int64_t> offsets = {0}, in_bytes = {0};
      for (int other = 0; other < world.size(); ++other) {
        const std::uint64_t drawn = draw(step, 10 + static_cast<std::uint64_t>(other));
        offsets.push_back(offsets.back() + (drawn % 7 == 0 ? 0 : unit * static_cast<std::int64_t>(drawn % 3000)));
        in_bytes.push_back(offsets.back() * element);
      }
      const std::int64_t own = in_bytes[rank + 1] - in_bytes[rank];
      std::vector<std::byte> all_ranks = summands(step, world.rank(), in_bytes.back());
      std::vector<std::byte> result(all_ranks.size());
      Tensor source = gpu.bytes(all_ranks), target = gpu.empty(in_bytes.back());
      switch (draw(step, 2) % 6) {
        case 0: {
          const GatherPart part{
              .from = all_ranks.data() + in_bytes[rank], .to = result.data(), .offsets_bytes = in_bytes};
          world.all_gather({&part, 1}, "g");
          const GatherPart there{.from = at(source, in_bytes[rank]), .to = at(target), .offsets_bytes = in_bytes};
          group.all_gather({&there, 1}, "g");
          break;
        }
        case 1: {
          GatherPart part{.from = all_ranks.data() + in_bytes[rank], .to = all_ranks.data(), .offsets_bytes = in_bytes};
          world.all_gather({&part, 1}, "in place");
          part = {.from = at(source, in_bytes[rank]), .to = at(source), .offsets_bytes = in_bytes};
          group.all_gather({&part, 1}, "in place");
          result = all_ranks;
          target = source;
          break;
        }
        case 2: {
          result.resize(static_cast<std::size_t>(own));
          const ScatterPart part{
              .from = all_ranks.data(), .to = result.data(), .offsets_elems = offsets, .dtype = dtype};
          world.reduce_scatter({&part, 1}, "s");
          target = gpu.empty(own);
          const ScatterPart there{.from = at(source), .to = at(target), .offsets_elems = offsets, .dtype = dtype};
          group.reduce_scatter({&there, 1}, "s");
          break;
        }
        case 3:
        case 4: {
          const ReduceOp op = draw(step, 2) % 6 == 3 ? ReduceOp::kSum : ReduceOp::kMax;
          const auto reduce = [&](ProcessGroup& over, std::byte* data) {
            const std::array<ReducePart, 2> parts = {
                ReducePart{.data = data, .elems = offsets[1], .dtype = dtype},
                ReducePart{.data = data + in_bytes[1], .elems = offsets.back() - offsets[1], .dtype = dtype}};
            over.all_reduce(op, parts, "r");
          };
          reduce(world, all_ranks.data());
          reduce(group, at(source));
          result = all_ranks;
          target = source;
          break;
        }
        default: {
          const int root = static_cast<int>(draw(step, 3) % static_cast<std::uint64_t>(world.size()));
          const BroadcastPart part{.data = all_ranks.data(), .bytes = in_bytes.back()};
          world.broadcast(root, {&part, 1}, "b");
          const BroadcastPart there{.data = at(source), .bytes = in_bytes.back()};
          group.broadcast(root, {&there, 1}, "b");
          result = all_ranks;
          target = source;
        }
      }
      EXPECT_TRUE(same_bytes(gpu.read(target), result)) << "step " << step << " on rank " << rank;
    }
  });
}

// The buffer that was sent is freed at once, and the device poisons it.
TEST_P(OnDevices, RingExchangesPassEveryRanksBytesOn) {
  on_ranks(GetParam(), [&](ProcessGroup& world) {
    Gpu gpu(world);
    for (const std::int64_t bytes : {std::int64_t{5}, std::int64_t{1} << (on_gpu() ? 22 : 16)}) {
      Tensor have = gpu.bytes(std::vector(static_cast<std::size_t>(bytes), test_byte(1, world.rank(), bytes)));
      Tensor scale = gpu.bytes(std::vector(4, test_byte(2, world.rank(), bytes)));
      for (int step = 1; step < world.size(); ++step) {
        const Tensor received = gpu.empty(bytes), received_scale = gpu.empty(4);
        const std::array<ExchangePart, 2> parts = {
            ExchangePart{.from = at(have), .to = at(received), .bytes = bytes},
            ExchangePart{.from = at(scale), .to = at(received_scale), .bytes = 4, .content = Content::kScales}};
        gpu.group().ring_exchange(-1, parts, "keys");
        have = received;
        scale = received_scale;
        const int owner = (world.rank() + step) % world.size();
        EXPECT_TRUE(
            same_bytes(gpu.read(have), std::vector(static_cast<std::size_t>(bytes), test_byte(1, owner, bytes))))
            << "step " << step << " on rank " << world.rank();
        EXPECT_TRUE(gpu.read(scale) == std::vector(4, test_byte(2, owner, bytes)));
      }
    }
  });
}

// Other numbers of other bytes for every pair of ranks, none for every third pair, and none from rank 1. The buffers
// that were sent are freed at once, and the device poisons them. Three bytes take another copy path than 16 do, and
// large numbers another one.
TEST_P(OnDevices, AllToAllsSendEachRankItsOwnBytes) {
  on_ranks(GetParam(), [&](ProcessGroup& world) {
    Gpu gpu(world);
    const int ranks = world.size(), rank = world.rank();
    for (const std::int64_t unit : {3, 16, on_gpu() && ranks < 16 ? 1 << 20 : 4096}) {
      std::vector<std::int64_t> sizes;
      for (int s = 0; s < ranks; ++s)
        for (int d = 0; d < ranks; ++d) sizes.push_back(s == 1 || (s + 2 * d) % 3 == 2 ? 0 : unit * (1 + s + 3 * d));
      const auto sent = [&](std::uint64_t part, int s, int d) {
        return test_bytes(100 * part + static_cast<std::uint64_t>(d), s,
                          sizes[static_cast<std::size_t>(s * ranks + d)]);
      };
      std::vector<Tensor> from, to;
      std::vector<AllToAllPart> parts;
      std::vector<std::vector<std::byte>> expected;
      for (const std::uint64_t part : {1, 2}) {
        std::vector<std::byte> all_sent, all_received;
        for (int other = 0; other < ranks; ++other) {
          const std::vector<std::byte> mine = sent(part, rank, other), theirs = sent(part, other, rank);
          all_sent.insert(all_sent.end(), mine.begin(), mine.end());
          all_received.insert(all_received.end(), theirs.begin(), theirs.end());
        }
        from.push_back(gpu.bytes(all_sent));
        to.push_back(gpu.empty(std::ssize(all_received)));
        parts.push_back({.from = at(from.back()), .to = at(to.back()), .bytes = sizes});
        expected.push_back(std::move(all_received));
      }
      gpu.group().all_to_all(parts, "tokens");
      from.clear();
      for (std::size_t i = 0; i < parts.size(); ++i)
        EXPECT_TRUE(same_bytes(gpu.read(to[i]), expected[i]))
            << "part " << i << ", units of " << unit << " bytes on rank " << rank;
    }
  });
}

/// Tensors of each of kSharings in one call. The large ones at the end take another copy path of GPUs.
TEST_P(OnDevices, ManyTensorsAreGatheredInOneCollective) {
  on_ranks(GetParam(), [&](ProcessGroup& world) {
    Gpu gpu(world);
    const auto rank = static_cast<std::size_t>(world.rank());
    for (const std::int64_t scale : {1, on_gpu() ? 256 : 16}) {
      std::vector<std::vector<std::int64_t>> offsets;
      std::vector<Tensor> from, to;
      std::vector<GatherPart> parts;
      for (std::size_t i = 0; i < 3 * std::size(kSharings); ++i) {
        offsets.push_back(kSharings[i % std::size(kSharings)].offsets(world.size()));
        for (std::int64_t& offset : offsets.back()) offset *= i % 2 == 0 ? scale : 1;
      }
      for (std::size_t i = 0; i < offsets.size(); ++i) {
        const std::int64_t own = offsets[i][rank + 1] - offsets[i][rank];
        from.push_back(gpu.bytes(std::vector(static_cast<std::size_t>(own), test_byte(i, world.rank(), 7))));
        to.push_back(gpu.empty(offsets[i].back()));
        parts.push_back({.from = at(from[i]), .to = at(to[i]), .offsets_bytes = offsets[i]});
      }
      gpu.group().all_gather(parts, "layer");
      for (std::size_t i = 0; i < offsets.size(); ++i) {
        const std::vector<std::byte> seen = gpu.read(to[i]);
        for (int other = 0; other < world.size(); ++other) {
          const auto slot = static_cast<std::size_t>(other);
          EXPECT_TRUE(
              all_are(part_of(seen, offsets[i][slot], offsets[i][slot + 1] - offsets[i][slot]), test_byte(i, other, 7)))
              << "tensor " << i << " of rank " << other << " on rank " << rank;
        }
      }
      EXPECT_EQ(gpu.group().traffic().of(CollectiveKind::kAllGather).collectives, 1);
      gpu.group().reset_traffic();
    }
  });
}

// The device poisons freed memory at once, and a new allocation gets the memory that was just freed.
TEST_P(OnDevices, BuffersMayBeFreedAfterTheCall) {
  const std::int64_t bytes = !on_gpu() ? 1 << 16 : GetParam() < 16 ? 1 << 22 : 1 << 20;
  on_ranks(GetParam(), [&](ProcessGroup& world) {
    Gpu gpu(world);
    std::vector<std::int64_t> offsets;
    for (int other = 0; other <= world.size(); ++other) offsets.push_back(other * bytes);
    for (const bool async : {false, true}) {
      for (std::uint64_t round = 0; round < 12; ++round) {
        Tensor from =
            gpu.bytes(std::vector(static_cast<std::size_t>(bytes), test_byte(round, world.rank(), async ? 1 : 0)));
        const Tensor to = gpu.empty(offsets.back());
        const GatherPart part{.from = at(from), .to = at(to), .offsets_bytes = offsets};
        if (async) {
          gpu.group().all_gather_async({&part, 1}, "w");
          gpu.group().wait_for_async();
        } else {
          gpu.group().all_gather({&part, 1}, "w");
        }
        from = {};
        const std::vector<std::byte> seen = gpu.read(to);
        for (int other = 0; other < world.size(); ++other)
          EXPECT_TRUE(all_are(part_of(seen, other * bytes, bytes), test_byte(round, other, async ? 1 : 0)))
              << "round " << round << ", rank " << other << "'s bytes on rank " << world.rank();
      }
    }
  });
}

// The bytes that a rank sends are still being computed, at the end of a long queue, when the others read them.
TEST_P(OnDevices, BytesLaunchedBeforeTheCallAreSent) {
  const std::int64_t bytes = on_gpu() ? 1 << 24 : 1 << 18;
  on_ranks(GetParam(), [&](ProcessGroup& world) {
    Gpu gpu(world);
    std::vector<std::int64_t> offsets;
    for (int other = 0; other <= world.size(); ++other) offsets.push_back(other * bytes);
    const Tensor old = gpu.bytes(std::vector(static_cast<std::size_t>(bytes), std::byte{0xEE}));
    const Tensor made = gpu.empty(bytes), to = gpu.empty(offsets.back());
    for (std::uint64_t round = 0; round < 4; ++round) {
      const Tensor fresh = gpu.bytes(std::vector(static_cast<std::size_t>(bytes), test_byte(round, world.rank(), 5)));
      world.barrier("together");
      for (int i = 0; i < 40; ++i) gpu.device().copy_bytes(old, made);
      gpu.device().copy_bytes(fresh, made);
      const GatherPart part{.from = at(made), .to = at(to), .offsets_bytes = offsets};
      if (round % 2 == 0) {
        gpu.group().all_gather({&part, 1}, "w");
      } else {
        gpu.group().all_gather_async({&part, 1}, "w");
        gpu.group().wait_for_async();
      }
      const std::vector<std::byte> seen = gpu.read(to);
      for (int other = 0; other < world.size(); ++other)
        EXPECT_TRUE(all_are(part_of(seen, other * bytes, bytes), test_byte(round, other, 5)))
            << "round " << round << ", rank " << other << "'s bytes on rank " << world.rank();
    }
  });
}

// A chain of rounds without a wait by the host: each round reduces the result of the round before.
TEST_P(OnDevices, CollectivesRunInTheOrderOfTheirCalls) {
  on_ranks(GetParam(), [&](ProcessGroup& world) {
    Gpu gpu(world);
    constexpr std::int64_t kElems = 40'003;
    std::vector<float> values(kElems, static_cast<float>(world.rank() + 1));
    const Tensor data = gpu.bytes(std::as_bytes(std::span(values)));
    const Tensor copy = gpu.empty(kElems * 4 * world.size());
    std::vector<std::int64_t> offsets;
    for (int other = 0; other <= world.size(); ++other) offsets.push_back(other * kElems * 4);
    float expected = 0.0f;
    for (int other = 0; other < world.size(); ++other) expected += static_cast<float>(other + 1);
    for (int round = 0; round < 4; ++round) {
      const ReducePart reduced{.data = at(data), .elems = kElems};
      gpu.group().all_reduce(ReduceOp::kSum, {&reduced, 1}, "sum");
      const GatherPart gathered{.from = at(data), .to = at(copy), .offsets_bytes = offsets};
      gpu.group().all_gather({&gathered, 1}, "copy");
      if (round > 0) expected *= static_cast<float>(world.size());
    }
    std::vector<float> seen(static_cast<std::size_t>(kElems * world.size()));
    const std::vector<std::byte> raw = gpu.read(copy);
    std::memcpy(seen.data(), raw.data(), raw.size());
    EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [&](float value) { return value == expected; }));
  });
}

TEST_P(OnDevices, SubGroupsInheritTheDevice) {
  on_ranks(GetParam(), [&](ProcessGroup& world) {
    Gpu gpu(world);
    EXPECT_EQ(world.device(), nullptr);
    EXPECT_EQ(gpu.group().device(), &gpu.device());
    std::vector<SplitPlace> places;
    for (int rank = 0; rank < world.size(); ++rank) places.push_back({.color = rank % 2, .key = -rank});
    const auto half = gpu.group().split(places, "half");
    EXPECT_EQ(half->device(), &gpu.device());
    EXPECT_EQ(half->world_rank(half->rank()), world.rank());
    std::vector<std::int64_t> value = {std::int64_t{1} << world.rank()};
    const Tensor data = gpu.bytes(std::as_bytes(std::span(value)));
    const ReducePart part{.data = at(data), .elems = 1, .dtype = DType::kI64};
    half->all_reduce(ReduceOp::kSum, {&part, 1}, "members");
    std::int64_t members = 0;
    for (int rank = world.rank() % 2; rank < world.size(); rank += 2) members += std::int64_t{1} << rank;
    std::int64_t seen = 0;
    const std::vector<std::byte> raw = gpu.read(data);
    std::memcpy(&seen, raw.data(), sizeof seen);
    EXPECT_EQ(seen, members);
    const ReducePart there{.data = reinterpret_cast<std::byte*>(value.data()), .elems = 1, .dtype = DType::kI64};
    half->host().all_reduce(ReduceOp::kSum, {&there, 1}, "members, on the host");
    EXPECT_EQ(value[0], members);
    EXPECT_EQ(half->host().device(), nullptr);
  });
}

// Staged and world group are split for the first time: they count their calls separately and share a group below.
TEST_P(OnDevices, StagedSplitsAreIndependentOfSplitsOfTheWorld) {
  on_ranks(GetParam(), [&](ProcessGroup& world) {
    const std::unique_ptr<Device> device = open_rank_device(world);
    std::vector<SplitPlace> parity, two_groups;
    for (int rank = 0; rank < world.size(); ++rank) {
      parity.push_back({.color = rank % 2, .key = 0});
      two_groups.push_back({.color = 2 * rank / world.size(), .key = 0});
    }
    const auto by_parity = world.split(parity, "parity");
    const auto staged = make_staged_group(world, *device);
    const auto half = staged->split(two_groups, "half");
    std::int64_t members = 0, seen = std::int64_t{1} << world.rank();
    for (int rank = 0; rank < world.size(); ++rank)
      if (two_groups[static_cast<std::size_t>(rank)].color == two_groups[static_cast<std::size_t>(world.rank())].color)
        members += std::int64_t{1} << rank;
    const ReducePart part{.data = reinterpret_cast<std::byte*>(&seen), .elems = 1, .dtype = DType::kI64};
    half->host().all_reduce(ReduceOp::kSum, {&part, 1}, "members");
    EXPECT_EQ(seen, members);
    by_parity->barrier("together");
  });
}

TEST_P(OnDevices, StagedReduceScatterHasTheBitsOfTheHosts) {
  on_ranks(GetParam(), [&](ProcessGroup& world) {
    const std::unique_ptr<Device> device = open_rank_device(world);
    const auto staged = make_staged_group(world, *device);
    constexpr std::int64_t kElems = 1003;
    std::vector<std::int64_t> offsets;
    for (int other = 0; other <= world.size(); ++other) offsets.push_back(other * kElems);
    std::vector<float> values(static_cast<std::size_t>(offsets.back())), sums(kElems);
    for (std::int64_t i = 0; i < offsets.back(); ++i)
      values[static_cast<std::size_t>(i)] = test_value(3, world.rank(), i);
    const auto holder = device->holder(HolderKind::kInput, "", "x");
    const Tensor from = device->allocate({Shape{offsets.back()}, DType::kF32}, holder);
    const Tensor to = device->allocate({Shape{kElems}, DType::kF32}, holder);
    device->write_bytes(from, std::as_bytes(std::span(values)));
    const ScatterPart here{.from = reinterpret_cast<std::byte*>(values.data()),
                           .to = reinterpret_cast<std::byte*>(sums.data()),
                           .offsets_elems = offsets};
    world.reduce_scatter({&here, 1}, "g");
    const ScatterPart there{.from = at(from), .to = at(to), .offsets_elems = offsets};
    staged->reduce_scatter({&there, 1}, "g");
    const std::vector<std::byte> seen = device->read_bytes(to);
    EXPECT_EQ(std::memcmp(seen.data(), sums.data(), seen.size()), 0);
  });
}

}  // namespace
}  // namespace fp8lab::comm_test
