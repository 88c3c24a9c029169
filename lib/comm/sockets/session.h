#pragma once

#include <poll.h>

#include <memory>
#include <string>
#include <vector>

#include "comm/launch.h"
#include "comm/processes/transport.h"
#include "comm/sockets/connection.h"

namespace fp8lab::sockets {

/// This process's connections with every other rank, which last as long as it does.
class Session final : public processes::Transport {
 public:
  /// Meets the other ranks at the first call; later ones must name the same rendezvous.
  static Session& instance(const Rendezvous& rendezvous, const Patience& patience);

  void receive(std::byte* to, std::int64_t bytes, int from_rank, processes::Tag tag) override;
  void send(const std::byte* from, std::int64_t bytes, int to_rank, processes::Tag tag) override;
  bool finished() override;
  std::vector<int> unfinished_ranks() override;
  bool abandon() override;
  /// Until a message moves, or for some milliseconds: a stop from outside must be noticed too.
  void pause() override;

  void expect_farewells(std::shared_ptr<processes::Farewells> farewells) override;
  bool farewell_came(int rank) override;
  void await_only_farewells() override;
  std::string lost(int rank) const override;

 private:
  Session(const Rendezvous& rendezvous, std::vector<Socket> sockets);
  void hang_up() override;
  Connection& to(int rank) { return connections_[static_cast<std::size_t>(rank)]; }
  template <class Work>
  void for_others(const Work& work) {
    for (int other = 0; other < size(); ++other)
      if (other != rank()) work(to(other), other);
  }

  std::vector<pollfd> polled_;
  std::vector<Connection> connections_;  ///< by rank; this rank's own is unused
  std::shared_ptr<processes::Farewells> farewells_;
};

}  // namespace fp8lab::sockets
