#include "comm/sockets/rendezvous.h"

#include <poll.h>

#include <filesystem>
#include <semaphore>

#include "comm/sockets/address.h"
#include "comm/sockets/connecting.h"

// How processes of a job find and connect each other.
namespace fp8lab::sockets {
namespace {

TEST(Rendezvous, ConnectsEveryRankWithEveryOther) {
  for (const int size : {2, 3, 7})
    for (const char* secret : {"", kSecret}) {
      std::vector<Outcome> outcomes = connect_all(all_of(size, free_port(), secret), 20);
      expect_connected(outcomes);
    }
}

TEST(Rendezvous, OfOneRankReturnsAtOnce) {
  EXPECT_TRUE(Session({}, wait_limit(1), {}).finished(processes::Awaited::kAll));
}

// Under torchrun the agent listens at the port that it names. The ranks use the next one, whether the launch says that
// the port is in use or not.
TEST(Rendezvous, UsesTheNextPortIfTheFirstIsTaken) {
  for (const bool known_taken : {false, true}) {
    const Port agent;
    std::vector<Rendezvous> ranks = all_of(3, agent.number());
    for (Rendezvous& rank : ranks) rank.port_taken = known_taken;
    std::vector<Outcome> outcomes = connect_all(ranks, 30);
    expect_connected(outcomes);
  }
}

TEST(Rendezvous, TakenLastPortIsAnError) {
  const Port holder;
  std::vector<Rendezvous> ranks = {rendezvous_of(0, 2, 65535), rendezvous_of(1, 2, 65535)};
  for (Rendezvous& rank : ranks) rank.port_taken = true;
  for (const Outcome& outcome : connect_all(ranks, 60)) {
    EXPECT_EQ(outcome.error,
              "MASTER_PORT=65535 is the launcher's own, and no port comes after it for the ranks; set MASTER_PORT "
              "(torchrun --master-port) to a lower one");
    EXPECT_LT(outcome.seconds, 5);
  }
}

TEST(Rendezvous, KeepsJobsApart) {
  for (const char* secret : {"", kSecret}) {
    const int port = free_port();
    std::vector<Rendezvous> ranks;
    for (const char* job : {"a", "b"})
      for (Rendezvous rank : all_of(2, port, secret)) {
        rank.job = job;
        ranks.push_back(rank);
      }
    std::vector<Outcome> outcomes = connect_all(ranks, 30);
    expect_connected({&outcomes[0], &outcomes[1]});
    expect_connected({&outcomes[2], &outcomes[3]});
  }
}

TEST(Rendezvous, EveryRankNamesTheRanksThatMissedTheDeadline) {
  const int port = free_port();
  const std::vector<Outcome> outcomes = connect_all({rendezvous_of(0, 4, port), rendezvous_of(2, 4, port)}, 1.5);
  for (const Outcome& outcome : outcomes) {
    EXPECT_TRUE(outcome.error.ends_with("rank 1 and rank 3 of 4 ranks did not come to rank 0 at 127.0.0.1:" +
                                        std::to_string(port) + " (MASTER_ADDR, MASTER_PORT) in time"))
        << outcome.error;
    EXPECT_LT(outcome.seconds, 10);
  }
}

TEST(Rendezvous, UnreachableRankZeroIsNamedByItsAddress) {
  const int port = free_port();
  EXPECT_EQ(error_of([&] { Session(rendezvous_of(1, 2, port), wait_limit(0.3), {}); }),
            "rank 1 finds no rank 0 of its job at 127.0.0.1, ports " + std::to_string(port) + " to " +
                std::to_string(port + 15) + " (MASTER_ADDR, MASTER_PORT and the next)");
  Rendezvous nowhere = rendezvous_of(0, 2, port);
  nowhere.host = "no such host";
  EXPECT_TRUE(
      error_of([&] { Session(nowhere, wait_limit(1), {}); }).starts_with("MASTER_ADDR=no such host is no host: "));
  // An address of RFC 5737, which is reserved for documentation.
  nowhere.host = "192.0.2.1";
  nowhere.secret = "";
  EXPECT_TRUE(error_of([&] {
                Session(nowhere, wait_limit(1), {});
              }).starts_with("MASTER_ADDR=192.0.2.1 is no address of rank 0's machine; "));
}

// Rank 0 would listen at every interface, and other ranks would connect to themselves.
TEST(Rendezvous, AddressOfEveryInterfaceIsRefused) {
  for (const char* host : {"0.0.0.0", "0", "0x0", "000.0", "::", "::0", "0:0::0", "::ffff:0.0.0.0", "::ffff:0:0"})
    for (const char* secret : {"", kSecret})
      for (const int rank : {0, 1}) {
        Rendezvous anywhere = rendezvous_of(rank, 2, free_port());
        anywhere.host = host;
        anywhere.secret = secret;
        const std::string error = error_of([&] { Session(anywhere, wait_limit(1), {}); });
        EXPECT_TRUE(error.starts_with(std::string("MASTER_ADDR=") + host + " is ")) << error;
        EXPECT_NE(error.find("which stands for every interface of a machine; name one address"), std::string::npos)
            << error;
      }
}

// One process was started wrongly: that is reported, and the others wait for the right one.
TEST(Rendezvous, RefusesRanksOfAnotherLaunchAndWaitsForTheRightOnes) {
  const int port = free_port();
  std::vector<Outcome> outcomes = connect_all({rendezvous_of(0, 2, port), rendezvous_of(1, 3, port)}, 1);
  EXPECT_EQ(outcomes[1].error,
            "rank 0 at 127.0.0.1 refuses this rank: rank 0 was started as one of 2 ranks, rank 1 as one of 3");
  ASSERT_EQ(outcomes[0].lines.size(), 1u);
  EXPECT_TRUE(outcomes[0].lines[0].starts_with("rank 0 refused a connection from 127.0.0.1:")) << outcomes[0].lines[0];
  EXPECT_TRUE(outcomes[0].lines[0].ends_with(": rank 0 was started as one of 2 ranks, rank 1 as one of 3"))
      << outcomes[0].lines[0];

  // Rank 2 connects only after one of two processes with the same rank has been refused: rank 0 waits until then.
  const std::vector<Rendezvous> ranks = all_of(3, free_port());
  std::vector<Outcome> first, last, twins[2];
  {
    std::binary_semaphore refused(0);
    const auto come = [&](int twin) {
      twins[twin] = connect_all({ranks[1]}, 20);
      if (!twins[twin][0].error.empty()) refused.release();
    };
    const std::jthread rank0([&] { first = connect_all({ranks[0]}, 20); }), one([&] { come(0); }),
        other([&] { come(1); });
    EXPECT_TRUE(refused.try_acquire_for(std::chrono::seconds(15)));
    last = connect_all({ranks[2]}, 20);
  }
  const int in = twins[0][0].error.empty() ? 0 : 1;
  EXPECT_EQ(twins[1 - in][0].error, "rank 0 at 127.0.0.1 refuses this rank: two processes were started as rank 1");
  expect_connected({&first[0], &twins[in][0], &last[0]});
}

TEST(Rendezvous, RanksWithAnotherSecretAreRefused) {
  for (const char* other : {"", "another secret of letters"}) {
    const int port = free_port();
    std::vector<Outcome> outcomes =
        connect_all({rendezvous_of(0, 2, port), rendezvous_of(1, 2, port), rendezvous_of(1, 2, port, other)}, 1.5);
    expect_connected({&outcomes[0], &outcomes[1]});
    EXPECT_TRUE(outcomes[2].error.starts_with("rank 1 finds no rank 0 of its job")) << outcomes[2].error;
    for (const Outcome& outcome : outcomes)
      for (const std::string& text : outcome.lines) EXPECT_EQ(text.find(kSecret), std::string::npos);
  }
  const int port = free_port();
  const std::vector<Outcome> outcomes =
      connect_all({rendezvous_of(0, 2, port), rendezvous_of(1, 2, port, "another secret of letters")}, 1);
  EXPECT_FALSE(outcomes[0].lines.empty());
  for (const std::string& line : outcomes[0].lines)  // one for each time that rank 1 connects
    EXPECT_TRUE(line.ends_with(": it does not hold the job's secret (FP8LAB_JOB_SECRET, or another job's)")) << line;
}

TEST(Rendezvous, RankZeroReportsAMissingSecret) {
  for (const char* secret : {"", kSecret}) {
    const std::vector<Outcome> outcomes = connect_all(all_of(2, free_port(), secret), 10);
    EXPECT_TRUE(outcomes[1].lines.empty());
    if (*secret != '\0') {
      EXPECT_TRUE(outcomes[0].lines.empty()) << outcomes[0].lines[0];
      continue;
    }
    ASSERT_EQ(outcomes[0].lines.size(), 1u);
    EXPECT_EQ(outcomes[0].lines[0],
              "FP8LAB_JOB_SECRET is not set: ranks are not authenticated, so rank 0 listens at 127.0.0.1 alone, where "
              "other hosts do "
              "not reach it");
  }
}

TEST(Rendezvous, LoopbackHostsAreRecognized) {
  for (const char* host : {"127.0.0.1", "127.0.1.1", "::1", "localhost"}) EXPECT_TRUE(names_loopback(host)) << host;
  for (const char* host : {"10.0.0.1", "fd00::1", "node7", "localhost.example", "0.0.0.0"})
    EXPECT_FALSE(names_loopback(host)) << host;
  // Numeric addresses resolve even where the machine's other addresses are all of the other family.
  for (const char* host : {"127.0.0.1", "::1"}) EXPECT_EQ(resolve(host), std::vector<std::string>{host});
  for (const char* text : {"127.0.0.1", "::1", "fe80::1%eth0"}) EXPECT_TRUE(is_one_address(text)) << text;
  for (const char* text : {"", "*", "0.0.0.0", "::", "node7"}) EXPECT_FALSE(is_one_address(text)) << text;
}

TEST(Rendezvous, ConnectsOverIPv6) {
  std::vector<Rendezvous> ranks = all_of(2, free_port());
  for (Rendezvous& rank : ranks) rank.host = "::1";
  std::vector<Outcome> outcomes = connect_all(ranks, 20);
  if (std::filesystem::exists("/proc/net/if_inet6"))
    expect_connected(outcomes);
  else
    EXPECT_TRUE(outcomes[0].error.starts_with("MASTER_ADDR=::1 is no address of rank 0's machine; "))
        << outcomes[0].error;
}

bool reaches(const char* host, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + (std::string_view(host) == "127.0.0.2" ? 1 : 0));
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool reached = ::connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  ::close(descriptor);
  return reached;
}

TEST(Rendezvous, OnOneLoopbackAddressListensAtNoOther) {
  for (const char* secret : {"", kSecret}) {
    std::vector<Rendezvous> ranks = all_of(3, free_port(), secret);
    for (Rendezvous& rank : ranks) rank.host = "127.0.0.2";
    {
      std::jthread first([&] { connect_all({ranks[0]}, 1); });
      const WaitLimit enough = wait_limit(5);
      while (!reaches("127.0.0.2", ranks[0].port) && !enough.over()) ::poll(nullptr, 0, 10);
      EXPECT_FALSE(reaches("127.0.0.1", ranks[0].port));
    }
    std::vector<Outcome> outcomes = connect_all(ranks, 20);
    expect_connected(outcomes);
  }
}

TEST(Rendezvous, EndsOnAStopRequest) {
  std::stop_source source;
  source.request_stop();
  for (const int rank : {0, 1})
    EXPECT_EQ(error_of([&] { Session(rendezvous_of(rank, 2, free_port()), wait_limit(60, source.get_token()), {}); }),
              "the run was stopped from outside");
}

}  // namespace
}  // namespace fp8lab::sockets
