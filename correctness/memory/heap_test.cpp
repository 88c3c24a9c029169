#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/heap_allocations.h"
#include "memory/memory.h"

// Steps that allocate, hold, rename and free as the step before did allocate nothing from the heap.
namespace fp8lab {
namespace {

/// Addresses without memory behind them, as on the meta device.
class Addresses final : public SegmentSource {
 public:
  std::byte* reserve(std::size_t bytes) override {
    std::byte* segment = reinterpret_cast<std::byte*>(next_);
    next_ += bytes;
    return segment;
  }
  void release(std::byte*, std::size_t) noexcept override {}

 private:
  std::uintptr_t next_ = std::uintptr_t{1} << 40;
};

constexpr int kGroups = 12;
// Small and large blocks, split from segments and in segments of their own; one is empty.
constexpr std::array<std::int64_t, 6> kSizes = {0, 4, 5'000, 700'000, 3'000'000, 40'000'000};

/// What a sharded module does before its forward and after it, group by group: it allocates
/// unsharded weights in addition to shards, claims them under several names, and frees all but the
/// shards.
class Step {
 public:
  explicit Step(Memory& memory) : memory_(memory) {
    for (int group = 0; group < kGroups; ++group) {
      const std::string owner = "layers[" + std::to_string(group) + "].a_name_that_no_small_string_holds";
      Ledger& ledger = memory.ledger();
      holders_.push_back({ledger.holder(HolderKind::kWorkspace, owner, "gathered"),
                          ledger.holder(HolderKind::kInFlight, owner, "weight"),
                          ledger.holder(HolderKind::kSavedSlot, owner, "weight"),
                          ledger.holder(HolderKind::kContext, owner, "weight")});
      shards_.push_back(memory.allocate(1'000'000, ledger.holder(HolderKind::kParameter, owner, "shard")));
    }
    for (std::vector<BufferRef>& kept : kept_) kept.reserve(kGroups * kSizes.size() * 3);
  }

  void operator()(int step) {
    Ledger& ledger = memory_.ledger();
    ledger.reset_peak();
    ledger.set_phase(PhaseKind::kForward, step);
    for (const Holders& names : holders_) {
      for (const std::int64_t bytes : kSizes) {
        BufferRef full = memory_.allocate(bytes, names.gathered);
        kept_[0].push_back(full.held_by(names.weight));
        kept_[1].push_back(full.held_by(names.slot));
        kept_[1].push_back(full.held_by(names.context));
        kept_[1].push_back(full);
        full.rename(names.weight);
      }
      kept_[0].clear();
    }
    ledger.set_phase(PhaseKind::kBackward, step);
    while (!kept_[1].empty()) kept_[1].pop_back();
    ledger.set_phase(PhaseKind::kIdle, step);
  }

 private:
  struct Holders {
    HolderId gathered;
    HolderId weight;
    HolderId slot;
    HolderId context;
  };
  Memory& memory_;
  std::vector<Holders> holders_;
  std::vector<BufferRef> shards_;
  std::array<std::vector<BufferRef>, 2> kept_;
};

TEST(Heap, IsUnusedByStepsLikeTheFirst) {
  Memory memory(std::make_unique<Addresses>());
  Step step(memory);
  step(0);
  const std::size_t events = memory.ledger().events_seen();
  const std::int64_t before = heap_allocations();
  for (int i = 1; i <= 50; ++i) step(i);
  EXPECT_EQ(heap_allocations() - before, 0);
  EXPECT_GT(memory.ledger().events_seen(), 50 * events / 2);
}

TEST(Heap, IsUnusedByKnownHolders) {
  Memory memory(std::make_unique<Addresses>());
  const std::string owner(100, 'x');
  const HolderId id = memory.ledger().holder(HolderKind::kContext, owner, "a weight of a long name, too");
  const std::int64_t before = heap_allocations();
  EXPECT_EQ(memory.ledger().holder(HolderKind::kContext, owner, "a weight of a long name, too"), id);
  EXPECT_EQ(heap_allocations() - before, 0);
}

}  // namespace
}  // namespace fp8lab
