#include "comm/sockets/rendezvous.h"

#include <errno.h>
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <optional>
#include <span>
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
  RankFinder(const Rendezvous& rendezvous, const WaitLimit& wait_limit, SocketContext& context, const RankId& id,
             Router& router)
      : rendezvous_(rendezvous),
        wait_limit_(wait_limit),
        context_(context),
        router_(router),
        gate_(
            context,
            sizeof(FrameHead) + std::max(sizeof(Handshake), sizeof(Place) * static_cast<std::size_t>(rendezvous.size)),
            {}),
        everywhere_(context.keys().has_secret() && !names_loopback(rendezvous.host)) {
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
  int first_port() const { return rendezvous_.port + (rendezvous_.port_taken ? 1 : 0); }
  int last_port() const { return std::min(first_port() + kPorts - 1, kLastPort); }

  // Rank 0.

  std::vector<Place> collect() {
    const std::string address = open_gate();
    if (!context_.keys().has_secret())
      context_.notify(
          fmt::format("FP8LAB_JOB_SECRET is not set: ranks are not authenticated, so rank 0 listens at {} alone{}",
                      address, is_loopback(address) ? ", where other hosts do not reach it" : ""));
    places_.resize(static_cast<std::size_t>(rendezvous_.size));
    places_[0] = {.id = own_.id, .address = {}, .port = listen_at(address)};
    std::string problem;
    while (problem.empty() && connections_.size() + 1 < places_.size()) {
      if (wait_limit_.over()) problem = describe_missing();
      gate_.wait(kStopCheckInterval);
      while (std::optional<Router::Received> received = gate_.receive())
        if (received->message.size() > 0) answer(*received);
    }
    for (const auto& [rank, connection] : connections_) {
      if (problem.empty())
        gate_.send(connection, kRosterTag, std::as_bytes(std::span(places_)));
      else
        refuse(connection, problem);
    }
    if (!problem.empty()) fail(problem);
    return places_;
  }

  void refuse(std::string_view connection, const std::string& why) {
    const std::string text = printable(why);
    gate_.send(connection, kRefusalTag, std::as_bytes(std::span(text)));
  }

  /// The addresses that MASTER_ADDR names. Throws Error for one that stands for every interface.
  std::vector<std::string> named_addresses() const {
    std::vector<std::string> addresses = resolve(rendezvous_.host);
    for (const std::string& address : addresses)
      if (!is_one_address(address))
        fail(
            fmt::format("MASTER_ADDR={} is {}, which stands for every interface of a machine; name one address of rank "
                        "0's machine (127.0.0.1 if all ranks are on it)",
                        rendezvous_.host, address));
    return addresses;
  }

  /// Makes the gate listen, and returns its address.
  std::string open_gate() {
    std::vector<std::string> addresses = named_addresses();
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
    std::string problem;
    if (handshake->size != own_.size)
      problem = fmt::format("rank 0 was started as one of {} ranks, rank {} as one of {}", own_.size, handshake->rank,
                            handshake->size);
    else if (handshake->rank <= 0 || handshake->rank >= own_.size)
      problem = fmt::format("rank {} is none of ranks 1 to {}, which rank 0 waits for", handshake->rank, own_.size - 1);
    else if (connections_.contains(handshake->rank) &&
             places_[static_cast<std::size_t>(handshake->rank)].id != handshake->id)
      problem = fmt::format("two processes were started as rank {}", handshake->rank);
    if (!problem.empty()) {
      gate_.refuse(received, problem);
      return refuse(received.from(), problem);
    }
    connections_[handshake->rank] = received.from();
    Place& place = places_[static_cast<std::size_t>(handshake->rank)];
    place = {.id = handshake->id, .address = {}, .port = handshake->port};
    const std::string from = received.peer_address();
    // A rank on rank 0's machine may connect from a loopback address. Other machines reach it at rank 0's address.
    if (!is_loopback(from) || names_loopback(rendezvous_.host))
      std::copy_n(from.begin(), std::min(from.size(), place.address.size() - 1), place.address.begin());
  }

  std::string describe_missing() const {
    if (wait_limit_.stop.stop_requested()) return kStopped;
    std::string missing;
    for (int rank = 1; rank < rendezvous_.size; ++rank)
      if (!connections_.contains(rank)) missing += fmt::format("{}rank {}", missing.empty() ? "" : " and ", rank);
    return fmt::format("{} of {} ranks did not come to rank 0 at {}:{} (MASTER_ADDR, MASTER_PORT) in time", missing,
                       rendezvous_.size, rendezvous_.host, rendezvous_.port);
  }

  // The other ranks.

  std::vector<Place> ask_rank_zero() {
    for (const std::string& address : named_addresses())
      for (int port = first_port(); port <= last_port(); ++port) gate_.connect_to(address, port, kRetry);
    // Rank 0 of another job, and other programs that speak ZMTP, do not answer.
    const WaitLimit longer = wait_limit_.with_grace();
    bool found = false;
    for (;;) {
      if ((found ? longer : wait_limit_).over()) fail_to_find();
      gate_.wait(kStopCheckInterval);
      while (std::optional<Router::Received> received = gate_.receive()) {
        if (received->message.size() == 0) {
          const std::string here = own_address(received->descriptor());
          if (here.empty()) continue;  // the connection is gone
          own_.port = listen_at(everywhere_ ? kEverywhere : here);
          const Router::Sent sent = gate_.send(received->from(), kHandshakeTag, std::as_bytes(std::span(&own_, 1)));
          found = found || sent == Router::Sent::kYes;
          continue;
        }
        const std::optional<Frame> frame = read_frame(received->bytes());
        if (!frame) continue;
        if (const std::optional<std::string> refusal = read_refusal(*frame))
          fail(fmt::format("rank 0 at {} refuses this rank: {}", received->peer_address(), *refusal));
        address_of_rank_zero_ = received->peer_address();
        if (std::optional<std::vector<Place>> places = read_roster(*frame, rendezvous_.size)) return *std::move(places);
      }
    }
  }

  [[noreturn]] void fail_to_find() const {
    check(!wait_limit_.stop.stop_requested(), kStopped);
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

  const Rendezvous& rendezvous_;
  const WaitLimit& wait_limit_;
  SocketContext& context_;
  Router& router_;
  Router gate_;  ///< rank 0 listens with it, the others connect to that
  bool everywhere_;
  Handshake own_;
  std::map<std::string, std::uint32_t> ports_;  ///< by address
  std::map<int, std::string> connections_;      ///< at the gate, of the ranks that have come; by rank
  std::vector<Place> places_;                   ///< by rank
  std::string address_of_rank_zero_;
};

}  // namespace

std::vector<Found> find_ranks(const Rendezvous& rendezvous, const WaitLimit& wait_limit, SocketContext& context,
                              const RankId& id, Router& router) {
  return RankFinder(rendezvous, wait_limit, context, id, router).find();
}

}  // namespace fp8lab::sockets
