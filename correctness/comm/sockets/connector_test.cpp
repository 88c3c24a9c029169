#include "comm/sockets/connector.h"

#include <sys/stat.h>

#include <array>
#include <filesystem>
#include <fstream>

#include "comm/sockets/connecting.h"

// How processes of a job find and connect each other, and what is refused.
namespace fp8lab::sockets {
namespace {

namespace fs = std::filesystem;

TEST(Connector, ConnectsEveryRankWithEveryOther) {
  for (const int size : {2, 3, 7}) {
    std::vector<Outcome> outcomes = connect_all(all_of(size, new_job()), 20);
    expect_connected(outcomes);
    for (const Outcome& outcome : outcomes) EXPECT_TRUE(outcome.lines.empty());
  }
}

TEST(Connector, OfOneRankReturnsAtOnce) { EXPECT_TRUE(Session(RunOptions{}).finished(processes::Awaited::kAll)); }

TEST(Connector, KeepsJobsApart) {
  std::vector<Rendezvous> ranks = all_of(2, new_job());
  for (const Rendezvous& rank : all_of(2, new_job())) ranks.push_back(rank);
  std::vector<Outcome> outcomes = connect_all(ranks, 30);
  expect_connected({&outcomes[0], &outcomes[1]});
  expect_connected({&outcomes[2], &outcomes[3]});
}

TEST(Connector, LateRankConnects) {
  const std::vector<Rendezvous> ranks = all_of(3, new_job());
  std::vector<Outcome> early, late;
  std::jthread others([&] { early = connect_all({ranks[0], ranks[2]}, 20); });
  for (const Rendezvous& waiting : {ranks[0], ranks[2]}) EXPECT_TRUE(Stranger().connect(waiting));
  late = connect_all({ranks[1]}, 20);
  others.join();
  expect_connected({&early[0], &late[0], &early[1]});
}

TEST(Connector, EveryRankNamesTheRanksThatMissedTheDeadline) {
  const std::string job = new_job();
  for (const Outcome& outcome : connect_all({rendezvous_of(0, 4, job), rendezvous_of(2, 4, job)}, 0.5)) {
    EXPECT_EQ(outcome.error, "rank 1 and rank 3 of 4 ranks did not come to " + user_folder() + " in time");
    EXPECT_FALSE(outcome.ranks_lost);
    EXPECT_LT(outcome.seconds, 5);
  }
}

TEST(Connector, MissingRanksOfAnotherHostNeedMpi) {
  std::vector<Rendezvous> ranks = {rendezvous_of(1, 2, new_job())};
  ranks[0].host = "node7.example";
  const std::string error = connect_all(ranks, 0.1)[0].error;
  EXPECT_TRUE(
      error.ends_with("in time; if MASTER_ADDR=node7.example is another host, a job over several hosts needs MPI "
                      "(mpirun, or srun --mpi=pmix), with NCCL for GPUs"))
      << error;
}

// What the rank that gives up first found is reported by all, long before their own deadlines.
TEST(Connector, GivingUpEndsTheWaitOfAllRanks) {
  const std::vector<Rendezvous> ranks = all_of(3, new_job());
  Outcome first, second;
  {
    const std::jthread other([&] { connect(ranks[1], 60, second); });
    connect(ranks[0], 1.5, first);
  }
  EXPECT_EQ(first.error, "rank 2 of 3 ranks did not come to " + user_folder() + " in time");
  EXPECT_EQ(second.error, first.error);
  EXPECT_LT(second.seconds, 20);
}

TEST(Connector, StopEndsTheWait) {
  std::stop_source source;
  source.request_stop();
  for (const int rank : {0, 1}) {
    Outcome outcome;
    connect(rendezvous_of(rank, 2, new_job()), 60, outcome, source.get_token());
    EXPECT_EQ(outcome.error, "the run was stopped from outside");
  }
}

TEST(Connector, RankThatEndsWhileOthersConnectIsLost) {
  const std::vector<Rendezvous> ranks = all_of(3, new_job());
  Outcome first;
  {
    const std::jthread one([&] { connect(ranks[0], 30, first); });
    EXPECT_TRUE(Stranger(path_of_link(ranks[1], 0)).connect(ranks[0]));
    fs::remove(path_of_link(ranks[1], 0));
  }
  EXPECT_EQ(first.error, "rank 1: its process has ended, or closed the connection");
  EXPECT_TRUE(first.ranks_lost);
  EXPECT_LT(first.seconds, 10);
}

// A socket that ends leaves its file.
TEST(Connector, ReplacesSocketsOfAKilledJob) {
  const std::vector<Rendezvous> ranks = all_of(3, new_job());
  for (const Rendezvous& rank : ranks) Stranger{path_of_listener(rank)};
  Stranger{path_of_link(ranks[2], 0)};
  std::vector<Outcome> outcomes = connect_all(ranks, 20);
  expect_connected(outcomes);
}

TEST(Connector, LeavesNoFile) {
  const std::vector<Rendezvous> ranks = all_of(2, new_job());
  EXPECT_EQ(connect_all(ranks, 20)[1].error, "");
  EXPECT_NE(connect_all({ranks[1]}, 0.1)[0].error, "");
  for (const Rendezvous& rank : ranks) EXPECT_FALSE(fs::exists(path_of_listener(rank)));
  EXPECT_FALSE(fs::exists(path_of_link(ranks[1], 0)));
}

TEST(Connector, TwoProcessesOfOneRankAreRefused) {
  const std::vector<Rendezvous> ranks = all_of(2, new_job());
  Outcome first, other, twin;
  {
    const std::jthread one([&] { connect(ranks[0], 20, first); });
    EXPECT_TRUE(Stranger().connect(ranks[0]));  // it listens
    connect(ranks[0], 20, twin);
    connect(ranks[1], 20, other);
  }
  EXPECT_EQ(twin.error, "two processes were started as rank 0");
  expect_connected({&first, &other});
}

struct Refused {
  const char* name;
  std::string (*path)(Rendezvous rank);  ///< path of the socket that connects as rank 1 of 2
  const char* reason;
};
constexpr const char* kOtherBuild =
    "rank 1 is another build of fp8lab, or one of another number of ranks; start every rank alike";
const Refused kRefused[] = {
    {"no_name", [](Rendezvous) -> std::string { return {}; }, "it is no rank of this job"},
    {"other_job",
     [](Rendezvous rank) {
       rank.job += "x";
       return path_of_link(rank, 0);
     },
     "it is no rank of this job"},
    {"rank_2",
     [](Rendezvous rank) {
       rank.rank = 2;
       return path_of_link(rank, 0);
     },
     "it is no rank of this job"},
    {"other_build", [](Rendezvous rank) { return path_of_link(rank, 0) + "0"; }, kOtherBuild},
    {"other_size",
     [](Rendezvous rank) {
       rank.size = 99;
       return path_of_link(rank, 0);
     },
     kOtherBuild},
};

class Refusals : public testing::TestWithParam<Refused> {};
INSTANTIATE_TEST_SUITE_P(Kinds, Refusals, testing::ValuesIn(kRefused),
                         [](const auto& param) { return std::string(param.param.name); });

// It connects before rank 1 does, is reported in one line though it comes twice, and does not keep the ranks apart.
TEST_P(Refusals, CostOneLineAndNotTheRun) {
  const std::vector<Rendezvous> ranks = all_of(2, new_job());
  Outcome first, second;
  {
    const std::jthread one([&] { connect(ranks[0], 20, first); });
    for (int i = 0; i < 2; ++i) {
      const std::string path = GetParam().path(ranks[1]);
      const Stranger stranger(path);
      EXPECT_TRUE(stranger.connect(ranks[0]));
      stranger.await_end();
      fs::remove(path);
    }
    connect(ranks[1], 20, second);
  }
  expect_connected({&first, &second});
  const std::string line = "rank 0 refused a connection from process " + std::to_string(::getpid()) + ": ";
  EXPECT_EQ(first.lines, std::vector{line + GetParam().reason});
}

// A connected process that sends what no rank sends is lost; nothing else is affected.
TEST(Connector, MalformedMessageOfAConnectedRankLosesIt) {
  const std::string too_long = "it sent a shutdown message of 1048576 bytes, which has 2064";
  for (const auto& [head, problem] :
       {std::pair{FrameHead{.tag = processes::Tag{}.number(), .total = 1 << 20, .offset = 0}, too_long},
        std::pair{FrameHead{.tag = 3, .total = ~std::uint64_t{0}, .offset = 0},
                  std::string("it sent a head that no rank sends")},
        std::pair{FrameHead{.tag = 3, .total = 64, .offset = 0},
                  std::string("it sent bytes of a collective before they were expected")}}) {
    const std::vector<Rendezvous> ranks = all_of(2, new_job());
    const Stranger peer(path_of_link(ranks[1], 0));
    fs::remove(path_of_link(ranks[1], 0));
    Outcome first;
    {
      const std::jthread one([&] { connect(ranks[0], 20, first); });
      ASSERT_TRUE(peer.connect(ranks[0]));
    }
    ASSERT_EQ(first.error, "");
    first.session->expect_shutdowns(std::make_shared<processes::ShutdownMessages>(2));
    peer.send(head);
    for (const auto start = steady_clock::now(); first.session->lost(1).empty() && !over(start);)
      EXPECT_FALSE(first.session->shutdown_received(1));
    EXPECT_EQ(first.session->lost(1), problem);
  }
}

class UserFolder : public ::testing::Test {
 protected:
  UserFolder() {
    std::string name = (fs::temp_directory_path() / "user-folder-XXXXXX").string();
    root_ = ::mkdtemp(name.data());
  }
  ~UserFolder() override { fs::remove_all(root_); }

