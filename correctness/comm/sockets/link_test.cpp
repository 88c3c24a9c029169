#include "comm/sockets/link.h"

#include "comm/sockets/connecting.h"

// A connection between two ranks; the test holds both ends.
namespace fp8lab::sockets {
namespace {

struct Pair {
  Pair() : outcomes(connect_all(all_of(2, free_port(), ""), 20)) {
    for (Outcome& outcome : outcomes) EXPECT_EQ(outcome.error, "");
    left().inbox().expect_shutdown(to_left.get());
    right().inbox().expect_shutdown(to_right.get());
  }
  Link& left() { return *outcomes[0].mesh.links[1]; }
  Link& right() { return *outcomes[1].mesh.links[0]; }
  /// Waits until `done` is true, for some seconds at most.
  template <class Done>
  bool settle(const Done& done) {
    const WaitLimit enough = wait_limit(10);
    while (!done() && !enough.over())
      for (Link* link : {&left(), &right()}) {
        link->progress();
        link->check_connection();
      }
    return done();
  }

  std::vector<Outcome> outcomes;
  std::unique_ptr<ShutdownBytes> to_left = std::make_unique<ShutdownBytes>(),
                                 to_right = std::make_unique<ShutdownBytes>();
};

/// A TCP socket of the loopback interface.
class Descriptor {
 public:
  Descriptor() : number_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  ~Descriptor() { ::close(number_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  /// Returns once libzmq has answered.
  bool connect(int port) const {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    char first = 0;
    return ::connect(number_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
           ::recv(number_, &first, 1, 0) == 1;
  }

 private:
  int number_;
};

std::vector<std::byte> test_bytes(std::size_t count) {
  return comm_test::test_bytes(count, 0, static_cast<std::int64_t>(count));
}

constexpr std::uint64_t kDataTag = processes::Tag{.context = 3, .data = true}.number();
constexpr std::uint64_t kShutdownTag = processes::Tag{}.number();
constexpr std::size_t kLargeMessage = std::size_t{24} << 20;  // more than sockets and queues hold at once

TEST(Link, CarriesMessagesOfEverySizeInBothDirectionsInOrder) {
  Pair pair;
  std::vector<std::vector<std::byte>> sent, to_left, to_right;
  for (const std::size_t count : {std::size_t{1}, std::size_t{0}, std::size_t{256}, std::size_t{257}, kChunkBytes,
                                  kChunkBytes + 1, kLargeMessage})
    sent.push_back(test_bytes(count));
  for (const std::vector<std::byte>& message : sent) {
    const auto count = static_cast<std::int64_t>(message.size());
    to_right.emplace_back(message.size());
    to_left.emplace_back(message.size());
    pair.left().send(message.data(), count, kDataTag);
    pair.right().send(message.data(), count, kDataTag);
    pair.left().receive(to_left.back().data(), count, kDataTag);
    pair.right().receive(to_right.back().data(), count, kDataTag);
  }
  EXPECT_FALSE(pair.left().finished());
  EXPECT_TRUE(pair.settle([&] { return pair.left().finished() && pair.right().finished(); }));
  EXPECT_TRUE(to_right == sent);
  EXPECT_TRUE(to_left == sent);
}

TEST(Link, AbortedMessageIsNeverCompleteAndLaterOnesArrive) {
  Pair pair;
  {
    const std::vector<std::byte> message(kLargeMessage, std::byte{7});
    std::vector<std::byte> received(kLargeMessage);
    const auto bytes = static_cast<std::int64_t>(kLargeMessage);
    pair.left().send(message.data(), bytes, kDataTag);
    pair.right().receive(received.data(), bytes, kDataTag);
    pair.left().progress();  // sends as much as the socket accepts
    EXPECT_FALSE(pair.left().finished());
    pair.left().abandon();
    EXPECT_TRUE(pair.left().finished());
    const ShutdownBytes shutdown{};
    pair.left().send(shutdown.data(), sizeof shutdown, kShutdownTag);
    EXPECT_TRUE(pair.settle([&] { return pair.right().inbox().shutdown_came(); }));
    EXPECT_FALSE(pair.right().finished());
    pair.right().abandon();
  }
  pair.right().inbox().expect_shutdown(pair.to_right.get());
  const std::vector<std::byte> message = test_bytes(5000);
  std::vector<std::byte> received(5000);
  pair.left().send(message.data(), 5000, kDataTag);
  pair.right().receive(received.data(), 5000, kDataTag);
  EXPECT_TRUE(pair.settle([&] { return pair.right().finished(); }));
  EXPECT_EQ(received, message);
}

// Data behind a large message that is dropped would be taken for that message; calls are still due.
TEST(Link, DataBehindAnAbandonedMessageIsDroppedToo) {
  Pair pair;
  const std::vector<std::byte> large(kLargeMessage, std::byte{7}), small(4, std::byte{8}), call(16, std::byte{9});
  std::vector<std::byte> received(kLargeMessage), received_call(16);
  pair.left().send(large.data(), static_cast<std::int64_t>(large.size()), kDataTag);
  pair.left().send(small.data(), 4, kDataTag);
  pair.left().send(call.data(), 16, kDataTag - 1);
  pair.left().abandon();
  pair.right().receive(received_call.data(), 16, kDataTag - 1);
  EXPECT_TRUE(pair.settle([&] { return pair.right().finished(); }));
  EXPECT_EQ(received_call, call);
  pair.right().receive(received.data(), static_cast<std::int64_t>(received.size()), kDataTag);
  const ShutdownBytes shutdown{};
  pair.left().send(shutdown.data(), sizeof shutdown, kShutdownTag);
  EXPECT_TRUE(pair.settle([&] { return pair.right().inbox().shutdown_came(); }));
  EXPECT_FALSE(pair.right().finished());
  EXPECT_EQ(pair.right().lost(), "");
}

// A process that is a rank and sends an impossible message loses its connection; nothing else is affected.
TEST(Link, DropsAPeerWhoseShutdownMessageIsTooLong) {
  for (const bool listens : {false, true}) {
    Pair pair;
    Link& hostile = listens ? pair.left() : pair.right();
    Link& own = listens ? pair.right() : pair.left();
    const std::vector<std::byte> message(std::size_t{1} << 20, std::byte{'x'});
    hostile.send(message.data(), 1 << 20, kShutdownTag);
    EXPECT_TRUE(pair.settle([&] { return !own.lost().empty(); }));
    EXPECT_EQ(own.lost(), "it sent a shutdown message of 1048576 bytes, which has 2064");
    EXPECT_FALSE(own.inbox().shutdown_came());
  }
}

// Everything that a process sent before it ended is received, whichever side made the connection.
TEST(Link, NoticesTheEndOfThePeerAfterItsLastMessage) {
  for (const bool listens : {false, true}) {
    Pair pair;
    const std::size_t leaver = listens ? 0 : 1;
    Link& leaving = listens ? pair.left() : pair.right();
    Link& own = listens ? pair.right() : pair.left();
    const std::vector<std::byte> message = test_bytes(3 * kChunkBytes);
    std::vector<std::byte> received(message.size());
    leaving.send(message.data(), static_cast<std::int64_t>(message.size()), kDataTag);
    leaving.progress();
    EXPECT_TRUE(leaving.finished());
    {
      const Mesh gone = std::move(pair.outcomes[leaver].mesh);
    }
    // The message is not requested yet, so it waits in the inbox while the connection ends.
    const auto later = steady_clock::now() + std::chrono::milliseconds(200);
    while (steady_clock::now() < later) {
      own.progress();
      own.check_connection();
    }
    EXPECT_EQ(own.lost(), "");
    own.receive(received.data(), static_cast<std::int64_t>(received.size()), kDataTag);
    const WaitLimit enough = wait_limit(10);
    while (own.lost().empty() && !enough.over()) {
      own.progress();
      own.check_connection();
    }
    EXPECT_EQ(own.lost(), "its process has ended, or closed the connection");
    EXPECT_TRUE(received == message);
  }
}

// A stranger that connects as soon as the rank has gone gets the descriptor of the rank's connection.
TEST(Link, NoticesTheEndOfThePeerThoughItsDescriptorIsInUseAgain) {
  Pair pair;
  std::vector<Descriptor> strangers(32);  // made before, so that they take no descriptor that becomes free
  {
    const Mesh gone = std::move(pair.outcomes[1].mesh);
  }
  std::array<zmq_pollitem_t, 1> event_of_connection = {pair.left().opening()[1]};
  wait(event_of_connection, std::chrono::seconds(10));
  for (const Descriptor& stranger : strangers) EXPECT_TRUE(stranger.connect(pair.left().port()));
  const WaitLimit enough = wait_limit(5);  // less than libzmq waits for a stranger to say who it is
  while (pair.left().lost().empty() && !enough.over()) {
    pair.left().progress();
    pair.left().check_connection();
  }
  EXPECT_EQ(pair.left().lost(), "its process has ended, or closed the connection");
}

}  // namespace
}  // namespace fp8lab::sockets
