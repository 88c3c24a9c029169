#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/processes/transport.h"
#include "comm/sockets/rendezvous.h"

namespace fp8lab::sockets {

/// This process's connections with all other ranks, which last as long as the process.
class Session final : public processes::Transport {
 public:
  /// Connects to the other ranks at the first call; later calls must pass the same rendezvous.
  static Session& instance(const Rendezvous& rendezvous, const WaitLimit& wait_limit,
                           const std::function<void(const std::string&)>& notify);

  void receive(std::byte* to, std::int64_t bytes, int from_rank, processes::Tag tag) override;
  void send(const std::byte* from, std::int64_t bytes, int to_rank, processes::Tag tag) override;
  bool finished() override;
  std::vector<int> unfinished_ranks() override;
  bool abandon(const std::vector<bool>& left) override;
  /// Waits until a message can move, but only for some milliseconds, because a stop from outside must be noticed too.
  void pause() override;

  void expect_shutdowns(std::shared_ptr<processes::ShutdownMessages> messages) override;
  bool shutdown_received(int rank) override;
  void await_only_shutdowns() override;
  std::string lost(int rank) const override;

 private:
  Session(const Rendezvous& rendezvous, Mesh mesh);
  void hang_up() override;
  Link& to(int rank) const { return *mesh_.links[static_cast<std::size_t>(rank)]; }
  template <class Work>
  void for_others(const Work& work) {
    for (int other = 0; other < size(); ++other)
      if (other != rank()) work(to(other), other);
  }

  Mesh mesh_;
  std::vector<zmq_pollitem_t> polled_;
  std::shared_ptr<processes::ShutdownMessages> messages_;
};

}  // namespace fp8lab::sockets
