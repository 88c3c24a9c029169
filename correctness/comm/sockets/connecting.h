#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "comm/free_port.h"
#include "comm/ranks.h"
#include "comm/sockets/rendezvous.h"

/// Ranks that connect over TCP. Here each rank is a thread, since a rendezvous depends on its arguments alone.
namespace fp8lab::sockets {

using comm_test::error_of;
using comm_test::free_port;
using processes::ShutdownBytes;
using std::chrono::steady_clock;

inline constexpr const char* kSecret = "sixteen letters, or more";

/// A TCP port of the loopback interface that is listened at.
class Port {
 public:
  Port() : descriptor_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), number_(free_port()) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(number_));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::bind(descriptor_, reinterpret_cast<sockaddr*>(&address), sizeof address);
    ::listen(descriptor_, 1);
  }
  ~Port() { ::close(descriptor_); }
  int number() const { return number_; }

 private:
  int descriptor_, number_;
};

inline Rendezvous rendezvous_of(int rank, int size, int port, const std::string& secret = kSecret) {
  return {.rank = rank, .size = size, .host = "127.0.0.1", .port = port, .secret = secret};
}
inline std::vector<Rendezvous> all_of(int size, int port, const std::string& secret = kSecret) {
  std::vector<Rendezvous> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(rendezvous_of(rank, size, port, secret));
  return ranks;
}

inline WaitLimit wait_limit(double seconds, std::stop_token stop = {}) {
  return {.deadline = steady_clock::now() + std::chrono::milliseconds(static_cast<int>(seconds * 1000)),
          .stop = std::move(stop)};
}

struct Outcome {
  Mesh mesh;
  std::string error;
  std::vector<std::string> lines;
  double seconds = 0;
};

/// Connects each of `ranks` on a thread of its own and returns their outcomes.
inline std::vector<Outcome> connect_all(const std::vector<Rendezvous>& ranks, double seconds) {
  std::vector<Outcome> outcomes(ranks.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < ranks.size(); ++i)
      threads.emplace_back([&, i] {
        Outcome& own = outcomes[i];
        const auto start = steady_clock::now();
        const auto notify = [&](const std::string& line) { own.lines.push_back(line); };
        own.error = error_of([&] { own.mesh = connect_ranks(ranks[i], wait_limit(seconds), notify); });
        own.seconds = std::chrono::duration<double>(steady_clock::now() - start).count();
      });
  }
  return outcomes;
}

/// Moves messages until every rank has what it expects, for some seconds at most.
inline bool settle(std::vector<Outcome*>& ranks) {
  const auto deadline = steady_clock::now() + std::chrono::seconds(10);
  for (;;) {
    bool done = true;
    for (Outcome* rank : ranks)
      for (const auto& link : rank->mesh.links)
        if (link) {
          link->progress();
          done = done && link->finished();
        }
    if (done || steady_clock::now() > deadline) return done;
  }
}

inline void expect_connected(std::vector<Outcome*> ranks) {
  const int size = static_cast<int>(ranks.size());
  std::vector<ShutdownBytes> unused(ranks.size());
  std::vector<std::vector<int>> received(ranks.size(), std::vector<int>(ranks.size(), -1));
  for (int rank = 0; rank < size; ++rank) {
    Outcome& own = *ranks[static_cast<std::size_t>(rank)];
    ASSERT_EQ(own.error, "");
    for (int other = 0; other < size; ++other) {
      const std::unique_ptr<Link>& link = own.mesh.links[static_cast<std::size_t>(other)];
      ASSERT_EQ(link != nullptr, other != rank);
      if (!link) continue;
      const int word = 100 * rank + other;
      link->inbox().expect_shutdown(&unused[static_cast<std::size_t>(rank)]);
      link->receive(
          reinterpret_cast<std::byte*>(&received[static_cast<std::size_t>(rank)][static_cast<std::size_t>(other)]),
          sizeof word, 2);
      link->send(reinterpret_cast<const std::byte*>(&word), sizeof word, 2);
    }
  }
  EXPECT_TRUE(settle(ranks));
  for (int rank = 0; rank < size; ++rank)
    for (int other = 0; other < size; ++other) {
      const int expected = rank == other ? -1 : 100 * other + rank;
      EXPECT_EQ(received[static_cast<std::size_t>(rank)][static_cast<std::size_t>(other)], expected);
    }
}
inline void expect_connected(std::vector<Outcome>& outcomes) {
  std::vector<Outcome*> ranks;
  for (Outcome& outcome : outcomes) ranks.push_back(&outcome);
  expect_connected(ranks);
}

}  // namespace fp8lab::sockets