  std::string folder() const { return (root_ / "sockets").string(); }
  std::string error() const {
    return error_of([&] { (void)user_folder(folder()); });
  }

  fs::path root_;
};

TEST_F(UserFolder, IsMadeForItsUserOnly) {
  EXPECT_EQ(user_folder(folder()), folder());
  struct stat status{};
  ASSERT_EQ(::stat(folder().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  EXPECT_EQ(user_folder(folder()), folder());
}

TEST_F(UserFolder, ThatOthersCanEnter_IsRefused) {
  (void)user_folder(folder());
  fs::permissions(folder(), fs::perms::group_exec, fs::perm_options::add);
  EXPECT_EQ(error(), folder() + ": no folder for sockets of ranks: others have access to it; chmod go-rwx");
  if (::geteuid() != 0) return;
  fs::permissions(folder(), fs::perms::owner_all);
  ASSERT_EQ(::chown(folder().c_str(), 1, 1), 0);
  EXPECT_EQ(error(), folder() + ": no folder for sockets of ranks: it belongs to another user");
}

TEST_F(UserFolder, LinksAndFiles_AreRefused) {
  (void)user_folder((root_ / "real").string());
  fs::create_directory_symlink(root_ / "real", folder());
  EXPECT_NE(error().find("something else has its name"), std::string::npos) << error();
  fs::remove(folder());
  std::ofstream(folder()) << "x";
  EXPECT_NE(error().find("something else has its name"), std::string::npos) << error();
}

}  // namespace
}  // namespace fp8lab::sockets
