#include "comm/sockets/inbox.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

// The inbox for the stream of one other rank: messages arrive, and what no rank sends changes nothing.
namespace fp8lab::sockets {
namespace {

using processes::Call;
using processes::ShutdownBytes;
using processes::Tag;

constexpr Tag kCall{.context = 3, .data = false}, kData{.context = 3, .data = true}, kShutdown{};
constexpr std::uint64_t kLarge = 2 * kChunkBytes + 100;
constexpr std::uint64_t kChunks[] = {0, kChunkBytes, 2 * kChunkBytes};

std::vector<std::byte> frame(Tag tag, std::uint64_t total, std::uint64_t offset, std::byte fill = std::byte{7}) {
  const FrameHead head{.tag = tag.number(), .total = total, .offset = offset};
  std::vector<std::byte> bytes(sizeof head + head.chunk_bytes(), fill);
  std::memcpy(bytes.data(), &head, sizeof head);
  return bytes;
}

struct OneRun {
  OneRun() { inbox.expect_shutdown(shutdown.get()); }
  /// Hands over a part of the stream, in pieces as a socket may have them.
  bool take(std::span<const std::byte> stream) {
    while (!stream.empty()) {
      const std::span<std::byte> room = inbox.room();
      const std::size_t bytes = std::min({room.size(), stream.size(), piece_});
      piece_ = piece_ % 100'003 * 7 + 1;
      std::copy_n(stream.begin(), bytes, room.begin());
      if (!inbox.take(bytes)) return false;
      stream = stream.subspan(bytes);
    }
    return true;
  }
  bool take(Tag tag, std::uint64_t total, std::uint64_t offset = 0) { return take(frame(tag, total, offset)); }
  bool take_call(std::byte fill = std::byte{7}) { return take(frame(kCall, sizeof(Call), 0, fill)); }
  bool take_shutdown() { return take(kShutdown, sizeof(ShutdownBytes)); }
  std::byte* expect(std::uint64_t bytes, Tag tag) {
    memory.push_back(std::make_unique<std::vector<std::byte>>(bytes));
    inbox.expect(memory.back()->data(), static_cast<std::int64_t>(bytes), tag);
    return memory.back()->data();
  }

  Inbox inbox;
  std::unique_ptr<ShutdownBytes> shutdown = std::make_unique<ShutdownBytes>();
  std::vector<std::unique_ptr<std::vector<std::byte>>>
      memory;  ///< buffers of exact size, so that AddressSanitizer guards their ends

