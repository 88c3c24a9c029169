#include "comm/sockets/rendezvous.h"

#include <errno.h>
#include <fmt/core.h>
#include <sodium.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>

#include "comm/sockets/address.h"
#include "core/check.h"
#include "core/fnv1a.h"

namespace fp8lab::sockets {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// The launcher may use the named port itself, and other programs may use the next ones.
constexpr int kPorts = 16;
constexpr int kLastPort = 65535;
constexpr int kReconnectMilliseconds = 50;
// Interval at which a stop from outside is noticed.
constexpr milliseconds kStopCheckInterval(20);
// An unanswered handshake is sent again, because another program may have received the first one at that port.
constexpr milliseconds kRepeat(250);
// For so long after the deadline ranks wait for rank 0's report of the missing ranks.
constexpr milliseconds kGrace(2000);
constexpr const char* kEverywhere = "*";
constexpr const char* kStopped = "the run was stopped from outside";

std::uint64_t hash_of(const Rendezvous& rendezvous) {
  return fnv1a(fmt::format("{}/{}", rendezvous.port, rendezvous.job));
}

std::uint64_t random_number() {
  std::uint64_t number = 0;
  randombytes_buf(&number, sizeof number);
  return number;
}

/// The id of the link between `rank` and a lower rank. Only ranks of this run know it.
std::string link_id(const Reply::Token& token, int rank) {
  std::string id;
  for (const std::byte byte : token) id += fmt::format("{:02x}", std::to_integer<int>(byte));
  return fmt::format("{}/{}", id, rank);
}

class RankConnector {
 public:
  RankConnector(const Rendezvous& rendezvous, const WaitLimit& wait_limit,
                const std::function<void(const std::string&)>& notify)
      : rendezvous_(rendezvous),
        wait_limit_(wait_limit),
        notify_(notify),
        complaints_(std::make_unique<Complaints>(rendezvous.rank, notify)),
        security_(rendezvous),
        context_(std::make_unique<Context>(4 * rendezvous.size + 64)),
        doorkeeper_(*context_, security_, *complaints_),
        links_(static_cast<std::size_t>(rendezvous.size)),
        own_{.job = hash_of(rendezvous),
             .process = random_number(),
             .rank = rendezvous.rank,
             .size = rendezvous.size,
             .ports = {}} {
    if (first_port() > kLastPort)
      fail(
          fmt::format("MASTER_PORT={} is the launcher's own, and no port comes after it for the ranks; set MASTER_PORT "
                      "(torchrun --master-port) to a lower one",
                      rendezvous.port));
  }

  Mesh take() {
    rendezvous_.rank == 0 ? connect_as_rank_zero() : connect_to_rank_zero();
    open_all();
    complaints_->flush();
    return {.complaints = std::move(complaints_), .context = std::move(context_), .links = std::move(links_)};
  }

 private:
  /// What rank 0 knows of another rank.
  struct RemoteRank {
    std::string id;  ///< at rank 0's socket
    Handshake handshake;
    std::string address;
    bool complete() const { return !handshake.ports.empty(); }
  };

  int first_port() const { return rendezvous_.port + (rendezvous_.port_taken ? 1 : 0); }
  int last_port() const { return std::min(first_port() + kPorts - 1, kLastPort); }

  // Rank 0.

