#pragma once

#include <array>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "comm/launch.h"
#include "comm/sockets/zmq_objects.h"

namespace fp8lab::sockets {

/// Lines about connections that were dropped. Each address and reason is worth one, and there is an end to them.
class Complaints {
 public:
  Complaints(int rank, std::function<void(const std::string&)> notify) : rank_(rank), notify_(std::move(notify)) {}
  ~Complaints() { flush(); }
  Complaints(const Complaints&) = delete;
  Complaints& operator=(const Complaints&) = delete;

  /// `from`: an address, with or without a port; empty where the connection was gone before it could be asked for. Such
  /// a line waits for flush(): who is dropped mostly comes again.
  void add(const std::string& from, const std::string& reason);
  void flush();

 private:
  void write(const std::string& from, const std::string& reason);

  int rank_;
  std::function<void(const std::string&)> notify_;
  std::set<std::string> made_;
  std::set<std::string> reasons_;            ///< of those
  std::set<std::string> without_addresses_;  ///< reasons that wait
};

/// Who may connect: with a job's secret those that hold it (CURVE, with keys made of secret and job, which also
/// encrypts what is sent); without, everybody who reaches the port and speaks ZMTP 3.
class Security {
 public:
  explicit Security(const Rendezvous& rendezvous);
  bool has_secret() const { return has_secret_; }

  void guard_listener(Socket& socket) const;
  void guard_connector(Socket& socket) const;
  /// Whether a client of libzmq's mechanism `mechanism`, which showed `key`, may connect.
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

/// Tells libzmq who may connect to this context's sockets (ZAP, RFC 27). Once it is gone, nobody may without a secret;
/// with one, the server's key alone, which is made of the secret too, still shuts out who does not hold it.
class Doorkeeper {
 public:
  Doorkeeper(const Context& context, const Security& security, Complaints& complaints);
  /// Answers those who wait at the door.
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
  /// `complaints`: about those that end before expect_end() was called for them; may be null.
  Connections(const Context& context, Socket& socket, Complaints* complaints);

  /// To be called before the socket is closed.
  void stop() { monitor_.stop(); }
  /// Takes in what has happened.
  void look();
  /// What wait() is to wait for, so that look() is in time to ask where a short connection comes from.
  zmq_pollitem_t events() const { return monitor_.events(); }
  bool is_open(int descriptor) const;
  /// That one may end without a complaint.
  void expect_end(int descriptor);
  /// Why the last one failed; empty if none did.
  const std::string& last_failure() const { return last_failure_; }

 private:
  struct Open {
    int descriptor;
    std::string peer;
    bool may_end = false;
  };
  void end(int descriptor);

  Monitor monitor_;
  Complaints* complaints_;
  std::vector<Open> open_;
  std::string failure_;  ///< of the connection that ends next
  std::string last_failure_;
};

}  // namespace fp8lab::sockets
