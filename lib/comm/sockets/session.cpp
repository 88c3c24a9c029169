#include "comm/sockets/session.h"

#include <utility>

#include "comm/sockets/rendezvous.h"
#include "core/check.h"

namespace fp8lab::sockets {
namespace {

constexpr int kPauseMilliseconds = 5;

}  // namespace

Session& Session::instance(const Rendezvous& rendezvous, const Patience& patience) {
  static std::unique_ptr<Session> session;
  static Rendezvous first;
  if (!session) {
    session.reset(new Session(rendezvous, meet(rendezvous, patience)));
    first = rendezvous;
  }
  check(rendezvous == first, "this process has met the ranks of another rendezvous before");
  return *session;
}

Session::Session(const Rendezvous& rendezvous, std::vector<Socket> sockets)
    : Transport("the connection with other ranks", rendezvous.rank, rendezvous.size) {
  connections_.reserve(sockets.size());
  polled_.reserve(sockets.size());
  for (Socket& socket : sockets) connections_.emplace_back(std::move(socket));
}

void Session::receive(std::byte* to_memory, std::int64_t bytes, int from_rank, processes::Tag tag) {
  to(from_rank).receive(to_memory, bytes, tag.number());
}

void Session::send(const std::byte* from, std::int64_t bytes, int to_rank, processes::Tag tag) {
  to(to_rank).send(from, bytes, tag.number());
}

bool Session::finished() {
  bool all = true;
  for_others([&](Connection& connection, int) {
    connection.progress();
    all = all && connection.finished();
  });
  return all;
}

std::vector<int> Session::unfinished_ranks() {
  std::vector<int> ranks;
  for_others([&](Connection& connection, int other) {
    if (!connection.finished()) ranks.push_back(other);
  });
  return ranks;
}

bool Session::abandon() {
  for_others([](Connection& connection, int) { connection.abandon(); });
  return true;
}

void Session::pause() {
  polled_.clear();
  for_others([&](Connection& connection, int) {
    if (const short events = connection.wanted_events(); events != 0)
      polled_.push_back({.fd = connection.descriptor(), .events = events, .revents = 0});
  });
  ::poll(polled_.data(), polled_.size(), kPauseMilliseconds);
}

void Session::expect_farewells(std::shared_ptr<processes::Farewells> farewells) {
  farewells_ = std::move(farewells);
  for_others([&](Connection& connection, int other) {
    connection.expect_farewell(&(*farewells_)[static_cast<std::size_t>(other)]);
  });
}

bool Session::farewell_came(int rank) {
  to(rank).progress();
  return to(rank).farewell_came();
}

void Session::await_only_farewells() {
  for_others([](Connection& connection, int) { connection.await_only_farewell(); });
}

std::string Session::lost(int rank) const { return connections_[static_cast<std::size_t>(rank)].lost(); }

void Session::hang_up() {
  for_others([](Connection& connection, int) { connection.hang_up(); });
}

}  // namespace fp8lab::sockets