  void connect_as_rank_zero() {
    Router gate(*context_, largest_handshake(rendezvous_.size));
    gate.stay_on_one_thread();
    Connections connections(*context_, gate, complaints_.get());
    security_.guard_listener(gate);
    const std::string address = listen_somewhere(gate);
    if (!security_.has_secret() && notify_)
      notify_(fmt::format("FP8LAB_JOB_SECRET is not set: ranks are not authenticated, so rank 0 listens at {} alone{}",
                          address, is_loopback(address) ? ", where other hosts do not reach it" : ""));
    listen_for_higher_ranks(address);
    std::vector<RemoteRank> remotes(links_.size());
    const auto missing = [&] {
      std::vector<int> ranks;
      for (int rank = 1; rank < rendezvous_.size; ++rank)
        if (!remotes[static_cast<std::size_t>(rank)].complete()) ranks.push_back(rank);
      return ranks;
    };
    std::string problem;
    while (problem.empty() && !missing().empty()) {
      if (wait_limit_.over())
        problem = describe_missing(missing());
      else
        wait_for({gate.events(ZMQ_POLLIN), connections.events()});
      connections.process_events();
      while (std::optional<Router::Received> received = gate.receive_from()) {
        connections.expect_end(connections.number_of(received->message.descriptor()));
        answer_handshake(gate, *received, remotes);
      }
    }
    Reply reply{.kind = problem.empty() ? Reply::Kind::kRoster : Reply::Kind::kRefusal,
                .text = problem,
                .token = {},
                .places = {}};
    randombytes_buf(reply.token.data(), reply.token.size());
    for (int rank = 1; rank < rendezvous_.size; ++rank) {
      const RemoteRank& remote = remotes[static_cast<std::size_t>(rank)];
      if (problem.empty()) reply.places = places_below(rank, remotes);
      if (!remote.id.empty()) gate.send_to(remote.id, write(reply));
    }
    if (!problem.empty()) fail(problem);
    await_higher_ranks(reply.token);
  }

  /// Makes `gate` listen, and returns its address.
  std::string listen_somewhere(Router& gate) const {
    const bool everywhere = security_.has_secret() && !names_loopback(rendezvous_.host);
    std::vector<std::string> addresses = resolve(rendezvous_.host);
    // Addresses of the host may differ from machine to machine; here it is often a loopback address.
    if (everywhere) addresses = {kEverywhere};
    bool is_here = false;
    for (const std::string& address : addresses) {
      for (int port = first_port(); port <= last_port(); ++port) {
        if (gate.bind(endpoint(address, port))) return address;
        if (errno != EADDRINUSE && errno != EADDRNOTAVAIL && errno != ENODEV)
          fail(fmt::format("cannot listen at {}: {}", endpoint(address, port), zmq_strerror(errno)));
        is_here = is_here || errno == EADDRINUSE;
      }
    }
    if (!is_here)
      fail(
          fmt::format("MASTER_ADDR={} is no address of rank 0's machine; name one that is, or set FP8LAB_JOB_SECRET on "
                      "every rank, so "
                      "that ranks may listen at all of them",
                      rendezvous_.host));
    fail(fmt::format(
        "rank 0 finds no free port for the other ranks among {} to {} (MASTER_PORT and the next); set MASTER_PORT to a "
        "free {}one",
        first_port(), last_port(), last_port() == kLastPort ? "and lower " : ""));
  }

  void answer_handshake(Router& gate, Router::Received& received, std::vector<RemoteRank>& remotes) {
    const std::string from = peer_of(received.message.descriptor());
    const std::optional<Handshake> handshake = read_handshake(received.message.bytes());
    if (!handshake) return complaints_->add(from, "it sent what no rank sends");
    if (handshake->job != own_.job)
      return complaints_->add(from, "it is of another job (MASTER_PORT, TORCHELASTIC_RUN_ID, SLURM_JOB_ID)");
    const auto refuse = [&](const std::string& why) {
      complaints_->add(from, why);
      gate.send_to(received.id.text(),
                   write(Reply{.kind = Reply::Kind::kRefusal, .text = why, .token = {}, .places = {}}));
    };
    if (handshake->size != own_.size)
      return refuse(fmt::format("rank 0 was started as one of {} ranks, rank {} as one of {}", own_.size,
                                handshake->rank, handshake->size));
    if (handshake->rank <= 0 || handshake->rank >= own_.size)
      return refuse(
          fmt::format("rank {} is none of ranks 1 to {}, which rank 0 waits for", handshake->rank, own_.size - 1));
    RemoteRank& remote = remotes[static_cast<std::size_t>(handshake->rank)];
    if (!remote.id.empty() && remote.handshake.process != handshake->process)
      return refuse(fmt::format("two processes were started as rank {}", handshake->rank));
    for (int higher = handshake->rank + 1; higher < own_.size && !handshake->ports.empty(); ++higher)
      if (handshake->ports[static_cast<std::size_t>(higher)] == 0)
        return refuse("it names no port for a rank above it");
    const bool repeats_first = remote.complete() && handshake->ports.empty();
    remote.id = received.id.text();
    if (!repeats_first) remote.handshake = *handshake;
    remote.address = unmapped(received.message.peer_address());
    if (!remote.complete())
      gate.send_to(remote.id,
                   write(Reply{.kind = Reply::Kind::kWelcome, .text = remote.address, .token = {}, .places = {}}));
  }

