#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/processes/transport.h"
#include "comm/sockets/inbox.h"
#include "comm/sockets/security.h"

namespace fp8lab::sockets {

/// The connection between this rank and one other. Each link has a socket of its own, so that messages that wait in one
/// link hold up no other. The lower rank listens.
class Link {
 public:
  /// Listens at a free port of `address`.
  static std::unique_ptr<Link> listen(const Context& context, const Security& security, Complaints& complaints,
                                      const std::string& address);
  int port() const { return socket_.port(); }
  /// Sets the id under which the other rank will connect.
  void await(const std::string& id) { id_ = id; }
  static std::unique_ptr<Link> connect(const Context& context, const Security& security, const std::string& id,
                                       const std::string& endpoint);

  /// True if the other rank has connected. No other function may be called before, except opening().
  bool open();
  std::array<zmq_pollitem_t, 2> opening() const { return {socket_.events(ZMQ_POLLIN), connections_.events()}; }

  void send(const std::byte* from, std::int64_t bytes, std::uint64_t tag);
  void receive(std::byte* to, std::int64_t bytes, std::uint64_t tag);
  /// True if every begun message is finished. A sent message is finished when libzmq has taken its last frame.
  bool finished() const { return unsent() == 0 && inbox_.complete(); }
  void abandon();
  Inbox& inbox() { return inbox_; }

  /// Sends and receives what is possible without waiting.
  void progress();
  /// Notices that the connection has ended. To be called after progress(), repeatedly.
  void check_connection();
  /// The event for which wait() should wait, if any.
  std::optional<zmq_pollitem_t> wanted() const;
  /// Why the other rank can no longer be reached, or empty.
  const std::string& lost() const { return lost_; }
  void hang_up();

 private:
  struct Outgoing {
    std::uint64_t tag = 0;
    std::uint64_t bytes = 0;
    const std::byte* from = nullptr;  ///< null: the bytes are in `copy`
    std::array<std::byte, Inbox::kSmallBytes> copy{};
  };

  Link(const Context& context, const Security& security, Complaints* complaints);
  bool usable() const { return lost_.empty() && !hung_up_; }
  bool reads() const { return usable() && !inbox_.shutdown_came(); }
  std::size_t unsent() const { return outgoing_.size() - first_outgoing_; }
  void write();
  void read();
  void lose(const std::string& why);

  Router socket_;
  Connections connections_;
  Complaints* complaints_;  ///< null for the connecting side; the listening side may see connections of others
  std::string id_;
  std::optional<std::uint64_t> connection_;  ///< its number, once it is open
  bool ended_ = false;
  bool hung_up_ = false;
  std::string lost_;

  std::vector<Outgoing> outgoing_;  ///< from first_outgoing_ on; sent_bytes_ of the first have been sent
  std::size_t first_outgoing_ = 0;
  std::uint64_t sent_bytes_ = 0;

  std::optional<Message> held_;  ///< a frame that the inbox cannot take yet
  Inbox inbox_;
};

}  // namespace fp8lab::sockets
