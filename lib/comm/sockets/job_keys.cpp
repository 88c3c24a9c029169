#include "comm/sockets/job_keys.h"

#include <fmt/core.h>
#include <sodium.h>

#include <string>

#include "core/check.h"

namespace fp8lab::sockets {

JobKeys::JobKeys(const Rendezvous& rendezvous) : has_secret_(!rendezvous.secret.empty()) {
  if (!has_secret_) return;
  check(zmq_has("curve") == 1 && sodium_init() >= 0,
        "FP8LAB_JOB_SECRET is set, and this libzmq was built without CURVE");
  server_ = derive("server", rendezvous);
  client_ = derive("client", rendezvous);
}

/// Every rank derives both pairs, so that each can be either side of a connection. The public key of the server is
/// never sent, and CURVE refuses a client that does not know it.
JobKeys::Pair JobKeys::derive(std::string_view role, const Rendezvous& rendezvous) {
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

void JobKeys::guard_listener(zmq::socket_t& socket) const {
  socket.set(zmq::sockopt::zap_domain, "ranks");  // excludes older ZMTP, which would accept any bytes
  if (!has_secret_) return;
  socket.set(zmq::sockopt::curve_server, true);
  socket.set(zmq::sockopt::curve_secretkey, zmq::buffer(server_.secret));
}

void JobKeys::guard_connector(zmq::socket_t& socket) const {
  if (!has_secret_) return;
  socket.set(zmq::sockopt::curve_serverkey, zmq::buffer(server_.open));
  socket.set(zmq::sockopt::curve_publickey, zmq::buffer(client_.open));
  socket.set(zmq::sockopt::curve_secretkey, zmq::buffer(client_.secret));
}

}  // namespace fp8lab::sockets
