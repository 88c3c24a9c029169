#include "comm/sockets/connection.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "reference/test_data.h"

// One stream between two ranks, both ends of it here.
namespace fp8lab::sockets {
namespace {

using processes::Ending;
using processes::Farewell;
using processes::Tag;

constexpr std::uint64_t kCall = Tag{.context = 3, .data = false}.number();
constexpr std::uint64_t kData = Tag{.context = 3, .data = true}.number();
constexpr std::uint64_t kFarewell = Tag{}.number();
// More than a socket takes at once.
constexpr std::int64_t kLarge = std::int64_t{24} << 20;

struct Pair {
  Pair() {
    std::array<int, 2> descriptors{};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, descriptors.data()) != 0) throw std::bad_alloc();
    left = std::make_unique<Connection>(Socket(descriptors[0]));
    right = std::make_unique<Connection>(Socket(descriptors[1]));
    begin_run();
  }
  void begin_run() {
    left->expect_farewell(&to_left);
    right->expect_farewell(&to_right);
  }
  /// Until nothing moves any more, and then some.
  void settle() {
    for (int i = 0; i < 2000; ++i) {
      left->progress();
      if (right) right->progress();
    }
  }
  void say_farewell(Connection& connection, Ending ending) {
    said.ending = ending;
    connection.send(reinterpret_cast<const std::byte*>(&said), sizeof said, kFarewell);
  }

  std::unique_ptr<Connection> left;
  std::unique_ptr<Connection> right;
  Farewell to_left;
  Farewell to_right;
  Farewell said;
};

std::vector<std::byte> bytes(std::int64_t count, std::uint64_t seed) {
  std::vector<std::byte> all;
  for (std::int64_t i = 0; i < count; ++i)
    all.push_back(static_cast<std::byte>(reference::scramble(seed ^ static_cast<std::uint64_t>(i))));
  return all;
}

TEST(Connection, CarriesMessagesOfEverySizeBothWaysInOrder) {
  Pair pair;
  std::vector<std::vector<std::byte>> sent;
  for (const std::int64_t count : {std::int64_t{1}, std::int64_t{0}, std::int64_t{256}, std::int64_t{257}, kLarge})
    sent.push_back(bytes(count, static_cast<std::uint64_t>(count)));
  std::vector<std::vector<std::byte>> to_right;
  std::vector<std::vector<std::byte>> to_left;
  for (const std::vector<std::byte>& message : sent) {
    const auto count = static_cast<std::int64_t>(message.size());
    to_right.emplace_back(message.size());
    to_left.emplace_back(message.size());
    pair.left->send(message.data(), count, kData);
    pair.right->send(message.data(), count, kData);
    pair.left->receive(to_left.back().data(), count, kData);
    pair.right->receive(to_right.back().data(), count, kData);
  }
  EXPECT_FALSE(pair.left->finished());
  pair.settle();
  EXPECT_TRUE(pair.left->finished() && pair.right->finished());
  EXPECT_EQ(to_right, sent);
  EXPECT_EQ(to_left, sent);
}

TEST(Connection, SmallMessagesOutliveTheirMemory) {
  Pair pair;
  std::vector<std::byte> memory = bytes(100, 1);
  pair.left->send(memory.data(), 100, kData);
  memory.assign(100, std::byte{0});
  std::vector<std::byte> received(100);
  pair.right->receive(received.data(), 100, kData);
  pair.settle();
  EXPECT_EQ(received, bytes(100, 1));
}

// The other rank waits in another group's collective; its farewell must still be heard.
TEST(Connection, ACallThatNobodyAwaitsYetHidesNoFarewell) {
  Pair pair;
  const std::vector<std::byte> call = bytes(128, 2);
  pair.left->send(call.data(), 128, kCall);
  pair.say_farewell(*pair.left, Ending::kByDeath);
  pair.settle();
  EXPECT_TRUE(pair.right->farewell_came());
  EXPECT_EQ(pair.to_right.ending, Ending::kByDeath);
  std::vector<std::byte> received(128);
  pair.right->receive(received.data(), 128, kCall);
  EXPECT_TRUE(pair.right->finished());
  EXPECT_EQ(received, call);
}

