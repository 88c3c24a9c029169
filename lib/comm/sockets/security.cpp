#include "comm/sockets/security.h"

#include <fmt/core.h>
#include <sodium.h>

#include <algorithm>
#include <span>

#include "comm/sockets/address.h"
#include "core/check.h"

namespace fp8lab::sockets {
namespace {

constexpr std::size_t kMostComplaints = 50;
constexpr std::string_view kDomain = "ranks";
constexpr const char* kWrongSecret = "it does not hold the job's secret (FP8LAB_JOB_SECRET, or another job's)";

/// A failed handshake in words.
std::string describe_failure(const Monitor::Event& event) {
  if (event.what == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) return kWrongSecret;
  if (event.what == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL) {
    if (event.value == ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC || event.value == ZMQ_PROTOCOL_ERROR_ZMTP_KEY_EXCHANGE)
      return kWrongSecret;
    if (event.value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
      return "one side has a job secret (FP8LAB_JOB_SECRET) and the other none";
    return fmt::format("its handshake is none of ZMTP's (code {:#x})", event.value);
  }
  return "it ended, or sent nothing, before its handshake was done";
}

std::string without_port(const std::string& address) {
  const bool six = address.find('.') == std::string::npos;
  return address.substr(0, six ? address.rfind(']') : address.rfind(':'));
}

}  // namespace

void Complaints::add(const std::string& from, const std::string& reason) {
  if (!from.empty())
    write(from, reason);
  else if (!reasons_.contains(reason))
    without_addresses_.insert(reason);
}

void Complaints::flush() {
  while (!without_addresses_.empty()) write("an address that is gone", std::string(*without_addresses_.begin()));
}

void Complaints::write(const std::string& from, const std::string& reason) {
  without_addresses_.erase(reason);
  reasons_.insert(reason);
  if (made_.size() >= kMostComplaints || !made_.insert(without_port(from) + ' ' + reason).second || !notify_) return;
  notify_(fmt::format("rank {} dropped a connection from {}: {}{}", rank_, from, reason,
                      made_.size() == kMostComplaints ? "; further ones are not mentioned" : ""));
}

Security::Security(const Rendezvous& rendezvous) : has_secret_(!rendezvous.secret.empty()) {
  if (!has_secret_) return;
  check(zmq_has("curve") == 1 && sodium_init() >= 0,
        "FP8LAB_JOB_SECRET is set, and this libzmq was built without CURVE");
  server_ = derive("server", rendezvous);
  client_ = derive("client", rendezvous);
}

/// Derives a key pair. Every rank derives both pairs, so that each can be either side of a connection.
Security::Pair Security::derive(std::string_view role, const Rendezvous& rendezvous) {
  const std::string text = fmt::format("fp8lab ranks\n{}\n{}\n{}", role, rendezvous.port, rendezvous.job);
  const std::string& secret = rendezvous.secret;
  std::array<unsigned char, crypto_generichash_KEYBYTES> key{};
  crypto_generichash(key.data(), key.size(), reinterpret_cast<const unsigned char*>(secret.data()), secret.size(),
                     nullptr, 0);
  Pair pair;
  static_assert(sizeof(Key) == crypto_scalarmult_BYTES && sizeof(Key) == crypto_scalarmult_SCALARBYTES);
  auto* const own = reinterpret_cast<unsigned char*>(pair.secret.data());
  crypto_generichash(own, sizeof(Key), reinterpret_cast<const unsigned char*>(text.data()), text.size(), key.data(),
                     key.size());
  crypto_scalarmult_base(reinterpret_cast<unsigned char*>(pair.open.data()), own);
  return pair;
}

void Security::guard_listener(Socket& socket) const {
  socket.set(ZMQ_ZAP_DOMAIN, kDomain);  // also excludes older ZMTP, which would accept any bytes
  if (!has_secret_) return;
  socket.set(ZMQ_CURVE_SERVER, 1);
  socket.set(ZMQ_CURVE_SECRETKEY, Bytes(server_.secret));
}

void Security::guard_connector(Socket& socket) const {
  if (!has_secret_) return;
  socket.set(ZMQ_CURVE_SERVERKEY, Bytes(server_.open));
  socket.set(ZMQ_CURVE_PUBLICKEY, Bytes(client_.open));
  socket.set(ZMQ_CURVE_SECRETKEY, Bytes(client_.secret));
}

bool Security::admits(std::string_view mechanism, Bytes key) const {
  if (!has_secret_) return mechanism == "NULL";
  return mechanism == "CURVE" && key.size() == sizeof(Key) &&
         sodium_memcmp(key.data(), client_.open.data(), sizeof(Key)) == 0;
}

Doorkeeper::Doorkeeper(const Context& context, const Security& security, Complaints& complaints)
    : socket_(context, ZMQ_REP), security_(security), complaints_(complaints) {
  check(socket_.bind("inproc://zeromq.zap.01"),
        "cannot bind inproc://zeromq.zap.01, where libzmq asks who may connect: a ZMQ context has one authentication "
        "handler, and this one has another already; give each rendezvous a context of its own");
}

void Doorkeeper::serve() {
  for (Message part; socket_.receive(part);) {
    std::vector<Message> request;
    bool more = part.has_more();
    request.push_back(std::move(part));
    for (Message next; more && socket_.receive(next);) {
      more = next.has_more();
      request.push_back(std::move(next));
    }
    // Parts: version, number, domain, address, routing id, mechanism, and the client's credentials.
    constexpr std::size_t kNumber = 1, kAddress = 3, kMechanism = 5, kKey = 6;
    const bool complete = request.size() > kMechanism;
    const Bytes key = request.size() > kKey ? Bytes(request[kKey].bytes()) : Bytes();
    const bool admitted = complete && security_.admits(request[kMechanism].text(), key);
    if (!admitted) complaints_.add(complete ? unmapped(std::string(request[kAddress].text())) : "", kWrongSecret);
    const std::string number(request.size() > kNumber ? request[kNumber].text() : "");
    const std::array<std::string_view, 6> reply = {"1.0", number, admitted ? "200" : "400", admitted ? "" : "no",
                                                   "",    ""};
    for (std::size_t i = 0; i < reply.size(); ++i) {
      Message answer(std::as_bytes(std::span(reply[i])));
      check(socket_.send(answer, i + 1 < reply.size()),
            "libzmq did not accept the answer to its authentication request");
    }
  }
}

Connections::Connections(const Context& context, Socket& socket, Complaints* complaints)
    : monitor_(context, socket), complaints_(complaints) {}

void Connections::process_events() {
  while (const std::optional<Monitor::Event> event = monitor_.next()) {
    switch (event->what) {
      case ZMQ_EVENT_ACCEPTED:
      case ZMQ_EVENT_CONNECTED:
        open_.push_back({.number = ++last_number_, .descriptor = event->value, .peer = peer_of(event->value)});
        failure_.clear();
        break;
      case ZMQ_EVENT_DISCONNECTED: end(event->value); break;
      default: last_failure_ = failure_ = describe_failure(*event);
    }
  }
}

std::uint64_t Connections::number_of(int descriptor) const {
  const auto found =
      std::find_if(open_.begin(), open_.end(), [&](const Open& open) { return open.descriptor == descriptor; });
  return found == open_.end() ? kEnded : found->number;
}

bool Connections::is_open(std::uint64_t number) const {
  return std::any_of(open_.begin(), open_.end(), [&](const Open& open) { return open.number == number; });
}

void Connections::expect_end(std::uint64_t number) {
  for (Open& open : open_)
    if (open.number == number) open.may_end = true;
}

void Connections::end(int descriptor) {
  const auto found =
      std::find_if(open_.begin(), open_.end(), [&](const Open& open) { return open.descriptor == descriptor; });
  const bool known = found != open_.end();
  if (complaints_ != nullptr && !(known && found->may_end))
    complaints_->add(known ? found->peer : "", failure_.empty() ? "it does not speak ZMTP 3" : failure_);
  if (known) open_.erase(found);
  failure_.clear();
}

}  // namespace fp8lab::sockets
