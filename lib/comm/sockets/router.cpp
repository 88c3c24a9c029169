#include "comm/sockets/router.h"

#include <errno.h>
#include <fmt/core.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <new>
#include <utility>

#include "comm/sockets/address.h"
#include "core/check.h"

namespace fp8lab::sockets {
namespace {

constexpr std::size_t kMostReported = 50;
constexpr const char* kWrongSecret = "it does not hold the job's secret (FP8LAB_JOB_SECRET, or another job's)";

constexpr int kThreads = 2;
// A socket's listeners are served by one thread, so that events of their connections are reported in order.
constexpr std::uint64_t kListening = 1, kConnecting = 2;
constexpr int kLingerMilliseconds = 2000;
constexpr int kNeverMilliseconds = 1 << 30;
// Bounds of ZMTP's handshake commands, and of the bytes that encryption adds to a message.
constexpr std::size_t kLargestCommand = 2048;
constexpr std::size_t kEncryption = 256;
// Connections that wait to be accepted.
constexpr int kBacklog = 1024;
constexpr int kHandshakeMilliseconds = 10'000;
// TCP keepalive notices a host that has gone silently. A stopped process still answers it.
constexpr int kIdleSeconds = 30;
constexpr int kProbeSeconds = 10;
constexpr int kProbes = 3;
// Messages that wait on either side of a connection, of kChunkBytes each.
constexpr int kWaiting = 8;

void must(int result) {
  if (result < 0) throw zmq::error_t();
}

zmq::message_t make_message(std::size_t bytes) {
  try {
    return zmq::message_t(bytes);
  } catch (const zmq::error_t&) {
    throw std::bad_alloc();
  }
}

/// A failed handshake in words.
std::string describe_failure(int event, int value) {
  if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) return kWrongSecret;
  if (event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL) {
    if (value == ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC || value == ZMQ_PROTOCOL_ERROR_ZMTP_KEY_EXCHANGE)
      return kWrongSecret;
    if (value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
      return "one side has a job secret (FP8LAB_JOB_SECRET) and the other none";
    return fmt::format("its handshake is none of ZMTP's (code {:#x})", value);
  }
  return "it ended, or sent nothing, before its handshake was done";
}

}  // namespace

SocketContext::SocketContext(const Rendezvous& rendezvous, std::function<void(const std::string&)> notify)
    : rank_(rendezvous.rank), notify_(std::move(notify)), keys_(rendezvous), zmq_(kThreads) {
  // libzmq allocates memory for each received frame. Until glibc has seen a large block freed, it maps and unmaps that
  // memory each time, which doubles the cost of a gather. These are the thresholds at which glibc would arrive.
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 64 << 20);
}

void SocketContext::notify(const std::string& line) const {
  if (notify_) notify_(line);
}

void SocketContext::report_refused(const std::string& from, const std::string& reason) {
  if (refused_.size() >= kMostReported || !refused_.insert(from + ' ' + reason).second) return;
  notify(fmt::format("rank {} refused a connection from {}: {}{}", rank_,
                     from.empty() ? "an address that is gone" : from, reason,
                     refused_.size() == kMostReported ? "; further ones are not mentioned" : ""));
}

std::string Router::Received::peer_address() {
  const char* const address = zmq_msg_gets(message.handle(), "Peer-Address");
  return address == nullptr ? std::string() : unmapped(address);
}

Router::Router(SocketContext& context, std::size_t largest_message, std::string_view id)
    : context_(context),
      socket_(context.zmq(), zmq::socket_type::router),
      monitor_(context.zmq(), zmq::socket_type::pair) {
  if (!id.empty()) socket_.set(zmq::sockopt::routing_id, id);
  socket_.set(zmq::sockopt::router_mandatory, true);
  socket_.set(zmq::sockopt::probe_router, true);
  socket_.set(zmq::sockopt::linger, kLingerMilliseconds);
  socket_.set(zmq::sockopt::maxmsgsize,
              static_cast<std::int64_t>(std::max(largest_message + kEncryption, kLargestCommand)));
  socket_.set(zmq::sockopt::sndhwm, kWaiting);
  socket_.set(zmq::sockopt::rcvhwm, kWaiting);
  socket_.set(zmq::sockopt::backlog, kBacklog);
  socket_.set(zmq::sockopt::handshake_ivl, kHandshakeMilliseconds);
  socket_.set(zmq::sockopt::tcp_keepalive, 1);
  socket_.set(zmq::sockopt::tcp_keepalive_idle, kIdleSeconds);
  socket_.set(zmq::sockopt::tcp_keepalive_intvl, kProbeSeconds);
  socket_.set(zmq::sockopt::tcp_keepalive_cnt, kProbes);
  socket_.set(zmq::sockopt::ipv6, true);

  static std::atomic<std::uint64_t> number{0};
  const std::string name = fmt::format("inproc://monitor-{}", number++);
  must(zmq_socket_monitor(socket_.handle(), name.c_str(),
                          ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                              ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH));
  monitor_.set(zmq::sockopt::linger, 0);
  monitor_.set(zmq::sockopt::rcvhwm, 0);  // else libzmq's threads wait until events are read
  must(zmq_connect(monitor_.handle(), name.c_str()));
}

// Else libzmq's threads wait for ever for a reader of the events that follow.
Router::~Router() { zmq_socket_monitor(socket_.handle(), nullptr, 0); }