TEST(Connection, WhatIsAbandonedIsNeverTakenForWhole) {
  Pair pair;
  {
    const std::vector<std::byte> message(static_cast<std::size_t>(kLarge), std::byte{7});
    std::vector<std::byte> received(static_cast<std::size_t>(kLarge));
    pair.left->send(message.data(), kLarge, kData);
    pair.left->send(message.data(), kLarge, kData);
    pair.right->receive(received.data(), kLarge, kData);
    pair.left->progress();  // as much as the socket takes
    pair.left->abandon();
    pair.settle();
    EXPECT_TRUE(pair.left->finished());
    EXPECT_FALSE(pair.right->finished());
    pair.say_farewell(*pair.left, Ending::kByFinding);
    pair.settle();
    EXPECT_TRUE(pair.right->farewell_came());
    EXPECT_FALSE(pair.right->finished());
    pair.right->abandon();
  }
  // The stream is as good as new.
  pair.say_farewell(*pair.right, Ending::kWell);
  pair.settle();
  pair.begin_run();
  const std::vector<std::byte> message = bytes(5000, 3);
  std::vector<std::byte> received(5000);
  pair.left->send(message.data(), 5000, kData);
  pair.right->receive(received.data(), 5000, kData);
  pair.settle();
  EXPECT_TRUE(pair.right->finished());
  EXPECT_EQ(received, message);
}

TEST(Connection, WhatIsAbandonedIsNotWrittenAnyMore) {
  Pair pair;
  const std::vector<std::byte> message(static_cast<std::size_t>(kLarge), std::byte{7});
  std::vector<std::byte> received(static_cast<std::size_t>(kLarge));
  pair.left->send(message.data(), kLarge, kData);
  pair.right->receive(received.data(), kLarge, kData);
  pair.left->progress();
  pair.right->progress();
  pair.right->abandon();
  const std::vector<std::byte> before = received;
  pair.settle();
  EXPECT_TRUE(pair.left->finished());
  EXPECT_TRUE(received == before);
}

TEST(Connection, DropsWhatNobodyWantsBeforeAFarewell) {
  Pair pair;
  const std::vector<std::byte> message(static_cast<std::size_t>(kLarge), std::byte{7});
  pair.left->send(message.data(), kLarge, kData);
  pair.say_farewell(*pair.left, Ending::kWell);
  pair.settle();
  EXPECT_FALSE(pair.right->farewell_came());
  pair.right->await_only_farewell();
  pair.settle();
  EXPECT_TRUE(pair.right->farewell_came());
}

// A rank that is done with a run may begin the next before others have ended this one.
TEST(Connection, MessagesOfTheNextRunWaitForIt) {
  Pair pair;
  const std::vector<std::byte> call = bytes(128, 4);
  std::vector<std::byte> received(128);
  pair.say_farewell(*pair.left, Ending::kWell);
  pair.left->send(call.data(), 128, kCall);
  pair.right->await_only_farewell();
  pair.settle();
  pair.right->expect_farewell(&pair.to_right);
  pair.right->receive(received.data(), 128, kCall);
  pair.settle();
  EXPECT_EQ(received, call);
}

TEST(Connection, NoticesThatTheOtherSideIsGone) {
  Pair pair;
  pair.right.reset();
  pair.settle();
  EXPECT_EQ(pair.left->lost(), "its process has ended, or closed the connection");
  Pair writing;
  const std::vector<std::byte> message(static_cast<std::size_t>(kLarge), std::byte{7});
  writing.left->send(message.data(), kLarge, kData);
  writing.right.reset();
  writing.settle();
  EXPECT_TRUE(writing.left->lost().starts_with("its process has ended, or c")) << writing.left->lost();
}

}  // namespace
}  // namespace fp8lab::sockets
