#include "comm/sockets/inbox.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

// The inbox for the frames of one other rank: valid frames arrive, and invalid ones change nothing.
namespace fp8lab::sockets {
namespace {

using processes::ShutdownBytes;
using processes::Tag;
using Taken = Inbox::Taken;

constexpr std::uint64_t kCall = Tag{.context = 3, .data = false}.number();
constexpr std::uint64_t kData = Tag{.context = 3, .data = true}.number();
constexpr std::uint64_t kShutdown = Tag{}.number();
constexpr std::uint64_t kLarge = 2 * kChunkBytes + 100;

std::vector<std::byte> frame(std::uint64_t tag, std::uint64_t total, std::uint64_t offset,
                             std::byte fill = std::byte{7}) {
  const FrameHead head{.tag = tag, .total = total, .offset = offset};
  std::vector<std::byte> bytes(sizeof head + chunk_bytes(total, offset), fill);
  std::memcpy(bytes.data(), &head, sizeof head);
  return bytes;
}

struct OneRun {
  OneRun() { inbox.expect_shutdown(shutdown.get()); }
  Taken take(std::uint64_t tag, std::uint64_t total, std::uint64_t offset = 0) {
    return inbox.take(frame(tag, total, offset));
  }
  std::byte* expect(std::uint64_t bytes, std::uint64_t tag) {
    memory.push_back(std::make_unique<std::vector<std::byte>>(bytes));
    inbox.expect(memory.back()->data(), static_cast<std::int64_t>(bytes), tag);
    return memory.back()->data();
  }

  Inbox inbox;
  std::unique_ptr<ShutdownBytes> shutdown = std::make_unique<ShutdownBytes>();
  std::vector<std::unique_ptr<std::vector<std::byte>>>
      memory;  ///< buffers of exact size, so that AddressSanitizer guards their ends
};

TEST(Inbox, JoinsTheFramesOfALargeMessage) {
  OneRun run;
  const std::byte* memory = run.expect(kLarge, kData);
  for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{kChunkBytes}, std::uint64_t{2 * kChunkBytes}}) {
    EXPECT_FALSE(run.inbox.complete());
    EXPECT_EQ(run.take(kData, kLarge, offset), Taken::kDone);
  }
  EXPECT_TRUE(run.inbox.complete());
  EXPECT_EQ(std::count(memory, memory + kLarge, std::byte{7}), static_cast<std::ptrdiff_t>(kLarge));
}

// The other rank waits in a collective of another group; its shutdown message must still be received.
TEST(Inbox, EarlyCallHidesNoShutdownMessage) {
  OneRun run;
  EXPECT_EQ(run.take(kCall, 128), Taken::kDone);
  EXPECT_EQ(run.take(kShutdown, sizeof(ShutdownBytes)), Taken::kDone);
  EXPECT_TRUE(run.inbox.shutdown_came());
  EXPECT_EQ(*run.expect(128, kCall), std::byte{7});
  EXPECT_TRUE(run.inbox.complete());
}

TEST(Inbox, EarlyDataWaitsForItsReceiver) {
  OneRun run;
  EXPECT_EQ(run.take(kData, 300), Taken::kNotYet);
  const std::byte* memory = run.expect(300, kData);
  EXPECT_EQ(run.take(kData, 300), Taken::kDone);
  EXPECT_EQ(memory[299], std::byte{7});
}

TEST(Inbox, FramesAfterAShutdownMessageWaitForTheNextRun) {
  OneRun run;
  EXPECT_EQ(run.take(kShutdown, sizeof(ShutdownBytes)), Taken::kDone);
  EXPECT_EQ(run.take(kCall, 128), Taken::kNotYet);
  run.inbox.expect_shutdown(run.shutdown.get());
  EXPECT_EQ(run.take(kCall, 128), Taken::kDone);
}

TEST(Inbox, AbortedMessageIsNeverComplete) {
  OneRun run;
  run.expect(kLarge, kData);
  EXPECT_EQ(run.take(kData, kLarge, 0), Taken::kDone);
  EXPECT_EQ(run.take(kShutdown, sizeof(ShutdownBytes)), Taken::kDone);
  EXPECT_TRUE(run.inbox.shutdown_came());
  EXPECT_FALSE(run.inbox.complete());
}

