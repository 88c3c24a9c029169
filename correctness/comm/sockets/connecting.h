#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "comm/processes/group.h"
#include "comm/ranks.h"
#include "comm/sockets/session.h"

/// Ranks that connect over sockets of this host. Here each rank is a thread, since connecting depends on its arguments
/// only.
namespace fp8lab::sockets {

using comm_test::error_of;
using processes::ShutdownBytes;
using std::chrono::steady_clock;

/// The name of a job that no other test has.
inline std::string new_job() {
  static std::atomic<int> jobs{0};
  return "test " + std::to_string(::getpid()) + ", job " + std::to_string(++jobs);
}
inline Rendezvous rendezvous_of(int rank, int size, const std::string& job) {
  return {.rank = rank, .size = size, .job = job};
}
inline std::vector<Rendezvous> all_of(int size, const std::string& job) {
  std::vector<Rendezvous> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(rendezvous_of(rank, size, job));
  return ranks;
}

/// For at most so long tests wait for what must happen.
inline bool over(steady_clock::time_point start, double seconds = 10) {
  return steady_clock::now() - start > std::chrono::duration<double>(seconds);
}

struct Outcome {
  std::unique_ptr<Session> session;
  std::string error;
  bool ranks_lost = false;
  std::vector<std::string> lines;
  double seconds = 0;
};

inline void connect(const Rendezvous& rendezvous, double seconds, Outcome& own, std::stop_token stop = {}) {
  RunOptions options{.ranks = rendezvous.size,
                     .timeout = std::chrono::milliseconds(static_cast<int>(seconds * 1000)),
                     .rendezvous = rendezvous};
  options.notify = [&](const std::string& line) { own.lines.push_back(line); };
  options.stop = std::move(stop);
  const auto start = steady_clock::now();
  try {
    own.session = std::make_unique<Session>(options);
  } catch (const Error& error) {
    own.error = error.what();
    own.ranks_lost = dynamic_cast<const RanksLost*>(&error) != nullptr;
  }
  own.seconds = std::chrono::duration<double>(steady_clock::now() - start).count();
}

/// Connects each of `ranks` on a thread of its own and returns their outcomes.
inline std::vector<Outcome> connect_all(const std::vector<Rendezvous>& ranks, double seconds) {
  std::vector<Outcome> outcomes(ranks.size());
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < ranks.size(); ++i)
    threads.emplace_back([&, i] { connect(ranks[i], seconds, outcomes[i]); });
  threads.clear();
  return outcomes;
}

/// Each rank sends a number to each other one.
inline void expect_connected(std::vector<Outcome*> ranks) {
  const auto size = static_cast<std::int64_t>(ranks.size());
  std::vector<std::int64_t> offsets;
  for (std::int64_t rank = 0; rank <= size; ++rank) offsets.push_back(rank);
  std::vector<std::jthread> threads;
  for (Outcome* const own : ranks) {
    ASSERT_EQ(own->error, "");
    threads.emplace_back([&, own] {
      processes::run_rank(*own->session, {.ranks = static_cast<int>(size)}, [&](ProcessGroup& group) {
        const auto number = static_cast<std::byte>(10 + group.rank());
        std::vector<std::byte> all(ranks.size());
        const GatherPart part{.from = &number, .to = all.data(), .offsets_bytes = offsets};
        group.all_gather({&part, 1}, "numbers");
        for (std::size_t rank = 0; rank < all.size(); ++rank) EXPECT_EQ(all[rank], static_cast<std::byte>(10 + rank));
      });
    });
  }
}
inline void expect_connected(std::vector<Outcome>& outcomes) {
  std::vector<Outcome*> ranks;
  for (Outcome& outcome : outcomes) ranks.push_back(&outcome);
  expect_connected(ranks);
}

/// A socket of a process that is no rank.
class Stranger {
 public:
  /// `path`: its own name, or none.
  explicit Stranger(const std::string& path = {}) : socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (path.empty()) return;
    const sockaddr_un address = address_of(path);
    EXPECT_EQ(::bind(socket_.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0) << path;
  }

  /// Connects to the rank, once it listens; tries for some seconds.
  bool connect(const Rendezvous& to) const {
    const sockaddr_un address = address_of(path_of_listener(to));
    for (const auto start = steady_clock::now(); !over(start); ::poll(nullptr, 0, 1))
      if (::connect(socket_.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return true;
    return false;
  }
  template <class Plain>
  void send(const Plain& plain) const {
    ::send(socket_.number(), &plain, sizeof plain, MSG_NOSIGNAL);
  }
  /// Reads until the other side closes the connection.
  void await_end() const {
    for (char byte = 0; ::recv(socket_.number(), &byte, 1, 0) > 0;) continue;
  }

 private:
  static sockaddr_un address_of(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    return address;
  }

  Descriptor socket_;
};

}  // namespace fp8lab::sockets
