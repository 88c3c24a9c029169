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
#include "comm/sockets/session.h"

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
  std::unique_ptr<Session> session;
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
        own.error = error_of([&] { own.session = std::make_unique<Session>(ranks[i], wait_limit(seconds), notify); });
        own.seconds = std::chrono::duration<double>(steady_clock::now() - start).count();
      });
  }
  return outcomes;
}

/// Each rank sends a number to each other one.
inline void expect_connected(std::vector<Outcome*> ranks) {
  constexpr processes::Tag kTag{.context = 1, .data = true};
  const int size = static_cast<int>(ranks.size());
  const auto squared = static_cast<std::size_t>(size) * ranks.size();
  std::vector<int> sent(squared), received(squared, -1);
  const auto word = [&](std::vector<int>& words, int rank, int other) -> int& {
    return words[static_cast<std::size_t>(rank * size + other)];
  };
  for (int rank = 0; rank < size; ++rank) {
    const Outcome& own = *ranks[static_cast<std::size_t>(rank)];
    ASSERT_EQ(own.error, "");
    own.session->expect_shutdowns(std::make_shared<processes::ShutdownMessages>(ranks.size()));
    for (int other = 0; other < size; ++other) {
      if (other == rank) continue;
      word(sent, rank, other) = 100 * rank + other;
      own.session->receive(reinterpret_cast<std::byte*>(&word(received, rank, other)), sizeof(int), other, kTag);
      own.session->send(reinterpret_cast<const std::byte*>(&word(sent, rank, other)), sizeof(int), other, kTag);
    }
  }
  const WaitLimit enough = wait_limit(10);
  for (bool done = false; !done && !enough.over();) {
    done = true;
    for (const Outcome* rank : ranks) done = rank->session->finished(processes::Awaited::kAll) && done;
  }
  for (int rank = 0; rank < size; ++rank)
    for (int other = 0; other < size; ++other)
      EXPECT_EQ(word(received, rank, other), rank == other ? -1 : 100 * other + rank);
}
inline void expect_connected(std::vector<Outcome>& outcomes) {
  std::vector<Outcome*> ranks;
  for (Outcome& outcome : outcomes) ranks.push_back(&outcome);
  expect_connected(ranks);
}

}  // namespace fp8lab::sockets
