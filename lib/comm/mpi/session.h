#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace fp8lab::mpi {

/// This process's part in MPI. Started at level MPI_THREAD_FUNNELED: only the thread that came first may come again.
class Session {
 public:
  /// Starts MPI at the first call; it ends with the process.
  static Session& instance();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  MPI_Comm comm() const { return comm_; }
  int largest_tag() const { return largest_tag_; }

  /// Number of the next message context; every rank has the same one between runs.
  std::uint64_t next_context = 1;

  /// Another process no longer answers: MPI is not called again, not even to end it, which would wait for that process.
  /// mpirun ends the others when this one exits.
  void break_off(std::string reason) { broken_ = std::move(reason); }
  /// Throws unless this thread may use MPI, and MPI is whole.
  void check_usable() const;
  /// Breaks off and throws unless `code` is MPI_SUCCESS.
  void must(int code, const char* function);

  /// For memory that an unfinished message may still use.
  void keep_forever(std::shared_ptr<void> memory) { kept_.push_back(std::move(memory)); }

 private:
  Session();
  ~Session();

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  int largest_tag_ = 0;
  std::thread::id thread_ = std::this_thread::get_id();
  std::string broken_;
  std::vector<std::shared_ptr<void>> kept_;
};

/// Messages under way, to be awaited together.
class Requests {
 public:
  explicit Requests(Session& session) : session_(session) {}

  void receive(std::byte* to, std::int64_t bytes, int from_rank, int tag);
  void send(const std::byte* from, std::int64_t bytes, int to_rank, int tag);
  /// Whether all are finished; they are forgotten then.
  bool finished();
  /// Ranks with messages that are not, in order, once each.
  std::vector<int> unfinished_ranks();
  /// Forgets them all. Receives are cancelled. Sends stay, without harm if no receive is ever posted for them. False
  /// if a receive had begun, and memory of the caller may still be written.
  bool abandon();

 private:
  struct Peer {
    int rank;
    bool receiving;
  };

  Session& session_;
  std::vector<MPI_Request> requests_;
  std::vector<Peer> peers_;  ///< of each request
};

}  // namespace fp8lab::mpi
