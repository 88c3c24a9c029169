#pragma once

#include <zmq.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "comm/sockets/messages.h"

/// RAII owners of libzmq's objects. Only wait() blocks. All functions throw Error if libzmq fails.
namespace fp8lab::sockets {

class Message {
 public:
  Message() { zmq_msg_init(&message_); }
  explicit Message(std::size_t bytes);
  explicit Message(Bytes bytes);
  Message(Message&& other) noexcept : Message() { zmq_msg_move(&message_, &other.message_); }
  Message& operator=(Message&& other) noexcept {
    zmq_msg_move(&message_, &other.message_);
    return *this;
  }
  ~Message() { zmq_msg_close(&message_); }

  std::span<std::byte> bytes() { return {static_cast<std::byte*>(zmq_msg_data(&message_)), zmq_msg_size(&message_)}; }
  std::string_view text() { return {reinterpret_cast<const char*>(bytes().data()), bytes().size()}; }
  bool has_more() { return zmq_msg_more(&message_) != 0; }
  /// For a message received over TCP: the sender's numeric address, and the descriptor of the connection here.
  std::string peer_address();
  int descriptor() { return zmq_msg_get(&message_, ZMQ_SRCFD); }
  zmq_msg_t* get() { return &message_; }

 private:
  zmq_msg_t message_;
};

class Context {
 public:
  explicit Context(int sockets);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  void* get() const { return context_; }

  static constexpr int kThreads = 2;

 private:
  void* context_;
};

class Socket {
 public:
  Socket(const Context& context, int type);
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() { close(); }

  void set(int option, int value) { set(option, &value, sizeof value); }
  void set(int option, std::int64_t value) { set(option, &value, sizeof value); }
  void set(int option, std::string_view value) { set(option, value.data(), value.size()); }
  void set(int option, Bytes value) { set(option, value.data(), value.size()); }
  int get(int option) const;

  /// False, with errno, if the address is taken or does not belong to this machine.
  bool bind(const std::string& endpoint);
  void connect(const std::string& endpoint);
  /// The port of the last bind().
  int port() const;

  /// False if no message has arrived.
  bool receive(Message& message);
  /// False, with errno, if the message cannot be sent now.
  bool send(Message& message, bool more);
  /// Unsent messages are still sent, for at most the time of ZMQ_LINGER.
  void close();

  void* get() const { return socket_; }
  zmq_pollitem_t events(short wanted) const { return {.socket = socket_, .fd = 0, .events = wanted, .revents = 0}; }

 private:
  void set(int option, const void* value, std::size_t bytes);

  void* socket_;
};

/// A ROUTER socket: messages to and from several peers, which are distinguished by ids that they chose.
class Router : public Socket {
 public:
  explicit Router(const Context& context, std::size_t largest_message);

  struct Received {
    Message id;  ///< of the sender
    Message message;
  };
  /// The next message, or nothing. No rank sends several parts; if they come, the last is returned.
  std::optional<Received> receive_from();

  enum class Sent { kYes, kNotNow, kGone };
  Sent send_to(std::string_view id, Bytes bytes);
  /// The first step of send_to(), for a message that is made only if there is room. After kYes, send() must follow.
  Sent address_to(std::string_view id);
  /// From now on one I/O thread of libzmq serves this socket, so its monitor reports events of connections in order.
  void stay_on_one_thread();
  /// Connects to a peer, with `id` as its id here.
  void connect_as(const std::string& id, const std::string& endpoint);
};

/// Reports events of a socket's connections.
class Monitor {
 public:
  Monitor(const Context& context, Socket& watched);
  ~Monitor() { stop(); }
  /// Must be called before the socket is closed; otherwise libzmq's threads would wait for ever to report its end.
  void stop();

  struct Event {
    int what = 0;
    int value = 0;
  };
  std::optional<Event> next();
  zmq_pollitem_t events() const { return socket_.events(ZMQ_POLLIN); }

 private:
  Socket* watched_;
  Socket socket_;
};

/// Waits until one of `items` has an event, or until `longest` is over.
void wait(std::span<zmq_pollitem_t> items, std::chrono::milliseconds longest);

}  // namespace fp8lab::sockets
