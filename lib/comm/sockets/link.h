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

/// The connection between this rank and one other: a socket of its own, so that what waits there holds up nobody else.
/// The lower rank listens.
class Link {
 public:
  /// Listens at a port of `address` that nobody uses.
  static std::unique_ptr<Link> listen(const Context& context, const Security& security, Complaints& complaints,
                                      const std::string& address);
  int port() const { return socket_.port(); }
  /// Whoever connects under `id` is the other rank.
  void await(const std::string& id) { id_ = id; }
  static std::unique_ptr<Link> connect(const Context& context, const Security& security, const std::string& id,
                                       const std::string& endpoint);

  /// Whether the other rank is there; until then only this may be called.
  bool open();
  std::array<zmq_pollitem_t, 2> opening() const { return {socket_.events(ZMQ_POLLIN), connections_.events()}; }

  void send(const std::byte* from, std::int64_t bytes, std::uint64_t tag);
  void receive(std::byte* to, std::int64_t bytes, std::uint64_t tag);
  /// Whether every message begun is through. One that is sent is when libzmq holds the rest of it.
  bool finished() const { return unsent() == 0 && inbox_.complete(); }
  void abandon();
  Inbox& inbox() { return inbox_; }

  /// Moves what can be moved without waiting.
  void progress();
  /// Notices that the connection has ended. To be called after progress(), again and again.
  void look();
  /// What wait() is to wait for.
  std::optional<zmq_pollitem_t> wanted() const;
  /// Why the other side can no longer be reached, or nothing.
  const std::string& lost() const { return lost_; }
  void hang_up();

 private:
  struct Outgoing {
    std::uint64_t tag = 0;
    std::uint64_t bytes = 0;
    const std::byte* from = nullptr;  ///< null: `copy`
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
  Complaints* complaints_;  ///< of one that listens, where others may connect too
  std::string id_;
  int descriptor_ = -1;  ///< of the connection, once open
  bool ended_ = false;
  bool hung_up_ = false;
  std::string lost_;

  std::vector<Outgoing> outgoing_;  ///< from first_outgoing_ on; that one has been sent up to sent_bytes_
  std::size_t first_outgoing_ = 0;
  std::uint64_t sent_bytes_ = 0;

  std::optional<Message> held_;  ///< a frame that the inbox does not take yet
  Inbox inbox_;
};

}  // namespace fp8lab::sockets
