#include "comm/sockets/rendezvous.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "comm/ranks.h"

// How processes find each other: here threads, each as a rank, since a meeting knows nothing but its arguments.
namespace fp8lab::sockets {
namespace {

using comm_test::error_of;

/// Listens where nobody else does.
Socket any_listener() { return Socket::listen(resolve("127.0.0.1", 0).front()); }

Rendezvous rendezvous_of(int rank, int size, int port) {
  return {.rank = rank, .size = size, .host = "127.0.0.1", .port = port};
}

Patience patience(double seconds, std::stop_token stop = {}) {
  return Patience{.deadline = std::chrono::steady_clock::time_point::max(), .stop = std::move(stop)}.at_most(seconds);
}

struct Outcome {
  std::vector<Socket> sockets;
  std::string error;
};

/// What each of `comers` meets.
std::vector<Outcome> meet_all(const std::vector<Rendezvous>& comers, double seconds) {
  std::vector<Outcome> outcomes(comers.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < comers.size(); ++i)
      threads.emplace_back(
          [&, i] { outcomes[i].error = error_of([&] { outcomes[i].sockets = meet(comers[i], patience(seconds)); }); });
  }
  return outcomes;
}

/// A rank that comes to rank 0, and to others only when it is told to, in the words of rendezvous.cpp.
class Laggard {
 public:
  explicit Laggard(const Rendezvous& rendezvous) : rank_(rendezvous.rank), addresses_(static_cast<std::size_t>(rendezvous.size)) {
    const Address first = resolve(rendezvous.host, rendezvous.port).front();
    while (!(first_ = Socket::connect(first, patience_)) && !patience_.over()) Socket::pause();
    greet(first_);
  }
  void learn_addresses() {
    std::array<char, 512> problem{};
    EXPECT_TRUE(first_.receive(problem, patience_));
    EXPECT_EQ(problem.front(), '\0') << problem.data();
    EXPECT_TRUE(first_.receive(std::as_writable_bytes(std::span(addresses_)), patience_));
  }
  Socket join(int lower) const {
    Socket socket = Socket::connect(addresses_[static_cast<std::size_t>(lower)], patience_);
    greet(socket);
    return socket;
  }

 private:
  struct Words {
    std::array<char, 8> protocol;
    std::uint64_t job;
    std::int32_t rank, size;
  };
  void greet(Socket& socket) const {
    Words words{};
    EXPECT_TRUE(socket.receive(words, patience_));
    words.rank = rank_;
    EXPECT_TRUE(socket.send(words, patience_));
    EXPECT_TRUE(socket.send(std::int64_t{0}, patience_));
  }