  std::vector<Reply::Place> places_below(int rank, const std::vector<RemoteRank>& remotes) const {
    std::vector<Reply::Place> places;
    for (int lower = 0; lower < rank; ++lower) {
      const RemoteRank& remote = remotes[static_cast<std::size_t>(lower)];
      if (lower == 0) {
        places.push_back(
            {.address = {}, .port = static_cast<std::uint16_t>(own_.ports[static_cast<std::size_t>(rank)])});
        continue;
      }
      // A rank on rank 0's machine may connect from a loopback address. Other machines reach it at rank 0's address.
      const bool is_elsewhere = is_loopback(remote.address) && !names_loopback(rendezvous_.host);
      places.push_back({.address = is_elsewhere ? std::string() : remote.address,
                        .port = remote.handshake.ports[static_cast<std::size_t>(rank)]});
    }
    return places;
  }

  std::string describe_missing(const std::vector<int>& ranks) const {
    if (wait_limit_.stop.stop_requested()) return kStopped;
    std::string missing;
    for (const int rank : ranks) missing += fmt::format("{}rank {}", missing.empty() ? "" : " and ", rank);
    return fmt::format("{} of {} ranks did not come to rank 0 at {}:{} (MASTER_ADDR, MASTER_PORT) in time", missing,
                       rendezvous_.size, rendezvous_.host, rendezvous_.port);
  }

  // The other ranks.

  void connect_to_rank_zero() {
    Router socket(*context_, largest_reply(rendezvous_.size));
    socket.set(ZMQ_LINGER, 0);  // drops handshakes that nobody received
    Connections connections(*context_, socket, nullptr);
    security_.guard_connector(socket);
    socket.set(ZMQ_RECONNECT_IVL, kReconnectMilliseconds);
    std::vector<std::string> addresses, candidates;
    for (const std::string& address : resolve(rendezvous_.host))
      for (int port = first_port(); port <= last_port(); ++port) {
        addresses.push_back(address);
        candidates.push_back(endpoint(address, port));
        socket.connect_as(candidates.back(), candidates.back());
      }
    const WaitLimit longer{.deadline = wait_limit_.deadline + kGrace, .stop = wait_limit_.stop};
    std::optional<std::size_t> first;  // index of rank 0 in candidates, once it has answered
    Clock::time_point repeat = Clock::now();
    for (;;) {
      if ((first ? longer : wait_limit_).over()) lose_first(first.has_value(), connections.last_failure());
      if (Clock::now() >= repeat) {
        repeat = Clock::now() + kRepeat;
        send_handshake(socket, first ? std::span(&candidates[*first], 1) : std::span(candidates));
      }
      wait_for({socket.events(ZMQ_POLLIN), connections.events()});
      connections.process_events();
      while (std::optional<Router::Received> received = socket.receive_from()) {
        const auto from = std::find(candidates.begin(), candidates.end(), received->id.text()) - candidates.begin();
        const auto candidate = static_cast<std::size_t>(from);
        const std::optional<Reply> reply = read_reply(received->message.bytes());
        if (!reply || candidate == candidates.size() || (first && candidate != *first)) continue;
        if (reply->kind == Reply::Kind::kRefusal) fail(reply->text);
        if (reply->kind == Reply::Kind::kRoster && first && !own_.ports.empty())
          return follow(*reply, addresses[*first]);
        if (reply->kind == Reply::Kind::kWelcome && !first) {
          if (!is_one_address(reply->text)) fail("rank 0 sees this rank at no address");
          first = candidate;
          const bool everywhere = security_.has_secret() && !names_loopback(rendezvous_.host);
          listen_for_higher_ranks(everywhere ? kEverywhere : reply->text);
          repeat = Clock::now();
        }
      }
    }
  }

  void send_handshake(Router& socket, std::span<const std::string> candidates) const {
    const std::vector<std::byte> handshake = write(own_);
    for (const std::string& candidate : candidates)
      if (socket.send_to(candidate, handshake) == Router::Sent::kGone) socket.connect_as(candidate, candidate);
  }

