#include "memory/ledger.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "core/check.h"
#include "memory/heap_source.h"
#include "memory/memory.h"

namespace fp8lab {
namespace {

class LedgerTest : public ::testing::Test {
 protected:
  explicit LedgerTest(MemoryOptions options = {}) : memory_(std::make_unique<HeapSource>(), options) {}
  HolderId holder(HolderKind kind, std::string_view owner = {}, std::string_view what = {}) {
    return memory_.ledger().holder(kind, owner, what);
  }
  std::int64_t bytes_of(const char* label) {
    for (const auto& [text, bytes] : memory_.ledger().by_holder())
      if (text == label) return bytes;
    return 0;
  }
  Memory memory_;
};

TEST_F(LedgerTest, CountsRequestedBytesNotRoundedOnes) {
  const BufferRef ref = memory_.allocate(100, holder(HolderKind::kWorkspace));
  EXPECT_EQ(memory_.ledger().live_bytes(), 100);
  EXPECT_EQ(memory_.allocator().allocated_bytes(), 512);
}

TEST_F(LedgerTest, BlockLivesAsLongAsAnyHolder) {
  BufferRef slot;
  {
    const BufferRef result = memory_.allocate(100, holder(HolderKind::kInFlight));
    slot = result.held_by(holder(HolderKind::kSavedSlot, "linear", "x"));
    EXPECT_EQ(bytes_of("saved slot of linear: x"), 100);
  }
  EXPECT_EQ(memory_.ledger().live_bytes(), 100);
  slot = {};
  EXPECT_EQ(memory_.ledger().live_bytes(), 0);
}

TEST_F(LedgerTest, AttributesABlockToItsFirstKindOfHolder) {
  BufferRef parameter = memory_.allocate(64, holder(HolderKind::kParameter, "w"));
  const BufferRef saved = parameter.held_by(holder(HolderKind::kSavedSlot, "linear", "w"));
  EXPECT_EQ(bytes_of("parameter of w"), 64);
  EXPECT_EQ(memory_.ledger().retained_bytes(), 0);
  parameter = {};
  EXPECT_EQ(bytes_of("saved slot of linear: w"), 64);
  EXPECT_EQ(memory_.ledger().retained_bytes(), 64);
}

TEST_F(LedgerTest, NamesTheTensorsThatAContextKeeps) {
  std::vector<BufferRef> kept;
  for (const char* what : {"q", "k", "v"})
    kept.push_back(memory_.allocate(10, holder(HolderKind::kContext, "attention[2]", what)));
  ASSERT_EQ(memory_.ledger().by_holder().size(), 1u);
  EXPECT_EQ(memory_.ledger().by_holder()[0].first, "context of attention[2]: k, q, v");
  EXPECT_EQ(memory_.ledger().by_holder()[0].second, 30);
}

TEST_F(LedgerTest, PeakKeepsItsBreakdown) {
  BufferRef a = memory_.allocate(100, holder(HolderKind::kParameter, "a"));
  memory_.ledger().set_phase(PhaseKind::kBackward, 1);
  BufferRef b = memory_.allocate(50, holder(HolderKind::kWorkspace, "gemm"));
  EXPECT_EQ(memory_.ledger().peak_by_holder().size(), 2u);
  b = {};
  const BufferRef c = memory_.allocate(20, holder(HolderKind::kGradient, "a"));
  EXPECT_EQ(memory_.ledger().peak_bytes(), 150);
  EXPECT_EQ(memory_.ledger().peak_phase().step, 1);
  const HolderBytes expected{{"parameter of a", 100}, {"workspace of gemm", 50}};
  EXPECT_EQ(memory_.ledger().peak_by_holder(), expected);
  memory_.ledger().reset_peak();
  EXPECT_EQ(memory_.ledger().peak_bytes(), 120);
  a = {};
  EXPECT_EQ(memory_.ledger().peak_by_holder().size(), 2u);
}

TEST_F(LedgerTest, PeakIsTheFirstMomentOfItsSize) {
  {
    const BufferRef first = memory_.allocate(70, holder(HolderKind::kInFlight, "first"));
  }
  memory_.ledger().set_phase(PhaseKind::kBackward, 1);
  const BufferRef second = memory_.allocate(70, holder(HolderKind::kInFlight, "second"));
  EXPECT_EQ(memory_.ledger().peak_phase().kind, Phase{}.kind);
  EXPECT_EQ(memory_.ledger().peak_by_holder(), (HolderBytes{{"in flight of first", 70}}));
}

// Holds too if more has happened since the old peak than the ledger can undo event by event.
TEST_F(LedgerTest, ForgottenPeakIsNotReported) {
  {
    const BufferRef old = memory_.allocate(1000, holder(HolderKind::kInFlight, "old"));
  }
  BufferRef kept = memory_.allocate(30, holder(HolderKind::kParameter, "kept"));
  for (int i = 0; i < 100; ++i) memory_.allocate(5, holder(HolderKind::kWorkspace));
  memory_.ledger().reset_peak();
  EXPECT_EQ(memory_.ledger().peak_by_holder(), (HolderBytes{{"parameter of kept", 30}}));
  kept = {};
  EXPECT_EQ(memory_.ledger().peak_by_holder(), (HolderBytes{{"parameter of kept", 30}}));
  EXPECT_EQ(memory_.ledger().peak_by_kind().at("parameter"), 30);
}

// Otherwise the figures by holder would move from one of several equal holders to another as later ones are added.
TEST_F(LedgerTest, FirstHolderOfAKindCounts) {
  const auto slot = [&](const char* owner) { return holder(HolderKind::kSavedSlot, owner); };
  const auto event = [&] { memory_.allocate(1, holder(HolderKind::kWorkspace)); };
  BufferRef first = memory_.allocate(10, slot("first"));
  event();
  const BufferRef third = first.held_by(slot("third"));
  event();
  const BufferRef fourth = first.held_by(slot("fourth"));
  EXPECT_EQ(bytes_of("saved slot of first"), 10);
  first = {};
  EXPECT_EQ(bytes_of("saved slot of third"), 10);
  EXPECT_EQ(bytes_of("saved slot of fourth"), 0);
}

TEST_F(LedgerTest, EveryPhaseKindHasItsPeak) {
  Ledger& ledger = memory_.ledger();
  const auto peaks = [&] {
    std::vector<std::int64_t> bytes;
    for (int kind = 0; kind < kPhaseKinds; ++kind) bytes.push_back(ledger.peak_bytes(static_cast<PhaseKind>(kind)));
    return bytes;
  };
  BufferRef kept = memory_.allocate(10, holder(HolderKind::kParameter));
  memory_.allocate(5, holder(HolderKind::kWorkspace));
  ledger.set_phase(PhaseKind::kForward, 0);
  memory_.allocate(100, holder(HolderKind::kWorkspace));
  ledger.set_phase(PhaseKind::kOptimizer, 0);
  EXPECT_EQ(peaks(), (std::vector<std::int64_t>{15, 110, 0, 10, 0}))
      << "what is alive when a phase begins counts in it";
  ledger.set_phase(PhaseKind::kForward, 1);
  memory_.allocate(50, holder(HolderKind::kWorkspace));
  EXPECT_EQ(ledger.peak_bytes(PhaseKind::kForward), 110) << "the largest of all forward passes";
  ledger.reset_peak();
  EXPECT_EQ(peaks(), (std::vector<std::int64_t>{0, 10, 0, 0, 0}));
}

TEST_F(LedgerTest, RenamingMovesBytesWithoutAllocating) {
  BufferRef block = memory_.allocate(10, holder(HolderKind::kInFlight, "f"));
  const std::size_t events = memory_.ledger().events_seen();
  block.rename(holder(HolderKind::kGradient, "w"));
  EXPECT_EQ(memory_.ledger().events_seen(), events + 1);
  EXPECT_EQ(bytes_of("gradient of w"), 10);
  EXPECT_EQ(bytes_of("in flight of f"), 0);
  EXPECT_EQ(memory_.ledger().live_bytes(), 10);
}

TEST_F(LedgerTest, TimelineAddsUp) {
  memory_.ledger().record_timeline(true);
  BufferRef a = memory_.allocate(100, holder(HolderKind::kInFlight));
  BufferRef b = memory_.allocate(30, holder(HolderKind::kInFlight));
  b.rename(holder(HolderKind::kOutput));
  a = {};
  std::int64_t live = 0;
  std::map<HolderId, std::int64_t> held;
  for (const LedgerEvent& event : memory_.ledger().timeline()) {
    live += event.delta_bytes;
    EXPECT_EQ(event.live_bytes, live);
    const bool moves = event.delta_bytes == 0;
    held[event.holder] += moves ? event.bytes : event.delta_bytes;
    if (moves) held[event.from] -= event.bytes;
  }
  EXPECT_EQ(memory_.ledger().timeline().size(), 4u);
  EXPECT_EQ(held[holder(HolderKind::kInFlight)], 0);
  EXPECT_EQ(held[holder(HolderKind::kOutput)], 30);
  EXPECT_EQ(live, 30);
}

/// Bytes by holder after the events of the timeline; each event's live bytes must equal their sum up to it.
std::map<HolderId, std::int64_t> held_after(const std::vector<LedgerEvent>& timeline) {
  std::int64_t live = 0;
  std::map<HolderId, std::int64_t> held;
  for (const LedgerEvent& event : timeline) {
    live += event.delta_bytes;
    EXPECT_EQ(event.live_bytes, live);
    held[event.holder] += event.delta_bytes == 0 ? event.bytes : event.delta_bytes;
    if (event.delta_bytes == 0) held[event.from] -= event.bytes;
  }
  return held;
}

TEST_F(LedgerTest, Timeline_AfterAPause_AddsUpAndFreesOnlyRecordedBlocks) {
  Ledger& ledger = memory_.ledger();
  const HolderId flight = holder(HolderKind::kInFlight), output = holder(HolderKind::kOutput);
  ledger.record_timeline(true);
  BufferRef stays = memory_.allocate(7, output), goes = memory_.allocate(100, flight),
            moves = memory_.allocate(20, flight);
  ledger.record_timeline(false);
  const std::size_t before = ledger.timeline().size();
  goes = {};
  moves.rename(output);
  std::vector<BufferRef> come;
  for (int i = 0; i < 3; ++i) come.push_back(memory_.allocate(30, flight));
  for (int i = 0; i < 1000; ++i) memory_.allocate(50, flight);
  EXPECT_EQ(ledger.timeline().size(), before);
  ledger.record_timeline(true);
  EXPECT_EQ(ledger.timeline().size(), before + 6) << "one went, one moved, three came; the rest came and went";
  std::map<HolderId, std::int64_t> held = held_after(ledger.timeline());
  EXPECT_EQ(held[flight], 90);
  EXPECT_EQ(held[output], 27);
  come.clear();
  stays = moves = {};
  held = held_after(ledger.timeline());
  EXPECT_EQ(held[flight], 0);
  EXPECT_EQ(held[output], 0);
}

TEST_F(LedgerTest, Marks_WithoutATimeline_AreTheLastOfEachName) {
  Ledger& ledger = memory_.ledger();
  const auto names = [&] {
    std::string out;
    for (const LedgerMark& mark : ledger.marks()) out += mark.name + std::to_string(mark.live_bytes) + " ";
    return out;
  };
  std::vector<BufferRef> blocks;
  const auto step = [&] {
    ledger.mark("a");
    blocks.push_back(memory_.allocate(10, holder(HolderKind::kOutput)));
    ledger.mark("b");
  };
  step();
  step();
  EXPECT_EQ(names(), "a10 b20 ");
  ledger.record_timeline(true);
  step();
  ledger.record_timeline(false);
  step();
  step();
  EXPECT_EQ(names(), "a20 b30 a40 b50 ");
  ledger.record_timeline(true);
  step();
  EXPECT_EQ(names(), "a20 b30 a50 b60 ");
}

std::uint64_t hash_of(std::int64_t bytes, const char* owner, PhaseKind phase) {
  Memory memory(std::make_unique<HeapSource>());
  memory.ledger().holder(HolderKind::kWorkspace, "interned earlier, so that ids differ and content does not");
  memory.ledger().set_phase(phase, 0);
  const BufferRef ref = memory.allocate(bytes, memory.ledger().holder(HolderKind::kInFlight, owner));
  return memory.ledger().sequence_hash();
}

TEST(LedgerHash, DependsOnBytesHolderAndPhaseAndNothingElse) {
  const std::uint64_t hash = hash_of(100, "x", PhaseKind::kForward);
  EXPECT_EQ(hash_of(100, "x", PhaseKind::kForward), hash);
  EXPECT_NE(hash_of(101, "x", PhaseKind::kForward), hash);
  EXPECT_NE(hash_of(100, "y", PhaseKind::kForward), hash);
  EXPECT_NE(hash_of(100, "x", PhaseKind::kBackward), hash);
}

TEST(MemoryTest, OutOfMemoryListsTheHolders) {
  Memory memory(std::make_unique<HeapSource>(), {.capacity_bytes = std::size_t{4} << 20, .poison = false});
  const BufferRef ref =
      memory.allocate(1 << 20, memory.ledger().holder(HolderKind::kSavedSlot, "mlp", "activation_in"));
  try {
    memory.allocate(64 << 20, memory.ledger().holder(HolderKind::kWorkspace));
    FAIL() << "64 MiB fitted into 4 MiB";
  } catch (const OutOfMemory& error) {
    EXPECT_NE(std::string(error.what()).find("saved slot of mlp: activation_in"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("1.00 MiB"), std::string::npos) << error.what();
  }
  EXPECT_EQ(memory.ledger().live_bytes(), 1 << 20);
}

TEST(MemoryTest, OutOfMemoryNamesWhoAskedAndSumsLayers) {
  Memory memory(std::make_unique<HeapSource>(), {.capacity_bytes = std::size_t{4} << 20, .poison = false});
  Ledger& ledger = memory.ledger();
  const BufferRef first = memory.allocate(1000, ledger.holder(HolderKind::kContext, "layers[0].mlp", "fc1")),
                  second = memory.allocate(24, ledger.holder(HolderKind::kContext, "layers[1].mlp", "fc1"));
  try {
    memory.allocate(64 << 20, ledger.holder(HolderKind::kUnsharded, "layers[2].fc1.weight", "gradient"));
    FAIL() << "64 MiB fitted into 4 MiB";
  } catch (const OutOfMemory& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("64.00 MiB asked for by unsharded of layers[2].fc1.weight: gradient, 1.00 KiB live, "
                        "2.00 MiB reserved, capacity 4.00 MiB; held by:\n"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("\n    1.00 KiB  context of layers[*].mlp: fc1"), std::string::npos) << text;
  }
}

TEST(MemoryTest, OutOfMemoryNamesTheCapacityIfThereIsOne) {
  class Nothing final : public SegmentSource {
   public:
    std::byte* reserve(std::size_t) override { return nullptr; }
    void release(std::byte*, std::size_t) noexcept override {}
  };
  for (const std::size_t capacity : {std::size_t{0}, std::size_t{4096}}) {
    Memory memory(std::make_unique<Nothing>(), {.capacity_bytes = capacity, .poison = false});
    try {
      memory.allocate(8192, memory.ledger().holder(HolderKind::kWorkspace));
      FAIL() << "there is no memory";
    } catch (const OutOfMemory& error) {
      EXPECT_EQ(std::string(error.what()).find("capacity") == std::string::npos, capacity == 0) << error.what();
    }
  }
}

TEST(MemoryTest, PoisonsFreshAndFreedBlocks) {
  Memory memory(std::make_unique<HeapSource>(), {.capacity_bytes = 0, .poison = true});
  const HolderId holder = memory.ledger().holder(HolderKind::kWorkspace);
  std::byte* address = nullptr;
  {
    const BufferRef ref = memory.allocate(64, holder);
    address = ref.data();
    EXPECT_EQ(ref.data()[63], std::byte{0xFF});
    std::memset(ref.data(), 0, 64);
  }
  EXPECT_EQ(address[0], std::byte{0xFF});
}

TEST(MemoryTest, EmptyBlocksAreHeldWithZeroBytes) {
  Memory memory(std::make_unique<HeapSource>());
  const BufferRef ref = memory.allocate(0, memory.ledger().holder(HolderKind::kParameter, "empty shard"));
  EXPECT_TRUE(static_cast<bool>(ref));
  EXPECT_EQ(memory.ledger().live_bytes(), 0);
}

}  // namespace
}  // namespace fp8lab
