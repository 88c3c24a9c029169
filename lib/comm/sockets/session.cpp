#include "comm/sockets/session.h"

#include <errno.h>
#include <fmt/core.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace fp8lab::sockets {
namespace {

using processes::Awaited;
using processes::Tag;
using std::chrono::milliseconds;

constexpr milliseconds kPause(5);
// How long to wait at most before a stop from outside is noticed.
constexpr milliseconds kStopCheckInterval(20);
constexpr int kBufferBytes = 1 << 20;
// Calls to the kernel for one rank before those for the next, so that a rank which sends also receives.
constexpr int kCallsForOneRank = 4;

// A rank that is connected has a larger one in its shutdown messages.
constexpr std::uint64_t kGaveUp = 0;

constexpr const char* kEnded = "its process has ended, or closed the connection";

/// What to do if rank 0 is on another machine, as its address may say.
std::string hint_of_hosts(const std::string& host) {
  std::array<char, 256> own{};
  ::gethostname(own.data(), own.size() - 1);
  const bool here =
      host.empty() || host == "localhost" || host == "::1" || host.starts_with("127.") || host == own.data();
  return here ? "" : fmt::format("; if MASTER_ADDR={} is another host, {}", host, kSeveralHosts);
}

}  // namespace

Session::Session(const RunOptions& options)
    : Transport("the connection with other ranks", options.rendezvous.rank, options.rendezvous.size),
      peers_(static_cast<std::size_t>(options.rendezvous.size)),
      polled_(peers_.size(), {-1, 0, 0}) {
  if (size() == 1) return;
  for_others([](Peer& peer, int) { peer.begun = std::make_unique_for_overwrite<std::byte[]>(kChunkBytes); });
  const auto deadline = std::chrono::steady_clock::now() + options.timeout;
  Connector connector(options.rendezvous, options.notify);
  for (std::string missing = missing_ranks(); !missing.empty(); missing = missing_ranks()) {
    if (options.stop.stop_requested()) give_up(std::string(kStoppedFromOutside));
    if (std::chrono::steady_clock::now() >= deadline)
      give_up(fmt::format("{} of {} ranks did not come to {} in time{}", missing, size(), user_folder(),
                          hint_of_hosts(options.rendezvous.host)));
    for (Connector::Link& link : connector.wait(kStopCheckInterval)) {
      ::setsockopt(link.socket.number(), SOL_SOCKET, SO_SNDBUF, &kBufferBytes, sizeof kBufferBytes);
      peer(link.rank).socket = std::move(link.socket);
    }
    check_others();
  }
}

/// "rank 1 and rank 3": those that have not connected; empty if all have.
std::string Session::missing_ranks() {
  std::string missing;
  for_others([&](Peer& peer, int other) {
    if (!peer.socket.is_open()) missing += fmt::format("{}rank {}", missing.empty() ? "" : " and ", other);
  });
  return missing;
}

/// Throws if a rank that has connected gave up or ended before all have.
void Session::check_others() {
  progress(milliseconds(0));
  for_others([&](Peer& peer, int other) {
    const processes::ShutdownBytes* const message = peer.inbox.early_shutdown();
    const auto shutdown = message != nullptr ? processes::read_shutdown(*message, largest_context()) : std::nullopt;
    if (shutdown && shutdown->next_context == kGaveUp) give_up(shutdown->reason);
    if (peer.ended) throw RanksLost(fmt::format("rank {}: {}", other, peer.lost.empty() ? kEnded : peer.lost));
  });
}

/// Ends the wait for ranks, on those that have connected too.
void Session::give_up(const std::string& reason) {
  const auto shutdown =
      processes::write({.ending = processes::Ending::kByDeath, .next_context = kGaveUp, .reason = reason});
  for_others([&](Peer&, int other) { send(shutdown.data(), sizeof shutdown, other, Tag{}); });
  progress(milliseconds(0));
  fail(reason);
}

void Session::receive(std::byte* to, std::int64_t bytes, int from_rank, Tag tag) {
  peer(from_rank).inbox.expect(to, bytes, tag);
}

void Session::send(const std::byte* from, std::int64_t bytes, int to_rank, Tag tag) {
  if (bytes == 0) return;
  Outgoing& message = peer(to_rank).outgoing.emplace_back();
  message.end = static_cast<std::uint64_t>(bytes);
  message.head = {.tag = tag.number(), .total = message.end, .offset = 0};
  if (tag.context != 0 && !tag.data) {
    check(bytes == sizeof message.call, "a call has another size");
    std::copy_n(from, bytes, message.call.begin());
  } else {
    message.chunk = from;
  }
}

