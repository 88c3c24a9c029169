#include "comm/sockets/inbox.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "comm/sockets/frames.h"

// The inbox for the frames of one other rank: valid frames arrive, and invalid ones change nothing.
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
  std::vector<std::byte> bytes(sizeof head + chunk_bytes(total, offset), fill);
  std::memcpy(bytes.data(), &head, sizeof head);
  return bytes;
}

struct OneRun {
  OneRun() { inbox.expect_shutdown(shutdown.get()); }
  bool take(Tag tag, std::uint64_t total, std::uint64_t offset = 0) { return inbox.take(frame(tag, total, offset)); }
  bool take_call(std::byte fill = std::byte{7}) { return inbox.take(frame(kCall, sizeof(Call), 0, fill)); }
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
  EXPECT_TRUE(run.take_call(std::byte{5}));  // of the first run, which ends before this rank answers
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
  run.inbox.abandon();
  EXPECT_TRUE(run.inbox.complete(false));
  EXPECT_TRUE(run.take(kData, kLarge, kChunkBytes));
  EXPECT_EQ(memory[kChunkBytes], std::byte{0});
  EXPECT_TRUE(run.take(kData, kLarge, 2 * kChunkBytes));
  for (const std::uint64_t offset : kChunks) EXPECT_TRUE(run.take(kData, kLarge, offset)) << "another one is dropped";
  EXPECT_TRUE(run.take_shutdown());
  EXPECT_TRUE(run.inbox.shutdown_came());
}

/// Why `bytes` are refused; empty if they are not.
std::string refusal(OneRun& run, const std::vector<std::byte>& bytes) {
  const bool taken = run.inbox.take(bytes);
  EXPECT_EQ(taken, run.inbox.problem().empty());
  return run.inbox.problem();
}

// A peer chooses the length, beside a buffer of the length that is due.
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
              "it sent a message of " + std::to_string(total) + " bytes where one of 300 is due");
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
  EXPECT_EQ(refusal(endless, frame(kCall, sizeof(Call), 0)), "it sent calls without waiting for their answers");
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
      bad({.tag = kData.number(), .total = 0, .offset = 0}, 0),
      bad({.tag = kData.number(), .total = 300, .offset = 0}, 299),
      bad({.tag = kData.number(), .total = 300, .offset = 0}, 301),
      bad({.tag = kData.number(), .total = 300, .offset = 300}, 0),
      bad({.tag = kData.number(), .total = 300, .offset = 1}, 299),
      bad({.tag = kData.number(), .total = kMost, .offset = 0}, kChunkBytes),
      bad({.tag = kData.number(), .total = kMost, .offset = kMost - kChunkBytes + 1}, kChunkBytes),
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
  EXPECT_TRUE(skipped.take(kData, kLarge, 0));
  EXPECT_NE(refusal(skipped, frame(kData, kLarge, 2 * kChunkBytes)), "");
  OneRun longer;
  longer.expect(kLarge, kData);
  EXPECT_TRUE(longer.take(kData, kLarge, 0));
  EXPECT_NE(refusal(longer, frame(kData, kLarge + kChunkBytes, kChunkBytes)), "");
}

// What rank 0 and the other ranks send before they are connected.

Handshake handshake_of(int rank) {
  Handshake handshake;
  handshake.job = 7;
  handshake.id[3] = 'x';
  handshake.rank = rank;
  handshake.size = 4;
  handshake.port = 4711;
  return handshake;
}
std::vector<Place> places() {
  std::vector<Place> places(2);
  places[0].port = 1;
  places[1].id[5] = 'y';
  places[1].port = 65535;
  std::string("fe80::1%eth0").copy(places[1].address.data(), places[1].address.size());
  return places;
}

TEST(Messages, ReadBackAsWritten) {
  EXPECT_EQ(read_handshake(*read_frame(write(handshake_of(2)))), handshake_of(2));
  EXPECT_EQ(read_handshake(*read_frame(write(handshake_of(-2)))), handshake_of(-2)) << "to be reported";
  EXPECT_EQ(read_roster(*read_frame(write(places())), 2), places());
  const std::string refusal = "two processes were started as rank 1";
  EXPECT_EQ(read_refusal(*read_frame(write(refusal))), refusal);
  EXPECT_EQ(read_refusal(*read_frame(write(printable("\x1b[31m")))), "?[31m");
}

TEST(Messages, AreRefusedWhereAFieldIsOutOfRange) {
  const std::vector<std::byte> handshake = write(handshake_of(2));
  for (std::size_t bytes = 0; bytes < handshake.size(); ++bytes)
    EXPECT_FALSE(read_frame(Bytes(handshake).first(bytes))) << bytes;
  const auto shortened = [](std::uint64_t tag, Bytes frame) {
    return write_frame(tag, frame.subspan(sizeof(FrameHead)).first(frame.size() - sizeof(FrameHead) - 1));
  };
  EXPECT_FALSE(read_handshake(*read_frame(shortened(kHandshakeTag, handshake))));
  std::vector<std::byte> foreign = handshake;
  foreign[sizeof(FrameHead)] = std::byte{'x'};
  EXPECT_FALSE(read_handshake(*read_frame(foreign)));
  for (const std::uint32_t port : {0u, 65536u}) {
    Handshake nowhere = handshake_of(2);
    nowhere.port = port;
    EXPECT_FALSE(read_handshake(*read_frame(write(nowhere))));
    std::vector<Place> unreachable = places();
    unreachable[1].port = port;
    EXPECT_FALSE(read_roster(*read_frame(write(unreachable)), 2));
  }
  const std::vector<std::byte> roster = write(places());
  for (const int size : {1, 3}) EXPECT_FALSE(read_roster(*read_frame(roster), size));
  EXPECT_FALSE(read_roster(*read_frame(shortened(kRosterTag, roster)), 2));
  std::vector<Place> endless = places();
  endless[0].address.fill('1');
  EXPECT_FALSE(read_roster(*read_frame(write(endless)), 2));
  std::vector<Place> unprintable = places();
  unprintable[0].address[0] = '\x1b';
  EXPECT_FALSE(read_roster(*read_frame(write(unprintable)), 2));
  for (const std::string& text : {std::string("\x1b[31m"), std::string(1025, 'x')})
    EXPECT_FALSE(read_refusal(*read_frame(write(text))));
  // A message of another kind is none.
  EXPECT_FALSE(read_handshake(*read_frame(roster)));
  EXPECT_FALSE(read_roster(*read_frame(handshake), 2));
  EXPECT_FALSE(read_refusal(*read_frame(handshake)));
}

}  // namespace
}  // namespace fp8lab::sockets