TEST(Inbox, WritesNothingAfterTheReceiverGaveUp) {
  OneRun run;
  const std::byte* memory = run.expect(kLarge, kData);
  EXPECT_EQ(run.take(kData, kLarge, 0), Taken::kDone);
  run.inbox.abandon();
  EXPECT_EQ(run.take(kData, kLarge, kChunkBytes), Taken::kDone);
  EXPECT_EQ(memory[kChunkBytes], std::byte{0});
  EXPECT_EQ(run.take(kData, kLarge, 2 * kChunkBytes), Taken::kDone);
}

TEST(Inbox, DropsUnreceivedMessagesBeforeAShutdownMessage) {
  OneRun run;
  EXPECT_EQ(run.take(kData, kLarge, 0), Taken::kNotYet);
  run.inbox.drop_all_else();
  for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{kChunkBytes}, std::uint64_t{2 * kChunkBytes}})
    EXPECT_EQ(run.take(kData, kLarge, offset), Taken::kDone);
  EXPECT_EQ(run.take(kShutdown, sizeof(ShutdownBytes)), Taken::kDone);
  EXPECT_TRUE(run.inbox.shutdown_came());
}

/// Why `bytes` are refused; empty if they are not.
std::string refusal(OneRun& run, const std::vector<std::byte>& bytes) {
  const Taken taken = run.inbox.take(bytes);
  EXPECT_EQ(taken == Taken::kInvalid, !run.inbox.problem().empty());
  return run.inbox.problem();
}

// A peer chooses the length, beside a buffer of the length that is due.
TEST(Inbox, RefusesAShutdownMessageOfWrongLength) {
  for (const std::uint64_t total :
       {std::uint64_t{1} << 20, std::uint64_t{1}, std::uint64_t{sizeof(ShutdownBytes) + 1}}) {
    OneRun run;
    EXPECT_EQ(refusal(run, frame(kShutdown, total, 0)),
              "it sent a shutdown message of " + std::to_string(total) + " bytes, which has 2064");
    EXPECT_EQ(run.take(kShutdown, sizeof(ShutdownBytes)), Taken::kInvalid) << "nothing is taken any more";
  }
}

TEST(Inbox, RefusesAMessageOfWrongLength) {
  for (const std::uint64_t total : {std::uint64_t{299}, std::uint64_t{301}, kLarge}) {
    OneRun run;
    run.expect(300, kData);
    EXPECT_EQ(refusal(run, frame(kData, total, 0)),
              "it sent a message of " + std::to_string(total) + " bytes where one of 300 is due");
  }
}

TEST(Inbox, RefusesAnEarlyCallOfWrongLength) {
  OneRun run;
  EXPECT_EQ(run.take(kCall, 128), Taken::kDone);
  const std::byte* memory = run.expect(120, kCall);
  EXPECT_EQ(run.inbox.problem(), "it sent a call of 128 bytes where one of 120 is due");
  EXPECT_EQ(memory[0], std::byte{0});
  OneRun large;
  EXPECT_EQ(refusal(large, frame(kCall, Inbox::kSmallBytes + 1, 0)), "it sent a call of 257 bytes");
}

TEST(Inbox, RefusesBytesThatAreNoFrame) {
  const auto bad = [](FrameHead head, std::size_t payload) {
    std::vector<std::byte> bytes(sizeof head + payload);
    std::memcpy(bytes.data(), &head, sizeof head);
    return bytes;
  };
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  const std::vector<std::vector<std::byte>> frames = {
      {},
      std::vector<std::byte>(sizeof(FrameHead) - 1),
      bad({.tag = kData, .total = 0, .offset = 0}, 0),
      bad({.tag = kData, .total = 300, .offset = 0}, 299),
      bad({.tag = kData, .total = 300, .offset = 0}, 301),
      bad({.tag = kData, .total = 300, .offset = 300}, 0),
      bad({.tag = kData, .total = 300, .offset = 1}, 299),
      bad({.tag = kData, .total = kMost, .offset = 0}, kChunkBytes),
      bad({.tag = kData, .total = kMost, .offset = kMost - kChunkBytes + 1}, kChunkBytes),
  };
  for (const std::vector<std::byte>& bytes : frames) {
    OneRun run;
    run.expect(300, kData);
    EXPECT_EQ(refusal(run, bytes), "it sent " + std::to_string(bytes.size()) + " bytes that are no frame");
  }
}

