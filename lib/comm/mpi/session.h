#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "comm/processes/transport.h"

namespace fp8lab::mpi {

/// This process's part in MPI. Started at level MPI_THREAD_FUNNELED: only the thread that came first may come again.
class Session final : public processes::Transport {
 public:
  /// Starts MPI at the first call; it ends with the process. Once broken off, MPI is not called again, not even to end
  /// it, which would wait for the process that no longer answers. mpirun ends the others when this one exits.
  static Session& instance();

  std::uint64_t largest_context() const override { return static_cast<std::uint64_t>(largest_tag_ - 1) / 2; }

  void receive(std::byte* to, std::int64_t bytes, int from_rank, processes::Tag tag) override;
  void send(const std::byte* from, std::int64_t bytes, int to_rank, processes::Tag tag) override;
  bool finished() override;
  std::vector<int> unfinished_ranks() override;
  /// Receives are cancelled. Sends stay, without harm if no receive is ever posted for them. False if a receive had
  /// begun.
  bool abandon() override;
  void pause() override { std::this_thread::yield(); }

  void expect_shutdowns(std::shared_ptr<processes::ShutdownMessages> messages) override;
  bool shutdown_received(int rank) override;

 private:
  struct World {
    MPI_Comm comm = MPI_COMM_NULL;
    int rank = 0;
    int size = 1;
  };
  struct Peer {
    int rank;
    bool receiving;
  };
  explicit Session(const World& world);
  ~Session() override;
  static World start();
  void check_thread() const override;
  /// Breaks off and throws unless `code` is MPI_SUCCESS.
  void must(int code, const char* function);

  MPI_Comm comm_;
  int largest_tag_ = 0;
  std::thread::id thread_ = std::this_thread::get_id();
  std::vector<MPI_Request> requests_;
  std::vector<Peer> peers_;             ///< of each request
  std::vector<MPI_Request> shutdowns_;  ///< by rank
};

}  // namespace fp8lab::mpi
