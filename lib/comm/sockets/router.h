#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <zmq.hpp>

#include "comm/sockets/job_keys.h"
#include "comm/sockets/messages.h"

namespace fp8lab::sockets {

/// What a rank's sockets share.
class SocketContext {
 public:
  /// `notify` gets lines for the user; it may be empty.
  SocketContext(const Rendezvous& rendezvous, std::function<void(const std::string&)> notify);
  zmq::context_t& zmq() { return zmq_; }
  const JobKeys& keys() const { return keys_; }
  void notify(const std::string& line) const;
  /// Reports a connection that is no rank's, one line for each address and reason, up to a limit. `from`: a numeric
  /// address; empty if the connection ended before it could be read.
  void report_refused(const std::string& from, const std::string& reason);

 private:
  int rank_;
  std::function<void(const std::string&)> notify_;
  std::set<std::string> refused_;
  JobKeys keys_;
  zmq::context_t zmq_;
};

/// A ROUTER socket of libzmq, which exchanges frames with the ROUTER sockets of other processes over TCP. Each side
/// gets an empty message when a connection is made. Only wait() blocks. Throws zmq::error_t where libzmq fails.
class Router {
 public:
  /// `id`: what other sockets call this one; empty: each side makes up its own for each connection. What connects to
  /// this socket and is no socket of this job is reported to `context`.
  Router(SocketContext& context, std::size_t largest_message, std::string_view id);
  Router(const Router&) = delete;
  Router& operator=(const Router&) = delete;
  ~Router();

  /// Listens at `port`, or at any free one if it is 0, and returns that; nothing, with errno, if the address is taken
  /// or does not belong to this machine.
  std::optional<int> listen(const std::string& address, int port);
  /// Connects, again every `retry` until it succeeds and when the connection has ended; without `retry`, once. Returns
  /// the endpoint.
  std::string connect_to(const std::string& address, int port, std::optional<std::chrono::milliseconds> retry);

  /// Forgets an endpoint whose connection has ended, and what could not be sent there.
  void disconnect(const std::string& endpoint);

  struct Received {
    zmq::message_t id, message;
    std::string_view from() const { return id.to_string_view(); }
    Bytes bytes() const { return {message.data<std::byte>(), message.size()}; }
    /// Numeric, of the sender; known even if the connection has ended.
    std::string peer_address();
    /// Of the connection here; negative if unknown.
    int descriptor() { return zmq_msg_get(message.handle(), ZMQ_SRCFD); }
  };
  /// The next message, or nothing. No rank sends several parts; if they come, the last is returned.
  std::optional<Received> receive();
  /// Reports the sender of a message that no rank of this job sends.
  void refuse(Received& received, const std::string& reason);

  /// kGone: the other side had connected, and the connection has ended.
  enum class Sent { kYes, kNotNow, kGone };
  /// Sends a message that fits into one frame.
  Sent send(std::string_view id, std::uint64_t tag, Bytes message);
  /// Sends the frame of `head`: those of the bytes at `message` that belong to it.
  Sent send(std::string_view id, const FrameHead& head, const std::byte* message);

  /// Reports what has happened to connections.
  void watch();
  /// True if a connection to that endpoint has ended. libzmq takes messages for it further on. What came over it can be
  /// received some moments later.
  bool ended(const std::string& endpoint) const { return ended_.contains(endpoint); }
  /// Why the last connection failed; empty if none did.
  const std::string& last_failure() const { return last_failure_; }
  /// Waits until a message comes, a connection changes or, with `for_room`, one of the connections takes a message; at
  /// most for `longest`.
  void wait(std::chrono::milliseconds longest, bool for_room = false);

 private:
  void forget_stranger(Received& received);

  SocketContext& context_;
  zmq::socket_t socket_;
  zmq::socket_t monitor_;
  zmq::message_t prepared_;               ///< the frame that could not be sent at the last attempt
  std::map<int, std::string> strangers_;  ///< addresses, by descriptor, of accepted connections without a message yet
  std::set<std::string> ended_;           ///< of this side's listeners too, which nobody asks for
  std::string failure_;                   ///< of the connection whose end comes next
  std::string last_failure_;
};

}  // namespace fp8lab::sockets