TEST(Inbox, RefusesFramesOutOfOrder) {
  OneRun first;
  first.expect(kLarge, kData);
  EXPECT_EQ(refusal(first, frame(kData, kLarge, kChunkBytes)),
            "it sent byte 524288 of a message before those in front");
  OneRun skipped;
  skipped.expect(kLarge, kData);
  EXPECT_EQ(skipped.take(kData, kLarge, 0), Taken::kDone);
  EXPECT_NE(refusal(skipped, frame(kData, kLarge, 2 * kChunkBytes)), "");
  OneRun longer;
  longer.expect(kLarge, kData);
  EXPECT_EQ(longer.take(kData, kLarge, 0), Taken::kDone);
  EXPECT_NE(refusal(longer, frame(kData, kLarge + kChunkBytes, kChunkBytes)), "");
}

TEST(Messages, HandshakesAndRepliesReadBackAsWritten) {
  const Handshake first{.job = 7, .process = 9, .rank = 2, .size = 4, .ports = {}};
  Handshake second = first;
  second.ports = {0, 0, 0, 4711};
  EXPECT_EQ(read_handshake(write(first)), first);
  EXPECT_EQ(read_handshake(write(second)), second);
  EXPECT_EQ(write(second).size(), largest_handshake(4));
  Reply roster{.kind = Reply::Kind::kRoster, .text = {}, .token = {}, .places = {{"", 1}, {"fe80::1%eth0", 65535}}};
  roster.token[3] = std::byte{5};
  EXPECT_EQ(read_reply(write(roster)), roster);
  const Reply refusal{
      .kind = Reply::Kind::kRefusal, .text = "two processes were started as rank 1", .token = {}, .places = {}};
  EXPECT_EQ(read_reply(write(refusal)), refusal);
}

TEST(Messages, AreRefusedWhereAFieldIsOutOfRange) {
  const std::vector<std::byte> handshake =
      write(Handshake{.job = 7, .process = 9, .rank = 2, .size = 2, .ports = {1, 2}});
  for (std::size_t bytes = 0; bytes < handshake.size(); ++bytes) {
    const bool without_ports = bytes == handshake.size() - 2 * sizeof(std::uint16_t);
    EXPECT_EQ(read_handshake(Bytes(handshake).first(bytes)).has_value(), without_ports) << bytes;
  }
  std::vector<std::byte> foreign = handshake;
  foreign[0] = std::byte{'x'};
  EXPECT_FALSE(read_handshake(foreign));
  EXPECT_FALSE(read_handshake(write(Handshake{.job = 7, .process = 9, .rank = 2, .size = -2, .ports = {1, 2}})));

  const std::vector<std::byte> roster =
      write(Reply{.kind = Reply::Kind::kRoster, .text = {}, .token = {}, .places = {{"127.0.0.1", 4711}}});
  EXPECT_FALSE(read_reply(Bytes(roster).first(roster.size() - 1)));
  std::vector<std::byte> endless = roster;
  std::fill(endless.end() - 64, endless.end() - 2, std::byte{'1'});
  EXPECT_FALSE(read_reply(endless));
  EXPECT_FALSE(read_reply(write(Reply{.kind = Reply::Kind::kRoster, .text = {}, .token = {}, .places = {{"a", 0}}})));
  std::vector<std::byte> welcome = write(Reply{.kind = Reply::Kind::kWelcome, .text = "x", .token = {}, .places = {}});
  welcome.back() = std::byte{0x1b};
  EXPECT_FALSE(read_reply(welcome)) << "an escape sequence";
  welcome[8] = std::byte{4};
  EXPECT_FALSE(read_reply(welcome));
}

}  // namespace
}  // namespace fp8lab::sockets
