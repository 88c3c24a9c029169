#include "comm/sockets/rendezvous.h"

#include <errno.h>
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "comm/sockets/address.h"
#include "core/check.h"
#include "core/fnv1a.h"

namespace fp8lab::sockets {
namespace {

// The launcher may use the named port itself, and other programs may use the next ones.
constexpr int kPorts = 16;
constexpr std::chrono::milliseconds kRetry(50);
constexpr const char* kEverywhere = "*";

class RankFinder {
 public:
  RankFinder(const Finding& finding, const RankId& id, Router& router)
      : finding_(finding),
        rendezvous_(finding.rendezvous),
        router_(router),
        gate_(
            finding.context, finding.keys, finding.complaints,
            sizeof(FrameHead) + std::max(sizeof(Handshake), sizeof(Place) * static_cast<std::size_t>(rendezvous_.size)),
            {}),
        everywhere_(finding.keys.has_secret() && !names_loopback(rendezvous_.host)) {
    own_.job = fnv1a(fmt::format("{}/{}", rendezvous_.port, rendezvous_.job));
    own_.id = id;
    own_.rank = rendezvous_.rank;
    own_.size = rendezvous_.size;
    if (first_port() > kLastPort)
      fail(
          fmt::format("MASTER_PORT={} is the launcher's own, and no port comes after it for the ranks; set MASTER_PORT "
                      "(torchrun --master-port) to a lower one",
                      rendezvous_.port));
  }

  std::vector<Found> find() {
    const std::vector<Place> places = rendezvous_.rank == 0 ? collect() : ask_rank_zero();
    std::vector<Found> found;
    for (const Place& place : places) found.push_back({.id = place.id});
    for (std::size_t lower = 0; lower < static_cast<std::size_t>(rendezvous_.rank); ++lower) {
      const std::string named = places[lower].address.data();
      const std::string& address = named.empty() ? address_of_rank_zero_ : named;
      if (!is_one_address(address)) fail(fmt::format("rank 0 names no address of rank {}", lower));
      found[lower].endpoint = router_.connect_to(address, static_cast<int>(places[lower].port), {});
    }
    return found;
  }

 private:
  /// What rank 0 knows of another rank.
  struct Remote {
    std::string connection;  ///< at the gate; empty: it has not come
    Place place;
  };

  int first_port() const { return rendezvous_.port + (rendezvous_.port_taken ? 1 : 0); }
  int last_port() const { return std::min(first_port() + kPorts - 1, kLastPort); }

  // Rank 0.

  std::vector<Place> collect() {
    const std::string address = open_gate();
    if (!finding_.keys.has_secret() && finding_.notify)
      finding_.notify(
          fmt::format("FP8LAB_JOB_SECRET is not set: ranks are not authenticated, so rank 0 listens at {} alone{}",
                      address, is_loopback(address) ? ", where other hosts do not reach it" : ""));
    remotes_.resize(static_cast<std::size_t>(rendezvous_.size));
    remotes_[0].place = {.id = own_.id, .address = {}, .port = listen_at(address)};
    std::string problem;
    for (std::vector<int> missing = missing_ranks(); problem.empty() && !missing.empty(); missing = missing_ranks()) {
      if (finding_.wait_limit.over()) problem = describe_missing(missing);
      gate_.wait(kStopCheckInterval);
      while (std::optional<Router::Received> received = gate_.receive())
        if (received->message.size() > 0) answer(*received);
    }
    std::vector<Place> places;
    for (const Remote& remote : remotes_) places.push_back(remote.place);
    const std::vector<std::byte> reply = problem.empty() ? write_roster(places) : write_refusal(problem);
    for (const Remote& remote : remotes_)
      if (!remote.connection.empty()) gate_.send(remote.connection, reply);
    if (!problem.empty()) fail(problem);
    return places;
  }

  std::vector<int> missing_ranks() const {
    std::vector<int> ranks;
    for (int rank = 1; rank < rendezvous_.size; ++rank)
      if (remotes_[static_cast<std::size_t>(rank)].connection.empty()) ranks.push_back(rank);
    return ranks;
  }

  /// Makes the gate listen, and returns its address.
  std::string open_gate() {
    std::vector<std::string> addresses = resolve(rendezvous_.host);
    // Addresses of the host may differ from machine to machine; here it is often a loopback address.
    if (everywhere_) addresses = {kEverywhere};
    bool is_here = false;
    for (const std::string& address : addresses) {
      for (int port = first_port(); port <= last_port(); ++port) {
        if (gate_.listen(address, port)) return address;
        if (errno != EADDRINUSE && errno != EADDRNOTAVAIL && errno != ENODEV)
          fail(fmt::format("cannot listen at {}: {}", endpoint(address, port), zmq_strerror(errno)));
        is_here = is_here || errno == EADDRINUSE;
      }
    }
    if (!is_here)
      fail(
          fmt::format("MASTER_ADDR={} is no address of rank 0's machine; name one that is, or set FP8LAB_JOB_SECRET on "
                      "every rank, so that ranks may listen at all of them",
                      rendezvous_.host));
    fail(fmt::format(
        "rank 0 finds no free port for the other ranks among {} to {} (MASTER_PORT and the next); set MASTER_PORT to a "
        "free {}one",
        first_port(), last_port(), last_port() == kLastPort ? "and lower " : ""));
  }

