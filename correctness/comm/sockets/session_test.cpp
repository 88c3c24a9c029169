#include "comm/sockets/session.h"

#include "comm/sockets/connecting.h"

// The connection of two ranks; the test is both.
namespace fp8lab::sockets {
namespace {

using processes::Awaited;

constexpr processes::Tag kDataTag{.context = 3, .data = true}, kCallTag{.context = 3, .data = false}, kShutdownTag{};
constexpr std::size_t kLargeMessage = std::size_t{24} << 20;  // more than sockets and queues hold at once

struct Pair {
  Pair() : outcomes(connect_all(all_of(2, new_job()), 20)) {
    for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.error, "");
    for (const Outcome& outcome : outcomes) expect_shutdowns(*outcome.session);
  }
  Session& left() { return *outcomes[0].session; }
  Session& right() { return *outcomes[1].session; }

  static void expect_shutdowns(Session& session) {
    session.expect_shutdowns(std::make_shared<processes::ShutdownMessages>(2));
  }
  static void send(Session& session, const std::vector<std::byte>& message, processes::Tag tag) {
    session.send(message.data(), static_cast<std::int64_t>(message.size()), 1 - session.rank(), tag);
  }
  static void receive(Session& session, std::vector<std::byte>& message, processes::Tag tag) {
    session.receive(message.data(), static_cast<std::int64_t>(message.size()), 1 - session.rank(), tag);
  }
  static bool finished(Session& session) { return session.finished(Awaited::kAll); }
  static std::string lost(const Session& session) { return session.lost(1 - session.rank()); }
  static bool shutdown_received(Session& session) { return session.shutdown_received(1 - session.rank()); }
  /// Waits until `done` is true, for some seconds at most. Both ranks look for shutdown messages meanwhile.
  template <class Done>
  bool settle(const Done& done) {
    const auto start = steady_clock::now();
    while (!done() && !over(start))
      for (const Outcome& outcome : outcomes)
        if (outcome.session) shutdown_received(*outcome.session);
    return done();
  }

