#pragma once

#include <poll.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/processes/transport.h"
#include "comm/run.h"
#include "comm/sockets/connector.h"
#include "comm/sockets/inbox.h"

namespace fp8lab::sockets {

/// This process's connections with all other ranks: stream sockets, which are read and written only when that does not
/// block.
class Session final : public processes::Transport {
 public:
  /// Connects to the other ranks of `options.rendezvous`. Throws Error if one does not come within the timeout, if
  /// another rank gave up or on a stop, and RanksLost if a connected rank ends. `options.notify` gets a line for each
  /// kind of connection that is no rank's.
  explicit Session(const RunOptions& options);

  void receive(std::byte* to, std::int64_t bytes, int from_rank, processes::Tag tag) override;
  void send(const std::byte* from, std::int64_t bytes, int to_rank, processes::Tag tag) override;
  /// A sent message is finished when the kernel has taken its last byte.
  bool finished(processes::Awaited awaited) override;
  std::vector<int> unfinished_ranks(processes::Awaited awaited) override;
  bool abandon(const std::vector<bool>& left) override;
  /// Waits until something can be read or sent, but only for some milliseconds, because a stop from outside must be
  /// noticed too.
  void pause() override;

  void expect_shutdowns(std::shared_ptr<processes::ShutdownMessages> messages) override;
  bool shutdown_received(int rank) override;
  std::string lost(int rank) const override;

 private:
  struct Outgoing {
    FrameHead head{};       ///< head of the next frame
    std::uint64_t end = 0;  ///< offset after which nothing is sent: the message's bytes, if it is not abandoned
    const std::byte* chunk = nullptr;  ///< chunk of the next frame; null: `call`, which outlives its group's memory
    std::array<std::byte, sizeof(processes::Call)> call{};
  };
  struct Peer {
    Descriptor socket{};
    bool ended = false;  ///< nothing more comes
    std::string lost{};  ///< why the rank can no longer be reached, or empty
    Inbox inbox{};
    std::vector<Outgoing> outgoing{};  ///< those before `first` have been sent
    std::size_t first = 0;
    std::size_t frame_sent = 0;            ///< bytes of the next frame that have been sent
    std::unique_ptr<std::byte[]> begun{};  ///< the chunk of an abandoned message whose frame has begun

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
  std::string missing_ranks();
  void check_others();
  [[noreturn]] void give_up(const std::string& reason);
  /// Sends and receives what is possible, once something is; waits for that at most for `longest`.
  void progress(std::chrono::milliseconds longest);
  static void write(Peer& to);
  static void read(Peer& from);
  void hang_up() override;

  std::vector<Peer> peers_;     ///< by rank
  std::vector<pollfd> polled_;  ///< by rank
  std::shared_ptr<processes::ShutdownMessages> messages_;
};

}  // namespace fp8lab::sockets
