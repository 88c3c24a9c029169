#include "comm/mpi/session.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/check.h"

namespace fp8lab::mpi {
namespace {

// MPI counts in int.
constexpr std::int64_t kMessageBytes = std::int64_t{1} << 30;

}  // namespace

Session& Session::instance() {
  static Session session;
  return session;
}

Session::Session() {
  int provided = MPI_THREAD_SINGLE;
  must(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_FUNNELED) fail("MPI offers MPI_THREAD_SINGLE alone; ranks need MPI_THREAD_FUNNELED");
  must(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
  must(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  must(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
  must(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
  const int* largest_tag = nullptr;
  int found = 0;
  must(MPI_Comm_get_attr(comm_, MPI_TAG_UB, &largest_tag, &found), "MPI_Comm_get_attr");
  if (found != 0) largest_tag_ = *largest_tag;
}

Session::~Session() {
  if (broken_.empty()) MPI_Finalize();
}

void Session::check_usable() const {
  if (std::this_thread::get_id() != thread_)
    fail("MPI was started by another thread; all runs over MPI must come from that one (MPI_THREAD_FUNNELED)");
  if (!broken_.empty()) fail(fmt::format("MPI can no longer be used in this process: {}", broken_));
}

void Session::must(int code, const char* function) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  break_off(fmt::format("{}: {}", function, text.data()));
  fail(broken_);
}

void Requests::receive(std::byte* to, std::int64_t bytes, int from_rank, int tag) {
  for (std::int64_t done = 0; done < bytes; done += kMessageBytes) {
    const int count = static_cast<int>(std::min(kMessageBytes, bytes - done));
    peers_.push_back({from_rank, true});
    session_.must(MPI_Irecv(to + done, count, MPI_BYTE, from_rank, tag, session_.comm(),
                            &requests_.emplace_back(MPI_REQUEST_NULL)),
                  "MPI_Irecv");
  }
}

void Requests::send(const std::byte* from, std::int64_t bytes, int to_rank, int tag) {
  for (std::int64_t done = 0; done < bytes; done += kMessageBytes) {
    const int count = static_cast<int>(std::min(kMessageBytes, bytes - done));
    peers_.push_back({to_rank, false});
    session_.must(MPI_Isend(from + done, count, MPI_BYTE, to_rank, tag, session_.comm(),
                            &requests_.emplace_back(MPI_REQUEST_NULL)),
                  "MPI_Isend");
  }
}

bool Requests::finished() {
  int all = 0;
  session_.must(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &all, MPI_STATUSES_IGNORE),
                "MPI_Testall");
  if (all == 0) return false;
  requests_.clear();
  peers_.clear();
  return true;
}

std::vector<int> Requests::unfinished_ranks() {
  std::vector<int> ranks;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    int done = 0;
    session_.must(MPI_Test(&requests_[i], &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done == 0) ranks.push_back(peers_[i].rank);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

bool Requests::abandon() {
  bool clean = true;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    int done = 0;
    session_.must(MPI_Test(&requests_[i], &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done != 0) continue;
    if (peers_[i].receiving) {
      session_.must(MPI_Cancel(&requests_[i]), "MPI_Cancel");
      session_.must(MPI_Test(&requests_[i], &done, MPI_STATUS_IGNORE), "MPI_Test");
      clean = clean && done != 0;
    } else {
      session_.must(MPI_Request_free(&requests_[i]), "MPI_Request_free");
    }
  }
  requests_.clear();
  peers_.clear();
  return clean;
}

}  // namespace fp8lab::mpi