 private:
  std::size_t piece_ = 1;
};

TEST(Inbox, JoinsTheFramesOfALargeMessage) {
  OneRun run;
  const std::byte* memory = run.expect(kLarge, kData);
  for (const std::uint64_t offset : kChunks) {
    EXPECT_FALSE(run.inbox.complete(false));
    EXPECT_TRUE(run.take(kData, kLarge, offset));
  }
  EXPECT_TRUE(run.inbox.complete(false));
  EXPECT_EQ(std::count(memory, memory + kLarge, std::byte{7}), static_cast<std::ptrdiff_t>(kLarge));
}

// Bytes are expected before the call, behind which they come.
TEST(Inbox, CallsAreCompleteBeforeBytesHaveCome) {
  OneRun run;
  run.expect(300, kData);
  run.expect(sizeof(Call), kCall);
  EXPECT_FALSE(run.inbox.complete(true));
  EXPECT_TRUE(run.take_call());
  EXPECT_TRUE(run.inbox.complete(true));
  EXPECT_FALSE(run.inbox.complete(false));
  EXPECT_TRUE(run.take(kData, 300));
  EXPECT_TRUE(run.inbox.complete(false));
}

TEST(Inbox, EarlyCallWaitsForItsReceiver) {
  OneRun run;
  EXPECT_TRUE(run.take_call());
  EXPECT_EQ(*run.expect(sizeof(Call), kCall), std::byte{7});
  EXPECT_TRUE(run.inbox.complete(false));
}

// The other rank waits in a collective of another group; its shutdown message must still be received.
TEST(Inbox, EarlyCallHidesNoShutdownMessage) {
  OneRun run;
  EXPECT_TRUE(run.take_call());
  EXPECT_TRUE(run.take_shutdown());
  EXPECT_TRUE(run.inbox.shutdown_came());
}

TEST(Inbox, FramesAfterAShutdownMessageWaitForTheNextRun) {
  OneRun run;
  EXPECT_TRUE(run.take_call(std::byte{5}));  // call of the first run, which ends before this rank replies
  EXPECT_TRUE(run.take_shutdown());
  EXPECT_TRUE(run.take_call(std::byte{6}));
  EXPECT_TRUE(run.take_shutdown());
  const std::byte* memory = run.expect(sizeof(Call), kCall);
  EXPECT_FALSE(run.inbox.complete(true));
  run.inbox.expect_shutdown(run.shutdown.get());
  EXPECT_EQ(*memory, std::byte{6});
  EXPECT_TRUE(run.inbox.complete(true));
  EXPECT_TRUE(run.inbox.shutdown_came());
}

TEST(Inbox, AbortedMessageIsNeverComplete) {
  OneRun run;
  run.expect(kLarge, kData);
  EXPECT_TRUE(run.take(kData, kLarge, 0));
  EXPECT_TRUE(run.take_shutdown());
  EXPECT_TRUE(run.inbox.shutdown_came());
  EXPECT_FALSE(run.inbox.complete(false));
}

TEST(Inbox, WritesNothingAfterTheReceiverGaveUp) {
  OneRun run;
  const std::byte* memory = run.expect(kLarge, kData);
  EXPECT_TRUE(run.take(kData, kLarge, 0));
  const std::vector<std::byte> second = frame(kData, kLarge, kChunkBytes);
  EXPECT_TRUE(run.take(std::span(second).first(sizeof(FrameHead))));
  run.inbox.abandon();
  EXPECT_TRUE(run.inbox.complete(false));
  EXPECT_TRUE(run.take(std::span(second).subspan(sizeof(FrameHead))));
  EXPECT_EQ(memory[kChunkBytes], std::byte{0});
  EXPECT_TRUE(run.take(kData, kLarge, 2 * kChunkBytes));
  for (const std::uint64_t offset : kChunks) EXPECT_TRUE(run.take(kData, kLarge, offset)) << "another one is dropped";
  EXPECT_TRUE(run.take_shutdown());
  EXPECT_TRUE(run.inbox.shutdown_came());
}

/// Why `bytes` are refused; empty if they are not.
std::string refusal(OneRun& run, const std::vector<std::byte>& bytes) {
  const bool taken = run.take(bytes);
  EXPECT_EQ(taken, run.inbox.problem().empty());
  return run.inbox.problem();
}

// A peer chooses the length; the buffer has the length that is due.
TEST(Inbox, RefusesAShutdownMessageOfWrongLength) {
  for (const std::uint64_t total :
       {std::uint64_t{1} << 20, std::uint64_t{1}, std::uint64_t{sizeof(ShutdownBytes) + 1}}) {
    OneRun run;
    EXPECT_EQ(refusal(run, frame(kShutdown, total, 0)),
              "it sent a shutdown message of " + std::to_string(total) + " bytes, which has 2064");
    EXPECT_FALSE(run.take_shutdown()) << "nothing is taken any more";
  }
}

TEST(Inbox, RefusesAMessageOfWrongLength) {
  for (const std::uint64_t total : {std::uint64_t{299}, std::uint64_t{301}, kLarge}) {
    OneRun run;
    run.expect(300, kData);
    EXPECT_EQ(refusal(run, frame(kData, total, 0)),
              "it sent a message of " + std::to_string(total) + " bytes, and one of 300 is expected");
  }
  const std::string size = std::to_string(sizeof(Call));
  for (const std::uint64_t total : {std::uint64_t{1}, std::uint64_t{sizeof(Call) + 1}, kLarge}) {
    OneRun run;
    run.expect(sizeof(Call), kCall);
    EXPECT_EQ(refusal(run, frame(kCall, total, 0)),
              "it sent a call of " + std::to_string(total) + " bytes, which has " + size);
  }
}

TEST(Inbox, RefusesWhatWouldHaveToBeKept) {
  OneRun early;
  EXPECT_EQ(refusal(early, frame(kData, kLarge, 0)), "it sent bytes of a collective before they were expected");
  OneRun endless;
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(endless.take_call());
  EXPECT_EQ(refusal(endless, frame(kCall, sizeof(Call), 0)), "it sent calls without waiting for their replies");
}

TEST(Inbox, RefusesHeadsThatNoRankSends) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  for (const FrameHead head : {FrameHead{.tag = kData.number(), .total = 0, .offset = 0},
                               FrameHead{.tag = kData.number(), .total = 300, .offset = 300},
                               FrameHead{.tag = kData.number(), .total = 300, .offset = 1},
                               FrameHead{.tag = kData.number(), .total = kMost, .offset = 0},
                               FrameHead{.tag = kData.number(), .total = kMost, .offset = kMost - kChunkBytes + 1}}) {
    OneRun run;
    run.expect(300, kData);
    std::vector<std::byte> bytes(sizeof head);
    std::memcpy(bytes.data(), &head, sizeof head);
    EXPECT_EQ(refusal(run, bytes), "it sent a head that no rank sends");
  }
}

TEST(Inbox, RefusesFramesOutOfOrder) {
  OneRun first;
  first.expect(kLarge, kData);
  EXPECT_EQ(refusal(first, frame(kData, kLarge, kChunkBytes)),
            "it sent byte 262144 of a message before those in front");
  OneRun skipped;
  skipped.expect(kLarge, kData);
  EXPECT_TRUE(skipped.take(kData, kLarge, 0));
  EXPECT_NE(refusal(skipped, frame(kData, kLarge, 2 * kChunkBytes)), "");
  OneRun longer;
  longer.expect(kLarge, kData);
  EXPECT_TRUE(longer.take(kData, kLarge, 0));
  EXPECT_NE(refusal(longer, frame(kData, kLarge + kChunkBytes, kChunkBytes)), "");
}

// Heads of every kind, at random, behind each other: whatever they announce, only expected memory is written, which
// AddressSanitizer checks.
TEST(Inbox, WritesNothingElseWhateverComes) {
  std::mt19937_64 random(7);
  const auto one_of = [&](std::initializer_list<std::uint64_t> values) {
    return values.begin()[random() % values.size()];
  };
  for (int round = 0; round < 2000; ++round) {
    OneRun run;
    for (int step = 0; step < 12; ++step) {
      if (random() % 3 == 0) run.expect(one_of({1, 300, kLarge}), kData);
      if (random() % 3 == 0) run.expect(sizeof(Call), kCall);
      if (random() % 16 == 0) {
        run.inbox.abandon();
        run.memory.clear();
      }
      if (random() % 16 == 0) run.inbox.expect_shutdown(run.shutdown.get());
      const FrameHead head{
          .tag = one_of({kCall.number(), kData.number(), kData.number(), kShutdown.number(), random()}),
          .total = one_of({0, 1, 300, kLarge, sizeof(Call), sizeof(ShutdownBytes), random()}),
          .offset = one_of({0, 0, 0, 1, kChunkBytes, random()})};
      std::vector<std::byte> bytes(sizeof head);
      std::memcpy(bytes.data(), &head, sizeof head);
      if (head.offset < head.total) bytes.resize(sizeof head + head.chunk_bytes(), std::byte{9});
      if (!run.take(bytes)) break;
    }
  }
}

}  // namespace
}  // namespace fp8lab::sockets
