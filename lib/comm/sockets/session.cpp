#include "comm/sockets/session.h"

#include <fmt/core.h>
#include <sodium.h>

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace fp8lab::sockets {
namespace {

using processes::Awaited;
using processes::Tag;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kShutdownTag = Tag{}.number();
constexpr milliseconds kPause(5);
// libzmq reports that some connection takes messages, not which. So where only some have messages to send, it is not
// asked.
constexpr milliseconds kPauseToSend(1);
constexpr milliseconds kCheckInterval(100);

RankId random_id() {
  RankId id{};
  check(sodium_init() >= 0, "libsodium cannot be used");
  randombytes_buf(id.data(), id.size());
  id[0] = 'r';  // libzmq's own ids begin with zero
  return id;
}

}  // namespace

Session::Session(const Rendezvous& rendezvous, const WaitLimit& wait_limit,
                 std::function<void(const std::string&)> notify)
    : Transport("the connection with other ranks", rendezvous.rank, rendezvous.size),
      context_(rendezvous, std::move(notify)),
      peers_(static_cast<std::size_t>(rendezvous.size)) {
  if (rendezvous.size == 1) return;
  if (rendezvous.size > kMostRanks)
    fail(fmt::format("{} ranks over TCP are more than {}", rendezvous.size, kMostRanks));
  const RankId id = random_id();
  router_.emplace(context_, kLargestFrame, std::string_view(id.data(), id.size()));
  const std::vector<Found> found = find_ranks(rendezvous, wait_limit, context_, id, *router_);
  for_others([&](Peer& peer, int other) {
    peer.found = found[static_cast<std::size_t>(other)];
    ranks_.emplace(peer.address(), other);
  });
  await_connections(wait_limit.with_grace());
}

void Session::await_connections(const WaitLimit& wait_limit) {
  for (int other = 0; other < size();) {
    if (other == rank() || peer(other).open) {
      ++other;
      continue;
    }
    check(!wait_limit.stop.stop_requested(), kStopped);
    if (wait_limit.over()) fail(fmt::format("rank {} cannot reach rank {}, though both came to rank 0", rank(), other));
    router_->wait(kStopCheckInterval);
    read();
  }
}

void Session::receive(std::byte* to, std::int64_t bytes, int from_rank, Tag tag) {
  peer(from_rank).inbox.expect(to, bytes, tag);
}

void Session::send(const std::byte* from, std::int64_t bytes, int to_rank, Tag tag) {
  if (bytes == 0) return;
  Outgoing& message = peer(to_rank).outgoing.emplace_back();
  message.head = {.tag = tag.number(), .total = static_cast<std::uint64_t>(bytes), .offset = 0};
  if (message.head.tag != kShutdownTag && !tag.data) {
    check(bytes == sizeof message.call, "a call has another size");
    std::copy_n(from, bytes, message.call.begin());
  } else {
    message.from = from;
  }
}

bool Session::finished(Awaited awaited) {
  progress();
  return std::all_of(peers_.begin(), peers_.end(), [&](const Peer& peer) { return peer.finished(awaited); });
}

std::vector<int> Session::unfinished_ranks(Awaited awaited) {
  std::vector<int> ranks;
  for_others([&](Peer& peer, int other) {
    if (!peer.finished(awaited)) ranks.push_back(other);
  });
  return ranks;
}

bool Session::abandon(const std::vector<bool>&) {
  for_others([](Peer& peer, int) {
    peer.inbox.abandon();
    // Calls and a shutdown message are still sent. Data behind data that is dropped would be taken for it. The other
    // side notices an abandoned message by the next frame.
    auto& outgoing = peer.outgoing;
    outgoing.erase(outgoing.begin(), outgoing.begin() + static_cast<std::ptrdiff_t>(std::exchange(peer.first, 0)));
    std::erase_if(outgoing, [](const Outgoing& message) { return Tag::is_collective_data(message.head.tag); });
  });
  return true;
}

void Session::pause() {
  if (!router_) return;
  int sending = 0, reachable = 0;
  for (const Peer& peer : peers_) {
    sending += peer.reachable() && peer.unsent() ? 1 : 0;
    reachable += peer.reachable() ? 1 : 0;
  }
  router_->wait(sending > 0 ? kPauseToSend : kPause, sending > 0 && sending == reachable);
}

void Session::expect_shutdowns(std::shared_ptr<processes::ShutdownMessages> messages) {
  messages_ = std::move(messages);
  for_others(
      [&](Peer& peer, int other) { peer.inbox.expect_shutdown(&(*messages_)[static_cast<std::size_t>(other)]); });
}

bool Session::shutdown_received(int rank) {
  progress();
  check_connections();
  return peer(rank).inbox.shutdown_came();
}

void Session::progress() {
  if (!router_) return;
  for (Peer& peer : peers_) write(peer);
  read();
}

void Session::write(Peer& to) {
  while (to.unsent() && to.reachable()) {
    Outgoing& message = to.outgoing[to.first];
    const std::byte* from = message.from != nullptr ? message.from : message.call.data();
    // If the other rank is gone, check_connections() finds out.
    if (router_->send(to.address(), message.head, from) != Router::Sent::kYes) return;
    message.head.offset += chunk_bytes(message.head.total, message.head.offset);
    if (message.head.offset == message.head.total) ++to.first;
  }
  if (to.unsent()) return;
  to.outgoing.clear();
  to.first = 0;
}

void Session::read() {
  while (std::optional<Router::Received> received = router_->receive()) {
    const auto found = ranks_.find(received->from());
    if (found == ranks_.end()) {
      if (received->message.size() > 0) router_->refuse(*received, "it is no rank of this run");
      continue;
    }
    Peer& from = peer(found->second);
    if (!from.lost.empty()) continue;
    if (received->message.size() > 0) {
      if (!from.inbox.take(received->bytes())) from.lost = from.inbox.problem();
    } else if (std::exchange(from.open, true)) {
      from.lost = "its connection ended and was made again";
    }
  }
}

/// Notices connections that have ended; those that the other rank has made, by sending over them. A rank whose shutdown
/// message has come may go.
void Session::check_connections() {
  if (!router_ || Clock::now() < next_check_) return;
  next_check_ = Clock::now() + kCheckInterval;
  for_others([&](Peer& peer, int) {
    if (!peer.reachable() || (peer.inbox.shutdown_came() && !peer.unsent())) return;
    const std::byte nothing{};
    const bool ended = peer.found.endpoint.empty()
                           ? router_->send(peer.address(), kProbeTag, {&nothing, 1}) == Router::Sent::kGone
                           : router_->ended(peer.found.endpoint);
    // The last messages may still come; by the second check they have.
    if (!ended || !std::exchange(peer.ended, true)) return;
    peer.lost = "its process has ended, or closed the connection";
    if (!peer.found.endpoint.empty()) router_->disconnect(peer.found.endpoint);
  });
}

void Session::hang_up() { router_.reset(); }

}  // namespace fp8lab::sockets