std::optional<int> Router::listen(const std::string& address, int port) {
  context_.keys().guard_listener(socket_);
  socket_.set(zmq::sockopt::affinity, kListening);
  if (zmq_bind(socket_.handle(), endpoint(address, port).c_str()) != 0) return std::nullopt;
  const std::string bound = socket_.get(zmq::sockopt::last_endpoint);
  return std::stoi(bound.substr(bound.rfind(':') + 1));
}

std::string Router::connect_to(const std::string& address, int port, std::optional<std::chrono::milliseconds> retry) {
  context_.keys().guard_connector(socket_);
  socket_.set(zmq::sockopt::affinity, kConnecting);
  socket_.set(zmq::sockopt::reconnect_ivl, retry ? static_cast<int>(retry->count()) : kNeverMilliseconds);
  if (retry) socket_.set(zmq::sockopt::linger, 0);  // libzmq has a message for each endpoint that it never reaches
  std::string to = endpoint(address, port);
  must(zmq_connect(socket_.handle(), to.c_str()));
  return to;
}

void Router::disconnect(const std::string& endpoint) {
  socket_.set(zmq::sockopt::linger, 0);
  zmq_disconnect(socket_.handle(), endpoint.c_str());
  socket_.set(zmq::sockopt::linger, kLingerMilliseconds);
}

std::optional<Router::Received> Router::receive() {
  const auto receive_part = [&](zmq::message_t& part) {
    if (zmq_msg_recv(part.handle(), socket_.handle(), ZMQ_DONTWAIT) >= 0) return true;
    if (errno != EAGAIN && errno != EINTR) throw zmq::error_t();
    return false;
  };
  Received received;
  if (!receive_part(received.id)) return std::nullopt;
  // All parts of a message arrive together.
  for (bool more = received.id.more(); more && receive_part(received.message);) more = received.message.more();
  if (received.message.size() == 0) forget_stranger(received);
  return received;
}

void Router::refuse(Received& received, const std::string& reason) {
  forget_stranger(received);
  context_.report_refused(received.peer_address(), reason);
}

/// The end of a connection that a message came from is not reported.
void Router::forget_stranger(Received& received) {
  watch();  // until that connection was accepted
  strangers_.erase(received.descriptor());
}

Router::Sent Router::send(std::string_view id, std::uint64_t tag, Bytes message) {
  return send(id, {.tag = tag, .total = message.size(), .offset = 0}, message.data());
}

Router::Sent Router::send(std::string_view id, const FrameHead& head, const std::byte* message) {
  // Allocated before the receiver is named, which cannot be taken back.
  const std::size_t bytes = chunk_bytes(head.total, head.offset);
  if (prepared_.size() != sizeof head + bytes) prepared_ = make_message(sizeof head + bytes);
  while (zmq_send(socket_.handle(), id.data(), id.size(), ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0) {
    if (errno == EAGAIN) return Sent::kNotNow;
    if (errno == EHOSTUNREACH) return Sent::kGone;
    if (errno != EINTR) throw zmq::error_t();
  }
  std::memcpy(prepared_.data(), &head, sizeof head);
  std::memcpy(prepared_.data<std::byte>() + sizeof head, message + head.offset, bytes);
  check(zmq_msg_send(prepared_.handle(), socket_.handle(), ZMQ_DONTWAIT) >= 0, "libzmq takes no frame");
  return Sent::kYes;
}

void Router::watch() {
  for (zmq::message_t event, endpoint; monitor_.recv(event, zmq::recv_flags::dontwait);) {
    if (event.more()) (void)monitor_.recv(endpoint);
    // Layout by zmq_socket_monitor(3): 16 bits of event, 32 bits of value.
    std::uint16_t what = 0;
    std::int32_t value = 0;
    if (event.size() != sizeof what + sizeof value) continue;
    std::memcpy(&what, event.data(), sizeof what);
    std::memcpy(&value, event.data<std::byte>() + sizeof what, sizeof value);
    if (what == ZMQ_EVENT_ACCEPTED) {
      strangers_[value] = sockets::peer_address(value);
      failure_.clear();
    } else if (what != ZMQ_EVENT_DISCONNECTED) {
      last_failure_ = failure_ = describe_failure(what, value);
    } else {
      const auto stranger = strangers_.find(value);
      if (stranger != strangers_.end()) {
        context_.report_refused(stranger->second, failure_.empty() ? "it does not speak ZMTP 3" : failure_);
        strangers_.erase(stranger);
      }
      ended_.insert(endpoint.to_string());
      failure_.clear();
    }
  }
}

void Router::wait(std::chrono::milliseconds longest, bool for_room) {
  std::array<zmq_pollitem_t, 2> items{};
  const auto events = static_cast<short>(ZMQ_POLLIN | (for_room ? ZMQ_POLLOUT : 0));
  items[0] = {.socket = socket_.handle(), .fd = 0, .events = events, .revents = 0};
  items[1] = {.socket = monitor_.handle(), .fd = 0, .events = ZMQ_POLLIN, .revents = 0};
  if (zmq_poll(items.data(), static_cast<int>(items.size()), static_cast<long>(longest.count())) < 0 && errno != EINTR)
    throw zmq::error_t();
  watch();
}

}  // namespace fp8lab::sockets
