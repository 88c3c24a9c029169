#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/processes/transport.h"
#include "comm/sockets/inbox.h"
#include "comm/sockets/rendezvous.h"
#include "comm/sockets/router.h"

namespace fp8lab::sockets {

/// This process's connections with all other ranks.
class Session final : public processes::Transport {
 public:
  /// Connects to the other ranks. Throws Error if one does not come before the deadline. `notify` gets a line for each
  /// kind of connection that is no rank's.
  Session(const Rendezvous& rendezvous, const WaitLimit& wait_limit, std::function<void(const std::string&)> notify);

  void receive(std::byte* to, std::int64_t bytes, int from_rank, processes::Tag tag) override;
  void send(const std::byte* from, std::int64_t bytes, int to_rank, processes::Tag tag) override;
  /// A sent message is finished when libzmq has taken its last frame.
  bool finished(processes::Awaited awaited) override;
  std::vector<int> unfinished_ranks(processes::Awaited awaited) override;
  bool abandon(const std::vector<bool>& left) override;
  /// Waits until a message comes, but only for some milliseconds, because a stop from outside must be noticed too.
  void pause() override;

  void expect_shutdowns(std::shared_ptr<processes::ShutdownMessages> messages) override;
  bool shutdown_received(int rank) override;
  std::string lost(int rank) const override { return peer(rank).lost; }

 private:
  struct Outgoing {
    FrameHead head{};                 ///< of the next frame
    const std::byte* from = nullptr;  ///< null: it is a call, which outlives its group's memory
    std::array<std::byte, sizeof(processes::Call)> call{};
  };
  struct Peer {
    Found found{};
    bool open = false;
    bool ended = false;  ///< at the last check
    std::string lost{};  ///< why the rank can no longer be reached, or empty
    Inbox inbox{};
    std::vector<Outgoing> outgoing{};  ///< those before `first` have been sent
    std::size_t first = 0;

    std::string_view address() const { return {found.id.data(), found.id.size()}; }
    bool reachable() const { return open && lost.empty(); }
    bool unsent() const { return first < outgoing.size(); }
    bool finished(processes::Awaited awaited) const {
      return !unsent() && inbox.complete(awaited == processes::Awaited::kCalls);
    }
  };

  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  const Peer& peer(int rank) const { return peers_[static_cast<std::size_t>(rank)]; }
  template <class Work>
  void for_others(const Work& work) {
    for (int other = 0; other < size(); ++other)
      if (other != rank()) work(peer(other), other);
  }
  void await_connections(const WaitLimit& wait_limit);
  /// Sends and receives what is possible without waiting.
  void progress();
  void write(Peer& to);
  void read();
  void check_connections();
  void hang_up() override;

  SocketContext context_;
  std::optional<Router> router_;                   ///< nothing once hung up, or if there is no other rank
  std::vector<Peer> peers_;                        ///< by rank
  std::map<std::string, int, std::less<>> ranks_;  ///< by id
  std::chrono::steady_clock::time_point next_check_{};
  std::shared_ptr<processes::ShutdownMessages> messages_;
};

}  // namespace fp8lab::sockets