  std::vector<Outcome> outcomes;
};

std::vector<std::byte> test_bytes(std::size_t count) {
  return comm_test::test_bytes(count, 0, static_cast<std::int64_t>(count));
}

TEST(Session, CarriesMessagesOfEverySizeInBothDirectionsInOrder) {
  Pair pair;
  std::vector<std::vector<std::byte>> sent, to_left, to_right;
  for (const std::size_t count : {std::size_t{1}, std::size_t{0}, std::size_t{256}, std::size_t{257}, kChunkBytes,
                                  kChunkBytes + 1, kLargeMessage})
    sent.push_back(test_bytes(count));
  for (const std::vector<std::byte>& message : sent) {
    to_right.emplace_back(message.size());
    to_left.emplace_back(message.size());
    Pair::send(pair.left(), message, kDataTag);
    Pair::send(pair.right(), message, kDataTag);
    Pair::receive(pair.left(), to_left.back(), kDataTag);
    Pair::receive(pair.right(), to_right.back(), kDataTag);
  }
  EXPECT_FALSE(Pair::finished(pair.left()));
  EXPECT_TRUE(pair.settle([&] { return Pair::finished(pair.left()) && Pair::finished(pair.right()); }));
  EXPECT_TRUE(to_right == sent);
  EXPECT_TRUE(to_left == sent);
}

TEST(Session, AbandonedMessageIsNeverCompleteAndLaterOnesArrive) {
  Pair pair;
  const std::vector<std::byte> shutdown(sizeof(ShutdownBytes));
  {
    const std::vector<std::byte> message(kLargeMessage, std::byte{7});
    std::vector<std::byte> received(kLargeMessage);
    Pair::send(pair.left(), message, kDataTag);
    Pair::receive(pair.right(), received, kDataTag);
    EXPECT_FALSE(Pair::finished(pair.left()));  // it has sent as much as the socket accepts
    pair.left().abandon({});
    EXPECT_TRUE(Pair::finished(pair.left()));
    Pair::send(pair.left(), shutdown, kShutdownTag);
    EXPECT_TRUE(pair.settle([&] { return Pair::shutdown_received(pair.right()); }));
    EXPECT_FALSE(Pair::finished(pair.right()));
    pair.right().abandon({});
  }
  Pair::expect_shutdowns(pair.right());
  const std::vector<std::byte> message = test_bytes(5000);
  std::vector<std::byte> received(5000);
  Pair::receive(pair.right(), received, kDataTag);
  Pair::send(pair.left(), message, kDataTag);
  EXPECT_TRUE(pair.settle([&] { return Pair::finished(pair.right()); }));
  EXPECT_EQ(received, message);
}

// Data behind a large message that is dropped would be taken for that message. Calls are still due, and outlive the
// memory of their sender.
TEST(Session, DataBehindAnAbandonedMessageIsDroppedToo) {
  Pair pair;
  std::vector<std::byte> received(kLargeMessage), received_call(sizeof(processes::Call));
  Pair::receive(pair.right(), received, kDataTag);
  Pair::receive(pair.right(), received_call, kCallTag);
  {
    const std::vector<std::byte> large(kLargeMessage, std::byte{7}), small(4, std::byte{8}),
        call(sizeof(processes::Call), std::byte{9});
    Pair::send(pair.left(), large, kDataTag);
    Pair::send(pair.left(), small, kDataTag);
    Pair::send(pair.left(), call, kCallTag);
    pair.left().abandon({});
  }
  EXPECT_TRUE(pair.settle([&] { return pair.right().finished(Awaited::kCalls); }));
  EXPECT_EQ(received_call, std::vector<std::byte>(sizeof(processes::Call), std::byte{9}));
  const std::vector<std::byte> shutdown(sizeof(ShutdownBytes));
  Pair::send(pair.left(), shutdown, kShutdownTag);
  EXPECT_TRUE(pair.settle([&] { return Pair::shutdown_received(pair.right()); }));
  EXPECT_FALSE(Pair::finished(pair.right()));
  EXPECT_EQ(Pair::lost(pair.right()), "");
}

// A process that is a rank and sends an impossible message is lost; nothing else is affected.
TEST(Session, LosesARankWhoseShutdownMessageIsTooLong) {
  for (const bool listens : {false, true}) {
    Pair pair;
    Session& hostile = listens ? pair.left() : pair.right();
    Session& own = listens ? pair.right() : pair.left();
    const std::vector<std::byte> message(std::size_t{1} << 20, std::byte{'x'});
    Pair::send(hostile, message, kShutdownTag);
    EXPECT_TRUE(pair.settle([&] { return !Pair::lost(own).empty(); }));
    EXPECT_EQ(Pair::lost(own), "it sent a shutdown message of 1048576 bytes, which has 2064");
    EXPECT_FALSE(Pair::shutdown_received(own));
  }
}

// Everything that a process sent before it ended is received.
TEST(Session, NoticesTheEndOfARankAfterItsLastMessage) {
  for (const std::size_t leaver : {0, 1}) {
    Pair pair;
    Session& leaving = leaver == 0 ? pair.left() : pair.right();
    Session& own = leaver == 0 ? pair.right() : pair.left();
    const std::vector<std::byte> message = test_bytes(kChunkBytes / 2);
    std::vector<std::byte> received(message.size());
    Pair::receive(own, received, kDataTag);
    Pair::send(leaving, message, kDataTag);
    EXPECT_TRUE(Pair::finished(leaving));
    pair.outcomes[leaver].session.reset();
    EXPECT_TRUE(pair.settle([&] { return !Pair::lost(own).empty(); }));
    EXPECT_EQ(Pair::lost(own), "its process has ended, or closed the connection");
    EXPECT_TRUE(received == message);
    EXPECT_TRUE(Pair::finished(own));
  }
}

// A rank whose shutdown message has come may go; in the next run it is missed.
TEST(Session, RankThatEndsAfterItsShutdownMessageIsLostInTheNextRun) {
  Pair pair;
  const std::vector<std::byte> shutdown(sizeof(ShutdownBytes));
  Pair::send(pair.right(), shutdown, kShutdownTag);
  EXPECT_TRUE(Pair::finished(pair.right()));
  pair.outcomes[1].session.reset();
  EXPECT_TRUE(pair.settle([&] { return Pair::shutdown_received(pair.left()); }));
  Pair::finished(pair.left());
  EXPECT_EQ(Pair::lost(pair.left()), "");
  Pair::expect_shutdowns(pair.left());
  EXPECT_TRUE(pair.settle([&] { return !Pair::lost(pair.left()).empty(); }));
}

}  // namespace
}  // namespace fp8lab::sockets