  [[noreturn]] void lose_first(bool found, const std::string& failure) const {
    check(!wait_limit_.stop.stop_requested(), kStopped);
    if (found)
      fail(fmt::format("rank 0 at {}:{} went away before all ranks had come", rendezvous_.host, rendezvous_.port));
    fail(fmt::format(
        "rank {} finds no rank 0 of its job at {}, ports {} to {} (MASTER_ADDR, MASTER_PORT and the next){}{}",
        rendezvous_.rank, rendezvous_.host, first_port(), last_port(),
        failure.empty() ? "" : "; of who answered there: ", failure));
  }

  void follow(const Reply& roster, const std::string& first_address) {
    if (roster.places.size() != static_cast<std::size_t>(rendezvous_.rank))
      fail(fmt::format("rank 0 names {} ranks below rank {}", roster.places.size(), rendezvous_.rank));
    const std::string id = link_id(roster.token, rendezvous_.rank);
    for (std::size_t lower = 0; lower < roster.places.size(); ++lower) {
      const Reply::Place& place = roster.places[lower];
      const std::string& address = place.address.empty() ? first_address : place.address;
      if (!is_one_address(address)) fail(fmt::format("rank 0 names no address of rank {}", lower));
      links_[lower] = Link::connect(*context_, security_, id, endpoint(address, place.port));
    }
    await_higher_ranks(roster.token);
  }

  // All ranks.

  void listen_for_higher_ranks(const std::string& address) {
    own_.ports.assign(links_.size(), 0);
    for (std::size_t higher = static_cast<std::size_t>(rendezvous_.rank) + 1; higher < links_.size(); ++higher) {
      links_[higher] = Link::listen(*context_, security_, *complaints_, address);
      own_.ports[higher] = static_cast<std::uint16_t>(links_[higher]->port());
    }
  }

  void await_higher_ranks(const Reply::Token& token) {
    for (int higher = rendezvous_.rank + 1; higher < rendezvous_.size; ++higher)
      links_[static_cast<std::size_t>(higher)]->await(link_id(token, higher));
  }

  void open_all() {
    const WaitLimit longer{.deadline = wait_limit_.deadline + kGrace, .stop = wait_limit_.stop};
    for (int other = 0; other < rendezvous_.size; ++other) {
      if (other == rendezvous_.rank) continue;
      Link& link = *links_[static_cast<std::size_t>(other)];
      while (!link.open()) {
        check(!wait_limit_.stop.stop_requested(), kStopped);
        if (longer.over())
          fail(fmt::format("rank {} cannot reach rank {}, though both came to rank 0", rendezvous_.rank, other));
        wait_for(link.opening());
      }
    }
  }

  /// Waits until one of `wanted` has an event or libzmq asks about a connection, at most for a moment. Answers libzmq.
  void wait_for(const std::array<zmq_pollitem_t, 2>& wanted) {
    std::array<zmq_pollitem_t, 3> items = {wanted[0], wanted[1], doorkeeper_.socket().events(ZMQ_POLLIN)};
    wait(items, kStopCheckInterval);
    doorkeeper_.serve();
  }

  const Rendezvous& rendezvous_;
  const WaitLimit& wait_limit_;
  const std::function<void(const std::string&)>& notify_;
  std::unique_ptr<Complaints> complaints_;
  Security security_;
  std::unique_ptr<Context> context_;
  Doorkeeper doorkeeper_;
  std::vector<std::unique_ptr<Link>> links_;
  Handshake own_;
};

}  // namespace

Mesh connect_ranks(const Rendezvous& rendezvous, const WaitLimit& wait_limit,
                   const std::function<void(const std::string&)>& notify) {
  if (rendezvous.size == 1)
    return {.complaints = nullptr, .context = nullptr, .links = std::vector<std::unique_ptr<Link>>(1)};
  if (rendezvous.size > kMostRanks) fail(fmt::format("{} ranks are more than {}", rendezvous.size, kMostRanks));
  return RankConnector(rendezvous, wait_limit, notify).take();
}

}  // namespace fp8lab::sockets
