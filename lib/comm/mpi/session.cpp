#include "comm/mpi/session.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "comm/run.h"
#include "core/check.h"

namespace fp8lab::mpi {
namespace {

// MPI counts bytes of a message in int, so longer messages are split.
constexpr std::int64_t kMessageBytes = std::int64_t{1} << 30;

std::string describe(int code, const char* function) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return fmt::format("{}: {}", function, text.data());
}

void must_start(int code, const char* function) {
  if (code != MPI_SUCCESS) fail(describe(code, function));
}

}  // namespace

Session& Session::instance() {
  static Session session(start());
  return session;
}

Session::World Session::start() {
  int provided = MPI_THREAD_SINGLE;
  must_start(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_FUNNELED) fail("MPI offers only MPI_THREAD_SINGLE; ranks need MPI_THREAD_FUNNELED");
  World world;
  must_start(MPI_Comm_dup(MPI_COMM_WORLD, &world.comm), "MPI_Comm_dup");
  must_start(MPI_Comm_set_errhandler(world.comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  must_start(MPI_Comm_rank(world.comm, &world.rank), "MPI_Comm_rank");
  must_start(MPI_Comm_size(world.comm, &world.size), "MPI_Comm_size");
  return world;
}

Session::Session(const World& world) : Transport("MPI", world.rank, world.size), comm_(world.comm) {
  const int* largest_tag = nullptr;
  int found = 0;
  must_start(MPI_Comm_get_attr(comm_, MPI_TAG_UB, &largest_tag, &found), "MPI_Comm_get_attr");
  if (found != 0) largest_tag_ = *largest_tag;
}

Session::~Session() {
  if (!broken()) MPI_Finalize();
}

void Session::check_thread() const {
  if (std::this_thread::get_id() != thread_)
    fail("MPI was started by another thread; all runs over MPI must come from that one (MPI_THREAD_FUNNELED)");
}

void Session::must(int code, const char* function) {
  if (code == MPI_SUCCESS) return;
  const std::string reason = describe(code, function);
  break_off(reason);
  throw RanksLost(reason);
}

void Session::receive(std::byte* to, std::int64_t bytes, int from_rank, processes::Tag tag) {
  for (std::int64_t done = 0; done < bytes; done += kMessageBytes) {
    const int count = static_cast<int>(std::min(kMessageBytes, bytes - done));
    must(MPI_Irecv(to + done, count, MPI_BYTE, from_rank, static_cast<int>(tag.number()), comm_,
                   add(tag.data ? received_data_ : others_, {from_rank, true, tag.data})),
         "MPI_Irecv");
  }
}

void Session::send(const std::byte* from, std::int64_t bytes, int to_rank, processes::Tag tag) {
  for (std::int64_t done = 0; done < bytes; done += kMessageBytes) {
    const int count = static_cast<int>(std::min(kMessageBytes, bytes - done));
    must(MPI_Isend(from + done, count, MPI_BYTE, to_rank, static_cast<int>(tag.number()), comm_,
                   add(others_, {to_rank, false, tag.data})),
         "MPI_Isend");
  }
}

MPI_Request* Session::add(Messages& messages, const Peer& peer) {
  messages.peers.push_back(peer);
  return &messages.requests.emplace_back(MPI_REQUEST_NULL);
}

bool Session::finished(processes::Awaited awaited) {
  const bool others = finished(others_);
  return (awaited == processes::Awaited::kCalls || finished(received_data_)) && others;
}

bool Session::finished(Messages& messages) {
  int all = 0;
  must(MPI_Testall(static_cast<int>(messages.requests.size()), messages.requests.data(), &all, MPI_STATUSES_IGNORE),
       "MPI_Testall");
  if (all == 0) return false;
  messages.requests.clear();
  messages.peers.clear();
  return true;
}

std::vector<int> Session::unfinished_ranks(processes::Awaited awaited) {
  std::vector<int> ranks;
  add_unfinished(others_, ranks);
  if (awaited == processes::Awaited::kAll) add_unfinished(received_data_, ranks);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

void Session::add_unfinished(Messages& messages, std::vector<int>& ranks) {
  for (std::size_t i = 0; i < messages.requests.size(); ++i) {
    int done = 0;
    must(MPI_Test(&messages.requests[i], &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done == 0) ranks.push_back(messages.peers[i].rank);
  }
}

bool Session::abandon(const std::vector<bool>& left) {
  const bool clean = abandon(others_, left);
  return abandon(received_data_, left) && clean;
}

bool Session::abandon(Messages& messages, const std::vector<bool>& left) {
  bool clean = true;
  // The last receive first, since a message goes to the first open receive from its rank. If that receive is cancelled
  // first, the message goes to the next one, which may have less memory.
  for (std::size_t i = messages.requests.size(); i-- > 0;) {
    MPI_Request& request = messages.requests[i];
    const Peer& peer = messages.peers[i];
    int done = 0;
    must(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done != 0) continue;
    if (peer.receiving) {
      must(MPI_Cancel(&request), "MPI_Cancel");
      must(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      clean = clean && done != 0;
    } else {
      must(MPI_Request_free(&request), "MPI_Request_free");
      clean = clean && (!peer.data || left[static_cast<std::size_t>(peer.rank)]);
    }
  }
  messages.requests.clear();
  messages.peers.clear();
  return clean;
}

void Session::expect_shutdowns(std::shared_ptr<processes::ShutdownMessages> messages) {
  shutdowns_.assign(messages->size(), MPI_REQUEST_NULL);
  for (int other = 0; other < size(); ++other) {
    const auto at = static_cast<std::size_t>(other);
    if (other != rank())
      must(MPI_Irecv((*messages)[at].data(), sizeof(processes::ShutdownBytes), MPI_BYTE, other,
                     static_cast<int>(processes::Tag{}.number()), comm_, &shutdowns_[at]),
           "MPI_Irecv");
  }
}

bool Session::shutdown_received(int rank) {
  int come = 0;
  must(MPI_Test(&shutdowns_[static_cast<std::size_t>(rank)], &come, MPI_STATUS_IGNORE), "MPI_Test");
  return come != 0;
}

}  // namespace fp8lab::mpi