bool Session::finished(Awaited awaited) {
  progress(milliseconds(0));
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
    // Calls and a shutdown message are still sent. Of data only the frame that has begun is, from memory of this
    // session. The other side notices an abandoned message by the next frame.
    auto& outgoing = peer.outgoing;
    outgoing.erase(outgoing.begin(), outgoing.begin() + static_cast<std::ptrdiff_t>(std::exchange(peer.first, 0)));
    if (peer.frame_sent > 0 && Tag::is_collective_data(outgoing.front().head.tag)) {
      Outgoing& message = outgoing.front();
      message.end = message.head.offset + message.head.chunk_bytes();
      if (message.chunk != peer.begun.get()) std::copy_n(message.chunk, message.head.chunk_bytes(), peer.begun.get());
      message.chunk = peer.begun.get();
    }
    const auto unbegun = outgoing.begin() + (peer.frame_sent > 0 ? 1 : 0);
    outgoing.erase(
        std::remove_if(unbegun, outgoing.end(), [](const Outgoing& m) { return Tag::is_collective_data(m.head.tag); }),
        outgoing.end());
  });
  return true;
}

void Session::pause() { progress(kPause); }

void Session::expect_shutdowns(std::shared_ptr<processes::ShutdownMessages> messages) {
  messages_ = std::move(messages);
  for_others(
      [&](Peer& peer, int other) { peer.inbox.expect_shutdown(&(*messages_)[static_cast<std::size_t>(other)]); });
}

bool Session::shutdown_received(int rank) {
  if (!peer(rank).inbox.shutdown_came()) progress(milliseconds(0));
  return peer(rank).inbox.shutdown_came();
}

/// A rank whose shutdown message has come may go.
std::string Session::lost(int rank) const {
  const Peer& other = peer(rank);
  if (!other.lost.empty()) return other.lost;
  return other.ended && (!other.inbox.shutdown_came() || other.unsent()) ? kEnded : "";
}

void Session::progress(milliseconds longest) {
  for_others([&](Peer& peer, int other) {
    const auto events = static_cast<short>(POLLIN | (peer.unsent() ? POLLOUT : 0));
    polled_[static_cast<std::size_t>(other)] = {peer.ended ? -1 : peer.socket.number(), events, 0};
  });
  if (::poll(polled_.data(), polled_.size(), static_cast<int>(longest.count())) <= 0) return;
  for_others([&](Peer& peer, int other) {
    const short events = polled_[static_cast<std::size_t>(other)].revents;
    if ((events & POLLOUT) != 0) write(peer);
    if ((events & ~POLLOUT) != 0) read(peer);
  });
}

void Session::write(Peer& to) {
  for (int calls = 0; to.unsent() && calls < kCallsForOneRank; ++calls) {
    Outgoing& message = to.outgoing[to.first];
    constexpr std::size_t kHead = sizeof message.head;
    const std::size_t chunk_bytes = message.head.chunk_bytes();
    const std::byte* const chunk = message.chunk != nullptr ? message.chunk : message.call.data();
    const bool in_head = to.frame_sent < kHead;
    const std::byte* const from =
        in_head ? reinterpret_cast<const std::byte*>(&message.head) + to.frame_sent : chunk + (to.frame_sent - kHead);
    const std::size_t left = (in_head ? kHead : kHead + chunk_bytes) - to.frame_sent;
    const ssize_t sent = ::send(to.socket.number(), from, left, MSG_NOSIGNAL);
    if (sent < 0) break;  // if the other rank is gone, read() finds out
    to.frame_sent += static_cast<std::size_t>(sent);
    if (to.frame_sent < kHead + chunk_bytes) continue;
    to.frame_sent = 0;
    message.chunk = chunk + chunk_bytes;
    message.head.offset += chunk_bytes;
    if (message.head.offset == message.end) ++to.first;
  }
  if (to.unsent()) return;
  to.outgoing.clear();
  to.first = 0;
}

void Session::read(Peer& from) {
  for (int calls = 0; calls < kCallsForOneRank; ++calls) {
    const std::span<std::byte> room = from.inbox.room();
    const ssize_t bytes = ::recv(from.socket.number(), room.data(), room.size(), 0);
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return;
    from.ended = bytes <= 0;
    if (bytes > 0 && !from.inbox.take(static_cast<std::size_t>(bytes))) {
      from.ended = true;
      from.lost = from.inbox.problem();
    }
    if (from.ended) return;
  }
}

void Session::hang_up() {
  for (Peer& peer : peers_) {
    peer.socket.close();
    peer.ended = true;
  }
}

}  // namespace fp8lab::sockets
