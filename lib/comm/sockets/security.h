#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "comm/launch.h"
#include "comm/sockets/zmq_objects.h"

namespace fp8lab::sockets {

/// Reports dropped connections, one line for each address and reason, up to a limit.
class Complaints {
 public:
  Complaints(int rank, std::function<void(const std::string&)> notify) : rank_(rank), notify_(std::move(notify)) {}
  ~Complaints() { flush(); }
  Complaints(const Complaints&) = delete;
  Complaints& operator=(const Complaints&) = delete;

  /// Reports a connection from `from`, an address with or without a port. `from` is empty if the connection ended
  /// before its address could be read; such a line waits for flush(), because a dropped peer mostly connects again.
  void add(const std::string& from, const std::string& reason);
  void flush();

 private:
  void write(const std::string& from, const std::string& reason);

  int rank_;
  std::function<void(const std::string&)> notify_;
  std::set<std::string> made_;
  std::set<std::string> reasons_;            ///< of the lines made
  std::set<std::string> without_addresses_;  ///< reasons whose lines wait for flush()
};

/// Who may connect. With a job's secret: those that hold it (CURVE, with keys derived from secret and job, which also
/// encrypts messages). Without one: whoever reaches the port and speaks ZMTP 3.
class Security {
 public:
  explicit Security(const Rendezvous& rendezvous);
  bool has_secret() const { return has_secret_; }

  void guard_listener(Socket& socket) const;
  void guard_connector(Socket& socket) const;
  /// True if a client with libzmq's mechanism `mechanism` and key `key` may connect.
  bool admits(std::string_view mechanism, Bytes key) const;

 private:
  using Key = std::array<std::byte, 32>;
  struct Pair {
    Key open, secret;
  };
  static Pair derive(std::string_view role, const Rendezvous& rendezvous);

  bool has_secret_;
  Pair server_{}, client_{};
};

/// Tells libzmq who may connect to this context's sockets (ZAP, RFC 27). Once it is destroyed, nobody may connect
/// without a secret. With a secret, the server's key, which is derived from the secret, alone still excludes those that
/// do not hold it.
class Doorkeeper {
 public:
  Doorkeeper(const Context& context, const Security& security, Complaints& complaints);
  /// Answers pending requests of libzmq.
  void serve();
  const Socket& socket() const { return socket_; }

 private:
  Socket socket_;
  const Security& security_;
  Complaints& complaints_;
};

/// The TCP connections of one socket.
class Connections {
 public:
  /// `complaints` gets connections that end before expect_end() was called for them; may be null.
  Connections(const Context& context, Socket& socket, Complaints* complaints);

  /// Must be called before the socket is closed.
  void stop() { monitor_.stop(); }
  /// Processes the events so far.
  void process_events();
  /// The events for which wait() should wait. Then process_events() runs soon enough to read the address of a short
  /// connection.
  zmq_pollitem_t events() const { return monitor_.events(); }
  /// The number of the open connection with that descriptor; kEnded if there is none. The number stays the
  /// connection's own, while the descriptor is given again to the next connection.
  std::uint64_t number_of(int descriptor) const;
  bool is_open(std::uint64_t number) const;
  /// From now on that connection may end without a complaint.
  void expect_end(std::uint64_t number);
  static constexpr std::uint64_t kEnded = 0;
  /// Why the last connection failed; empty if none did.
  const std::string& last_failure() const { return last_failure_; }

 private:
  struct Open {
    std::uint64_t number;
    int descriptor;
    std::string peer;
    bool may_end = false;
  };
  void end(int descriptor);

  Monitor monitor_;
  Complaints* complaints_;
  std::vector<Open> open_;
  std::uint64_t last_number_ = kEnded;
  std::string failure_;  ///< of the connection whose end comes next
  std::string last_failure_;
};

}  // namespace fp8lab::sockets
