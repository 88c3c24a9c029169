#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "comm/processes/transport.h"

namespace fp8lab::mpi {

/// This process's use of MPI, at level MPI_THREAD_FUNNELED: only the thread that made the first call may use it.
class Session final : public processes::Transport {
 public:
  /// Starts MPI at the first call. MPI ends with the process. After break_off() MPI is not called again, not even
  /// MPI_Finalize(), which would wait for the unresponsive process. mpirun ends the other processes when this
  /// one exits.
  static Session& instance();

  std::uint64_t largest_context() const override { return static_cast<std::uint64_t>(largest_tag_ - 1) / 2; }

  void receive(std::byte* to, std::int64_t bytes, int from_rank, processes::Tag tag) override;
  void send(const std::byte* from, std::int64_t bytes, int to_rank, processes::Tag tag) override;
  bool finished(processes::Awaited awaited) override;
  std::vector<int> unfinished_ranks(processes::Awaited awaited) override;
  /// Cancels receives. Sends remain. False if a receive had begun, or if a send of data remains whose receiver is late:
  /// once that goes on, the caller's memory is read. A call is sent as soon as it is begun.
  bool abandon(const std::vector<bool>& left) override;
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
    bool data;
  };
  struct Messages {
    std::vector<MPI_Request> requests{};
    std::vector<Peer> peers{};  ///< one for each request
  };
  explicit Session(const World& world);
  ~Session() override;
  static World start();
  void check_thread() const override;
  /// Breaks off and throws unless `code` is MPI_SUCCESS.
  void must(int code, const char* function);
  MPI_Request* add(Messages& messages, const Peer& peer);
  bool finished(Messages& messages);
  void add_unfinished(Messages& messages, std::vector<int>& ranks);
  bool abandon(Messages& messages, const std::vector<bool>& left);

  MPI_Comm comm_;
  int largest_tag_ = 0;
  std::thread::id thread_ = std::this_thread::get_id();
  Messages received_data_, others_;
  std::vector<MPI_Request> shutdowns_;  ///< by rank
};

}  // namespace fp8lab::mpi
