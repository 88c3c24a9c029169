#include "comm/sockets/rendezvous.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "core/check.h"

namespace fp8lab::sockets {
namespace {

// Who launches ranks may keep the named port to itself, and others may have taken the next.
constexpr int kPorts = 16;
constexpr int kLastPort = 65535;
// Connecting to a machine that answers, and one message there.
constexpr double kMomentSeconds = 2;
// For so long others hold every port that there is before a rank gives up on rank 0, which does so at once.
constexpr double kTakenSeconds = 5;

/// The first words on every connection, from the side that accepts it; they tell this job from any other service.
struct Greeting {
  std::array<char, 8> protocol = {'f', 'p', '8', 'l', 'a', 'b', '/', '1'};
  std::uint64_t job = 0;
  std::int32_t rank = 0;
  std::int32_t size = 0;
};

/// The answer.
struct Hello {
  Greeting who;
  std::int32_t port = 0;  ///< where this rank listens
  std::int32_t unused = 0;
};

/// Rank 0's last word: empty if everybody has come.
struct Problem {
  std::array<char, 512> text{};
};

std::uint64_t hash_of(const Rendezvous& rendezvous) {
  std::uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a
  for (const char c : fmt::format("{}/{}", rendezvous.port, rendezvous.job))
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

class Meeting {
 public:
  Meeting(const Rendezvous& rendezvous, const Patience& patience)
      : rendezvous_(rendezvous),
        patience_(patience),
        own_{.job = hash_of(rendezvous), .rank = rendezvous.rank, .size = rendezvous.size},
        sockets_(static_cast<std::size_t>(rendezvous.size)),
        addresses_(sockets_.size()) {
    if (first_port() > kLastPort)
      fail(fmt::format("MASTER_PORT={} is the launcher's own, and no port comes after it for the ranks; set MASTER_PORT "
                       "(torchrun --master-port) to a lower one",
                       rendezvous.port));
  }

  std::vector<Socket> as_first() {
    Socket listener = listen_somewhere();
    std::string problem;
    for (int come = 1; come < rendezvous_.size && problem.empty();) {
      Socket socket = listener.accept(patience_);
      if (!socket) {
        problem = describe_missing();
        break;
      }
      const std::optional<Hello> hello = greet(socket);
      if (!hello) continue;
      problem = refuse(hello->who);
      if (!problem.empty()) break;
      const auto at = static_cast<std::size_t>(hello->who.rank);
      addresses_[at] = socket.peer_address();
      addresses_[at].set_port(hello->port);
      sockets_[at] = std::move(socket);
      ++come;
    }
    Problem told;
    std::copy_n(problem.begin(), std::min(problem.size(), told.text.size() - 1), told.text.begin());
    for (Socket& socket : sockets_)
      if (socket && socket.send(told, patience_.at_most(kMomentSeconds)) && problem.empty())
        socket.send(std::as_bytes(std::span(addresses_)), patience_);
    if (!problem.empty()) fail(problem);
    return std::move(sockets_);
  }

  std::vector<Socket> as_other() {
    Socket first = find_first();
    Address own = first.own_address();
    own.set_port(0);
    Socket listener = is_elsewhere(own) ? Socket::listen_everywhere(0) : Socket::listen(own);
    check(static_cast<bool>(listener), "no port is free");
    const Hello hello{.who = own_, .port = listener.own_address().port()};
    Problem problem;
    if (!first.send(hello, patience_) || !first.receive(problem, patience_))
      fail(fmt::format("rank 0 at {}:{} went away before all ranks had come", rendezvous_.host, rendezvous_.port));
    if (problem.text.front() != '\0') fail(problem.text.data());
    if (!first.receive(std::as_writable_bytes(std::span(addresses_)), patience_)) lose(0);
    for (Address& address : addresses_) {
      if (!is_elsewhere(address)) continue;
      const int port = address.port();
      address = first.peer_address();
      address.set_port(port);
    }
    sockets_.front() = std::move(first);
    for (int lower = 1; lower < rendezvous_.rank; ++lower) sockets_[static_cast<std::size_t>(lower)] = join(lower);
    for (int missing = first_missing(); missing < rendezvous_.size; missing = first_missing()) {
      Socket socket = listener.accept(patience_);
      if (!socket) lose(missing);
      const std::optional<Hello> theirs = greet(socket);
      if (!theirs || theirs->who.rank <= rendezvous_.rank || theirs->who.rank >= rendezvous_.size) continue;
      Socket& place = sockets_[static_cast<std::size_t>(theirs->who.rank)];
      if (!place) place = std::move(socket);
    }
    return std::move(sockets_);
  }

 private:
  int first_port() const { return rendezvous_.port + (rendezvous_.port_taken ? 1 : 0); }
  int last_port() const { return std::min(first_port() + kPorts - 1, kLastPort); }

  /// Of the ranks above this one, which come to it in any order; their number if all have come.
  int first_missing() const {
    int rank = rendezvous_.rank + 1;
    while (rank < rendezvous_.size && sockets_[static_cast<std::size_t>(rank)]) ++rank;
    return rank;
  }

  /// Whether this is a loopback address in a run that reaches beyond it: of a rank on rank 0's machine, which to others is where
  /// rank 0 is to them.
  bool is_elsewhere(const Address& address) const {
    return address.bytes > 0 && address.is_loopback() && !names_loopback(rendezvous_.host);
  }

  Socket listen_somewhere() const {
    const bool everywhere = !names_loopback(rendezvous_.host);
    for (Address address : resolve(rendezvous_.host, 0)) {
      for (int port = first_port(); port <= last_port(); ++port) {
        address.set_port(port);
        // What the host means here need not be what it means to others: often it is a loopback address.
        if (Socket socket = everywhere ? Socket::listen_everywhere(port) : Socket::listen(address)) return socket;
      }
    }
    find_no_port();
  }

  [[noreturn]] void find_no_port() const {
    fail(
        fmt::format("rank 0 finds no free port for the other ranks among {} to {} (MASTER_PORT and the next); set "
                    "MASTER_PORT to a free {}one",
                    first_port(), last_port(), last_port() == kLastPort ? "and lower " : ""));
  }

  Socket find_first() const {
    // Where few ports are left, others may hold them all.
    Patience taken = patience_.at_most(kTakenSeconds);
    while (!patience_.over()) {
      bool any_free = last_port() < kLastPort;
      for (Address address : resolve(rendezvous_.host, 0)) {
        for (int port = first_port(); port <= last_port(); ++port) {
          address.set_port(port);
          Socket socket = Socket::connect(address, patience_.at_most(kMomentSeconds));
          Greeting greeting;
          if (socket && socket.receive(greeting, patience_.at_most(kMomentSeconds)) && is_of_this_job(greeting) &&
              greeting.rank == 0)
            return socket;
          any_free = any_free || !socket;
        }
      }
      if (any_free) taken = patience_.at_most(kTakenSeconds);
      if (taken.over() && !patience_.over()) find_no_port();
      Socket::pause();
    }
    check(!patience_.stop.stop_requested(), "the run was stopped from outside");
    fail(fmt::format("rank {} finds no rank 0 of its job at {}, ports {} to {} (MASTER_ADDR, MASTER_PORT and the next)",
                     rendezvous_.rank, rendezvous_.host, first_port(), last_port()));
  }

  Socket join(int lower) const {
    Socket socket = Socket::connect(addresses_[static_cast<std::size_t>(lower)], patience_);
    Greeting greeting;
    const Hello hello{.who = own_};
    if (!socket || !socket.receive(greeting, patience_) || !is_of_this_job(greeting) || greeting.rank != lower ||
        !socket.send(hello, patience_))
      lose(lower);
    return socket;
  }

  /// Who has connected, or nobody of this job.
  std::optional<Hello> greet(Socket& socket) const {
    Hello hello;
    const Patience moment = patience_.at_most(kMomentSeconds);
    if (!socket.send(own_, moment) || !socket.receive(hello, moment) || !is_of_this_job(hello.who)) return std::nullopt;
    return hello;
  }

  bool is_of_this_job(const Greeting& greeting) const {
    return greeting.protocol == own_.protocol && greeting.job == own_.job;
  }

  std::string refuse(const Greeting& who) const {
    if (who.size != own_.size)
      return fmt::format("rank 0 was started as one of {} ranks, rank {} as one of {}", own_.size, who.rank, who.size);
    if (who.rank <= 0 || who.rank >= own_.size || sockets_[static_cast<std::size_t>(who.rank)])
      return fmt::format("two processes were started as rank {}", who.rank);
    return {};
  }

  std::string describe_missing() const {
    if (patience_.stop.stop_requested()) return "the run was stopped from outside";
    std::string missing;
    for (int rank = 1; rank < rendezvous_.size; ++rank)
      if (!sockets_[static_cast<std::size_t>(rank)])
        missing += fmt::format("{}rank {}", missing.empty() ? "" : " and ", rank);
    return fmt::format("{} of {} ranks did not come to rank 0 at {}:{} (MASTER_ADDR, MASTER_PORT) in time", missing,
                       rendezvous_.size, rendezvous_.host, rendezvous_.port);
  }

  [[noreturn]] void lose(int rank) const {
    fail(fmt::format("rank {} cannot reach rank {}, though both came to rank 0", rendezvous_.rank, rank));
  }

  const Rendezvous& rendezvous_;
  const Patience& patience_;
  Greeting own_;
  std::vector<Socket> sockets_;
  std::vector<Address> addresses_;  ///< where each rank listens, known to rank 0 and by it to all
};

}  // namespace

std::vector<Socket> meet(const Rendezvous& rendezvous, const Patience& patience) {
  if (rendezvous.size == 1) return std::vector<Socket>(1);
  Meeting meeting(rendezvous, patience);
  return rendezvous.rank == 0 ? meeting.as_first() : meeting.as_other();
}

}  // namespace fp8lab::sockets