  void answer(Router::Received& received) {
    const std::optional<Frame> frame = read_frame(received.bytes());
    const std::optional<Handshake> handshake = frame ? read_handshake(*frame) : std::nullopt;
    if (!handshake) return gate_.refuse(received, "it sent what no rank sends");
    if (handshake->job != own_.job)
      return gate_.refuse(received, "it is of another job (MASTER_PORT, TORCHELASTIC_RUN_ID, SLURM_JOB_ID)");
    const auto refuse = [&](const std::string& why) {
      gate_.refuse(received, why);
      gate_.send(received.from(), write_refusal(why));
    };
    if (handshake->size != own_.size)
      return refuse(fmt::format("rank 0 was started as one of {} ranks, rank {} as one of {}", own_.size,
                                handshake->rank, handshake->size));
    if (handshake->rank <= 0 || handshake->rank >= own_.size)
      return refuse(
          fmt::format("rank {} is none of ranks 1 to {}, which rank 0 waits for", handshake->rank, own_.size - 1));
    Remote& remote = remotes_[static_cast<std::size_t>(handshake->rank)];
    if (!remote.connection.empty() && remote.place.id != handshake->id)
      return refuse(fmt::format("two processes were started as rank {}", handshake->rank));
    remote.connection = received.from();
    remote.place = {.id = handshake->id, .address = {}, .port = handshake->port};
    const std::string from = received.peer_address();
    // A rank on rank 0's machine may connect from a loopback address. Other machines reach it at rank 0's address.
    if (!is_loopback(from) || names_loopback(rendezvous_.host))
      std::copy_n(from.begin(), std::min(from.size(), remote.place.address.size() - 1), remote.place.address.begin());
  }

  std::string describe_missing(const std::vector<int>& ranks) const {
    if (finding_.wait_limit.stop.stop_requested()) return kStopped;
    std::string missing;
    for (const int rank : ranks) missing += fmt::format("{}rank {}", missing.empty() ? "" : " and ", rank);
    return fmt::format("{} of {} ranks did not come to rank 0 at {}:{} (MASTER_ADDR, MASTER_PORT) in time", missing,
                       rendezvous_.size, rendezvous_.host, rendezvous_.port);
  }

  // The other ranks.

  std::vector<Place> ask_rank_zero() {
    for (const std::string& address : resolve(rendezvous_.host))
      for (int port = first_port(); port <= last_port(); ++port) gate_.connect_to(address, port, kRetry);
    // Rank 0 of another job, and other programs that speak ZMTP, do not answer.
    const WaitLimit longer = finding_.wait_limit.with_grace();
    bool found = false;
    for (;;) {
      if ((found ? longer : finding_.wait_limit).over()) fail_to_find();
      gate_.wait(kStopCheckInterval);
      while (std::optional<Router::Received> received = gate_.receive()) {
        if (received->message.size() == 0) {
          const std::string here = own_address(received->descriptor());
          if (here.empty()) continue;  // the connection is gone
          own_.port = listen_at(everywhere_ ? kEverywhere : here);
          found = gate_.send(received->from(), write(own_)) == Router::Sent::kYes || found;
          continue;
        }
        const std::optional<Frame> frame = read_frame(received->bytes());
        if (!frame) continue;
        if (const std::optional<std::string> refusal = read_refusal(*frame)) fail(*refusal);
        address_of_rank_zero_ = received->peer_address();
        if (std::optional<std::vector<Place>> places = read_roster(*frame, rendezvous_.size)) return *std::move(places);
      }
    }
  }

  [[noreturn]] void fail_to_find() const {
    check(!finding_.wait_limit.stop.stop_requested(), kStopped);
    const std::string& failure = gate_.last_failure();
    fail(fmt::format(
        "rank {} finds no rank 0 of its job at {}, ports {} to {} (MASTER_ADDR, MASTER_PORT and the next){}{}",
        rendezvous_.rank, rendezvous_.host, first_port(), last_port(),
        failure.empty() ? "" : "; of who answered there: ", failure));
  }

  // All ranks.

  /// The port at which the router listens there.
  std::uint32_t listen_at(const std::string& address) {
    const auto [entry, is_new] = ports_.try_emplace(address, 0);
    if (!is_new) return entry->second;
    const std::optional<int> port = router_.listen(address, 0);
    if (!port) fail(fmt::format("cannot listen at {} for other ranks: {}", address, zmq_strerror(errno)));
    return entry->second = static_cast<std::uint32_t>(*port);
  }

  const Finding& finding_;
  const Rendezvous& rendezvous_;
  Router& router_;
  Router gate_;  ///< rank 0 listens with it, the others connect to that
  bool everywhere_;
  Handshake own_;
  std::map<std::string, std::uint32_t> ports_;  ///< by address
  std::vector<Remote> remotes_;
  std::string address_of_rank_zero_;
};

}  // namespace

std::vector<Found> find_ranks(const Finding& finding, const RankId& id, Router& router) {
  return RankFinder(finding, id, router).find();
}

}  // namespace fp8lab::sockets