  const Patience patience_ = patience(20);
  int rank_;
  Socket first_;
  std::vector<Address> addresses_;
};

void expect_connected(std::vector<Outcome>& outcomes) {
  const int size = static_cast<int>(outcomes.size());
  for (int rank = 0; rank < size; ++rank) {
    Outcome& own = outcomes[static_cast<std::size_t>(rank)];
    ASSERT_EQ(own.error, "");
    EXPECT_FALSE(own.sockets[static_cast<std::size_t>(rank)]);
    for (int other = 0; other < size; ++other) {
      if (other == rank) continue;
      EXPECT_TRUE(own.sockets[static_cast<std::size_t>(other)].send(100 * rank + other, patience(5)));
    }
  }
  for (int rank = 0; rank < size; ++rank) {
    for (int other = 0; other < size; ++other) {
      if (other == rank) continue;
      int sent = 0;
      EXPECT_TRUE(
          outcomes[static_cast<std::size_t>(rank)].sockets[static_cast<std::size_t>(other)].receive(sent, patience(5)));
      EXPECT_EQ(sent, 100 * other + rank);
    }
  }
}

TEST(Rendezvous, ConnectsEveryRankWithEveryOther) {
  for (const int size : {2, 3, 7}) {
    const int port = any_listener().own_address().port();
    std::vector<Rendezvous> comers;
    for (int rank = 0; rank < size; ++rank) comers.push_back(rendezvous_of(rank, size, port));
    std::vector<Outcome> outcomes = meet_all(comers, 20);
    expect_connected(outcomes);
  }
}

TEST(Rendezvous, OfOneRankNeedsNobody) { EXPECT_EQ(meet({}, patience(1)).size(), 1u); }

// As under torchrun, whose agent listens at the port it names: the ranks pass over it, whether they were told so or not.
TEST(Rendezvous, PassesOverAPortThatIsTaken) {
  for (const bool told : {false, true}) {
    const Socket agent = any_listener();
    std::vector<Rendezvous> comers;
    for (int rank = 0; rank < 3; ++rank) {
      comers.push_back(rendezvous_of(rank, 3, agent.own_address().port()));
      comers.back().port_taken = told;
    }
    std::vector<Outcome> outcomes = meet_all(comers, 30);
    expect_connected(outcomes);
  }
}

TEST(Rendezvous, EndsAtTheLastPort) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<Rendezvous> comers = {rendezvous_of(0, 2, 65535), rendezvous_of(1, 2, 65535)};
  {
    const Socket other = Socket::listen(resolve("127.0.0.1", 65535).front());
    for (const Outcome& outcome : meet_all(comers, 60))
      EXPECT_EQ(outcome.error,
                "rank 0 finds no free port for the other ranks among 65535 to 65535 (MASTER_PORT and the next); set "
                "MASTER_PORT to a free and lower one");
  }
  for (Rendezvous& comer : comers) comer.port_taken = true;
  for (const Outcome& outcome : meet_all(comers, 60))
    EXPECT_EQ(outcome.error,
              "MASTER_PORT=65535 is the launcher's own, and no port comes after it for the ranks; set MASTER_PORT "
              "(torchrun --master-port) to a lower one");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

TEST(Rendezvous, KeepsJobsApart) {
  const int port = any_listener().own_address().port();
  std::vector<Rendezvous> comers;
  for (const char* job : {"a", "b"})
    for (int rank = 0; rank < 2; ++rank) {
      comers.push_back(rendezvous_of(rank, 2, port));
      comers.back().job = job;
    }
  std::vector<Outcome> outcomes = meet_all(comers, 30);
  for (const std::size_t first : {0u, 2u}) {
    std::vector<Outcome> job;
    for (std::size_t i = first; i < first + 2; ++i) job.push_back(std::move(outcomes[i]));
    expect_connected(job);
  }
}

TEST(Rendezvous, NamesOnEveryRankWhoDidNotCome) {
  const int port = any_listener().own_address().port();
  const std::vector<Outcome> outcomes = meet_all({rendezvous_of(0, 4, port), rendezvous_of(2, 4, port)}, 1.5);
  const std::string expected =
      "rank 1 and rank 3 of 4 ranks did not come to rank 0 at 127.0.0.1:" + std::to_string(port) +
      " (MASTER_ADDR, MASTER_PORT) in time";
  EXPECT_EQ(outcomes[0].error, expected);
  // Whose own patience may end a moment earlier.
  EXPECT_TRUE(outcomes[1].error == expected || outcomes[1].error.ends_with("went away before all ranks had come"))
      << outcomes[1].error;
}

// Rank 1 waits for rank 2 and rank 3, whoever of them is first.
TEST(Rendezvous, NamesWhoDidNotComeToARankAfterAll) {
  const int port = any_listener().own_address().port();
  std::vector<Outcome> outcomes;
  std::jthread first([&] { outcomes = meet_all({rendezvous_of(0, 4, port), rendezvous_of(1, 4, port)}, 3); });
  Laggard second(rendezvous_of(2, 4, port)), third(rendezvous_of(3, 4, port));
  third.learn_addresses();
  const Socket joined = third.join(1);
  first.join();
  EXPECT_EQ(outcomes[0].error, "");
  EXPECT_EQ(outcomes[1].error, "rank 1 cannot reach rank 2, though both came to rank 0");
}

TEST(Rendezvous, OneThatComesTwiceTakesNobodysPlace) {
  const int port = any_listener().own_address().port();
  std::vector<Outcome> outcomes;
  std::jthread first([&] { outcomes = meet_all({rendezvous_of(0, 4, port), rendezvous_of(1, 4, port)}, 20); });
  Laggard second(rendezvous_of(2, 4, port)), third(rendezvous_of(3, 4, port));
  second.learn_addresses();
  third.learn_addresses();
  Socket joined = second.join(1);
  const Socket again = second.join(1);
  Socket other = third.join(1);
  first.join();
  ASSERT_EQ(outcomes[1].error, "");
  for (const int rank : {2, 3}) {
    int sent = 0;
    EXPECT_TRUE(outcomes[1].sockets[static_cast<std::size_t>(rank)].send(rank, patience(5)));
    EXPECT_TRUE((rank == 2 ? joined : other).receive(sent, patience(5)));
    EXPECT_EQ(sent, rank);
  }
}

TEST(Rendezvous, RefusesRanksOfAnotherLaunch) {
  const int port = any_listener().own_address().port();
  std::vector<Outcome> outcomes = meet_all({rendezvous_of(0, 2, port), rendezvous_of(1, 3, port)}, 10);
  EXPECT_EQ(outcomes[0].error, "rank 0 was started as one of 2 ranks, rank 1 as one of 3");
  outcomes = meet_all({rendezvous_of(0, 3, port), rendezvous_of(1, 3, port), rendezvous_of(1, 3, port)}, 10);
  EXPECT_EQ(outcomes[0].error, "two processes were started as rank 1");
}

TEST(Rendezvous, NamesWhereNobodyAnswers) {
  const int port = any_listener().own_address().port();
  EXPECT_EQ(error_of([&] { meet(rendezvous_of(1, 2, port), patience(0.3)); }),
            "rank 1 finds no rank 0 of its job at 127.0.0.1, ports " + std::to_string(port) + " to " +
                std::to_string(port + 15) + " (MASTER_ADDR, MASTER_PORT and the next)");
  Rendezvous nowhere = rendezvous_of(0, 2, port);
  nowhere.host = "no such host";
  EXPECT_TRUE(error_of([&] { meet(nowhere, patience(1)); }).starts_with("MASTER_ADDR=no such host is no host: "));
}

// Also where the machine's other addresses are all of one kind.
TEST(Rendezvous, LoopbackIsAHostOfEitherKind) {
  for (const char* host : {"127.0.0.1", "::1"})
    EXPECT_EQ(error_of([&] { EXPECT_EQ(resolve(host, 29500).size(), 1u); }), "") << host;
}

TEST(Rendezvous, OfLoopbackIsSeenNowhereElse) {
  for (const char* host : {"127.0.0.1", "127.0.1.1", "::1", "localhost"}) EXPECT_TRUE(names_loopback(host)) << host;
  for (const char* host : {"10.0.0.1", "fd00::1", "node7", "localhost.example", "0.0.0.0"})
    EXPECT_FALSE(names_loopback(host)) << host;
  const int port = any_listener().own_address().port();
  std::vector<Rendezvous> comers;
  for (int rank = 0; rank < 3; ++rank) {
    comers.push_back(rendezvous_of(rank, 3, port));
    comers.back().host = "127.0.0.2";
  }
  const auto reaches = [&](const char* host) {
    return static_cast<bool>(Socket::connect(resolve(host, port).front(), patience(5)));
  };
  std::vector<Outcome> outcomes;
  {
    std::jthread first([&] { outcomes = meet_all({comers[0]}, 2); });
    const Patience enough = patience(5);
    while (!reaches("127.0.0.2") && !enough.over()) Socket::pause();
    EXPECT_FALSE(reaches("127.0.0.1"));
  }
  outcomes = meet_all(comers, 20);
  expect_connected(outcomes);
}

TEST(Rendezvous, CanBeStopped) {
  std::stop_source source;
  source.request_stop();
  for (const int rank : {0, 1})
    EXPECT_EQ(error_of([&] {
                meet(rendezvous_of(rank, 2, any_listener().own_address().port()), patience(60, source.get_token()));
              }),
              "the run was stopped from outside");
}

}  // namespace
}  // namespace fp8lab::sockets
