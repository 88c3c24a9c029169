#include "comm/sockets/zmq_objects.h"

#include <errno.h>
#include <fmt/core.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "core/check.h"

namespace fp8lab::sockets {
namespace {

constexpr int kLingerMilliseconds = 2000;
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

[[noreturn]] void fail_zmq(const char* what) { fail(fmt::format("libzmq: {}: {}", what, zmq_strerror(errno))); }

void must(int result, const char* what) {
  if (result < 0) fail_zmq(what);
}

}  // namespace

Message::Message(std::size_t bytes) {
  if (zmq_msg_init_size(&message_, bytes) != 0) throw std::bad_alloc();
}

Message::Message(Bytes bytes) : Message(bytes.size()) { std::copy(bytes.begin(), bytes.end(), this->bytes().begin()); }

std::string Message::peer_address() {
  const char* address = zmq_msg_gets(&message_, "Peer-Address");
  return address == nullptr ? std::string() : std::string(address);
}

Context::Context(int sockets) : context_(zmq_ctx_new()) {
  // libzmq allocates memory for each received frame. Until glibc has seen a large block freed, it maps and unmaps that
  // memory each time, which doubles the cost of a gather. These are the thresholds at which glibc would arrive.
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 64 << 20);
  if (context_ == nullptr) fail_zmq("context");
  zmq_ctx_set(context_, ZMQ_IO_THREADS, kThreads);
  zmq_ctx_set(context_, ZMQ_MAX_SOCKETS, sockets);
}

Context::~Context() {
  while (zmq_ctx_term(context_) != 0 && errno == EINTR) {
  }
}

Socket::Socket(const Context& context, int type) : socket_(zmq_socket(context.get(), type)) {
  if (socket_ == nullptr) fail_zmq("socket");
  set(ZMQ_LINGER, kLingerMilliseconds);
}

void Socket::set(int option, const void* value, std::size_t bytes) {
  must(zmq_setsockopt(socket_, option, value, bytes), "option");
}

int Socket::get(int option) const {
  int value = 0;
  std::size_t bytes = sizeof value;
  must(zmq_getsockopt(socket_, option, &value, &bytes), "option");
  return value;
}

bool Socket::bind(const std::string& endpoint) { return zmq_bind(socket_, endpoint.c_str()) == 0; }

void Socket::connect(const std::string& endpoint) { must(zmq_connect(socket_, endpoint.c_str()), endpoint.c_str()); }

int Socket::port() const {
  std::array<char, 128> text{};
  std::size_t bytes = text.size();
  must(zmq_getsockopt(socket_, ZMQ_LAST_ENDPOINT, text.data(), &bytes), "endpoint");
  const std::string_view endpoint = text.data();
  const std::string_view digits = endpoint.substr(endpoint.rfind(':') + 1);
  int port = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), port);
  return port;
}

bool Socket::receive(Message& message) {
  while (zmq_msg_recv(message.get(), socket_, ZMQ_DONTWAIT) < 0) {
    if (errno == EAGAIN) return false;
    if (errno != EINTR) fail_zmq("receive");
  }
  return true;
}

bool Socket::send(Message& message, bool more) {
  while (zmq_msg_send(message.get(), socket_, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0)) < 0)
    if (errno != EINTR) return false;
  return true;
}

void Socket::close() {
  if (socket_ != nullptr) zmq_close(std::exchange(socket_, nullptr));
}

Router::Router(const Context& context, std::size_t largest_message) : Socket(context, ZMQ_ROUTER) {
  set(ZMQ_ROUTER_MANDATORY, 1);
  set(ZMQ_MAXMSGSIZE, static_cast<std::int64_t>(std::max(largest_message + kEncryption, kLargestCommand)));
  set(ZMQ_SNDHWM, kWaiting);
  set(ZMQ_RCVHWM, kWaiting);
  set(ZMQ_BACKLOG, kBacklog);
  set(ZMQ_HANDSHAKE_IVL, kHandshakeMilliseconds);
  set(ZMQ_TCP_KEEPALIVE, 1);
  set(ZMQ_TCP_KEEPALIVE_IDLE, kIdleSeconds);
  set(ZMQ_TCP_KEEPALIVE_INTVL, kProbeSeconds);
  set(ZMQ_TCP_KEEPALIVE_CNT, kProbes);
  set(ZMQ_IPV6, 1);
}

std::optional<Router::Received> Router::receive_from() {
  Received received;
  if (!receive(received.id)) return std::nullopt;
  // All parts of a message arrive together.
  for (bool more = received.id.has_more(); more && receive(received.message);) more = received.message.has_more();
  return received;
}

Router::Sent Router::address_to(std::string_view id) {
  Message message(std::as_bytes(std::span(id)));
  if (send(message, true)) return Sent::kYes;
  if (errno == EAGAIN) return Sent::kNotNow;
  if (errno == EHOSTUNREACH) return Sent::kGone;
  fail_zmq("send");
}

Router::Sent Router::send_to(std::string_view id, Bytes bytes) {
  Message message(bytes);
  const Sent addressed = address_to(id);
  if (addressed == Sent::kYes && !send(message, false)) fail_zmq("send");
  return addressed;
}

void Router::stay_on_one_thread() {
  static std::atomic<unsigned> index{0};
  set(ZMQ_AFFINITY, std::int64_t{1} << (index++ % Context::kThreads));
}

void Router::connect_as(const std::string& id, const std::string& endpoint) {
  set(ZMQ_CONNECT_ROUTING_ID, id);
  connect(endpoint);
}

Monitor::Monitor(const Context& context, Socket& watched) : watched_(&watched), socket_(context, ZMQ_PAIR) {
  static std::atomic<std::uint64_t> number{0};
  const std::string name = fmt::format("inproc://monitor-{}", number++);
  must(zmq_socket_monitor(watched.get(), name.c_str(),
                          ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_CONNECTED | ZMQ_EVENT_DISCONNECTED |
                              ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                              ZMQ_EVENT_HANDSHAKE_FAILED_AUTH),
       "monitor");
  socket_.set(ZMQ_LINGER, 0);
  socket_.set(ZMQ_RCVHWM, 0);
  socket_.connect(name);
}

void Monitor::stop() {
  if (watched_ != nullptr) zmq_socket_monitor(std::exchange(watched_, nullptr)->get(), nullptr, 0);
}

std::optional<Monitor::Event> Monitor::next() {
  Message first;
  if (!socket_.receive(first)) return std::nullopt;
  if (first.has_more()) {
    Message endpoint;
    socket_.receive(endpoint);
  }
  // Layout by zmq_socket_monitor(3): 16 bits of event, 32 bits of value.
  std::uint16_t what = 0;
  std::int32_t value = 0;
  if (first.bytes().size() != sizeof what + sizeof value) return std::nullopt;
  std::memcpy(&what, first.bytes().data(), sizeof what);
  std::memcpy(&value, first.bytes().data() + sizeof what, sizeof value);
  return Event{.what = what, .value = value};
}

void wait(std::span<zmq_pollitem_t> items, std::chrono::milliseconds longest) {
  if (zmq_poll(items.data(), static_cast<int>(items.size()), static_cast<long>(longest.count())) < 0 && errno != EINTR)
    fail_zmq("poll");
}

}  // namespace fp8lab::sockets
