#include "comm/sockets/session.h"

#include <chrono>
#include <utility>

#include "core/check.h"

namespace fp8lab::sockets {
namespace {

constexpr std::chrono::milliseconds kPause(5);

}  // namespace

Session& Session::instance(const Rendezvous& rendezvous, const WaitLimit& wait_limit,
                           const std::function<void(const std::string&)>& notify) {
  static std::unique_ptr<Session> session;
  static Rendezvous first;
  if (!session) {
    session.reset(new Session(rendezvous, connect_ranks(rendezvous, wait_limit, notify)));
    first = rendezvous;
  }
  check(rendezvous == first,
        "this process is already connected to the ranks of another job, and the connections last as long as the "
        "process: start a new process for another address, port, job, rank, number of ranks or FP8LAB_JOB_SECRET");
  return *session;
}

Session::Session(const Rendezvous& rendezvous, Mesh mesh)
    : Transport("the connection with other ranks", rendezvous.rank, rendezvous.size), mesh_(std::move(mesh)) {
  polled_.reserve(mesh_.links.size());
}

void Session::receive(std::byte* to_memory, std::int64_t bytes, int from_rank, processes::Tag tag) {
  to(from_rank).receive(to_memory, bytes, tag.number());
}

void Session::send(const std::byte* from, std::int64_t bytes, int to_rank, processes::Tag tag) {
  to(to_rank).send(from, bytes, tag.number());
}

bool Session::finished() {
  bool all = true;
  for_others([&](Link& link, int) {
    link.progress();
    all = all && link.finished();
  });
  return all;
}

std::vector<int> Session::unfinished_ranks() {
  std::vector<int> ranks;
  for_others([&](Link& link, int other) {
    if (!link.finished()) ranks.push_back(other);
  });
  return ranks;
}

bool Session::abandon(const std::vector<bool>&) {
  for_others([](Link& link, int) { link.abandon(); });
  return true;
}

void Session::pause() {
  polled_.clear();
  for_others([&](Link& link, int) {
    if (const std::optional<zmq_pollitem_t> wanted = link.wanted()) polled_.push_back(*wanted);
  });
  wait(polled_, kPause);
}

void Session::expect_shutdowns(std::shared_ptr<processes::ShutdownMessages> messages) {
  messages_ = std::move(messages);
  for_others(
      [&](Link& link, int other) { link.inbox().expect_shutdown(&(*messages_)[static_cast<std::size_t>(other)]); });
}

bool Session::shutdown_received(int rank) {
  Link& link = to(rank);
  link.progress();
  link.check_connection();
  return link.inbox().shutdown_came();
}

void Session::await_only_shutdowns() {
  for_others([](Link& link, int) { link.inbox().drop_all_else(); });
}

std::string Session::lost(int rank) const { return rank == this->rank() ? std::string() : to(rank).lost(); }

void Session::hang_up() {
  for_others([](Link& link, int) { link.hang_up(); });
}

}  // namespace fp8lab::sockets
