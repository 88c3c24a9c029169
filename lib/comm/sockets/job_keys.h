#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <zmq.hpp>

#include "comm/launch.h"

namespace fp8lab::sockets {

/// Who may connect. With a job's secret: those that hold it (CURVE, with keys derived from secret and job, which also
/// encrypts messages). Without one: whoever reaches the port and speaks ZMTP 3.
class JobKeys {
 public:
  explicit JobKeys(const Rendezvous& rendezvous);
  bool has_secret() const { return has_secret_; }

  /// To be called before `socket` listens, and before it connects.
  void guard_listener(zmq::socket_t& socket) const;
  void guard_connector(zmq::socket_t& socket) const;

 private:
  using Key = std::array<std::byte, 32>;
  struct Pair {
    Key open, secret;
  };
  static Pair derive(std::string_view role, const Rendezvous& rendezvous);

  bool has_secret_;
  Pair server_{}, client_{};
};

}  // namespace fp8lab::sockets
