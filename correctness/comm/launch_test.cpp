#include "comm/launch.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "comm/ranks.h"

// Which launcher started this process and as which rank, read from the environment that launchers set.
namespace fp8lab::comm_test {
namespace {

using Environment = std::map<std::string, std::string>;

EnvironmentLookup lookup(const Environment& environment) {
  return [&environment](const char* name) {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  };
}

Launch discover(const Environment& environment) { return discover_launch(lookup(environment)); }

std::string problem(const Environment& environment) {
  return error_of([&] { discover(environment); });
}

void expect_launch(const Environment& environment, const Launch& expected) {
  const Launch found = discover(environment);
  EXPECT_EQ(found.launcher, expected.launcher);
  EXPECT_EQ(found.rank, expected.rank);
  EXPECT_EQ(found.size, expected.size);
  EXPECT_EQ(found.local_rank, expected.local_rank);
}

const Environment kTorchrun = {{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "8"}};
const Environment kMpirun = {
    {"OMPI_COMM_WORLD_RANK", "5"}, {"OMPI_COMM_WORLD_SIZE", "8"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}};
const Environment kSrun = {
    {"SLURM_PROCID", "5"}, {"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_LOCALID", "1"}, {"SLURM_NTASKS", "8"}};

Environment both(Environment a, const Environment& b) {
  a.insert(b.begin(), b.end());
  return a;
}
Environment with(Environment environment, const std::string& name, const std::string& value) {
  environment[name] = value;
  return environment;
}

TEST(LaunchDiscovery, ReadsRankAndSizeOfEveryLauncher) {
  expect_launch({}, {.launcher = "", .rank = 0, .size = 1, .local_rank = 0});
  expect_launch(kTorchrun, {.launcher = "torchrun", .rank = 5, .size = 8, .local_rank = 1});
  expect_launch(kMpirun, {.launcher = "mpirun", .rank = 5, .size = 8, .local_rank = 1});
  expect_launch(kSrun, {.launcher = "srun", .rank = 5, .size = 8, .local_rank = 1});
}

TEST(LaunchDiscovery, LaunchersThatAgree_TheFirstIsUsed) {
  expect_launch(both(both(kTorchrun, kMpirun), kSrun), {.launcher = "torchrun", .rank = 5, .size = 8, .local_rank = 1});
}

TEST(LaunchDiscovery, LaunchersThatDisagreeAreRefused) {
  EXPECT_EQ(problem(both(kTorchrun, with(kMpirun, "OMPI_COMM_WORLD_RANK", "4"))),
            "torchrun (RANK, WORLD_SIZE) says rank 5 of 8, but mpirun (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE) "
            "says rank 4 "
            "of 8; unset the variables of the one that did not start this process");
  EXPECT_NE(problem(both(kTorchrun, with(kMpirun, "OMPI_COMM_WORLD_SIZE", "9"))), "");
  EXPECT_NE(problem(both(kMpirun, with(kSrun, "SLURM_PROCID", "4"))), "");
}

// mpirun inside a Slurm allocation starts one daemon per machine as a Slurm step, and its ranks inherit the step's
// numbers.
TEST(LaunchDiscovery, IgnoresTheSlurmStepOfMpirunsDaemons) {
  expect_launch(both(kMpirun, with(with(kSrun, "SLURM_STEP_NUM_TASKS", "2"), "SLURM_PROCID", "0")),
                {.launcher = "mpirun", .rank = 5, .size = 8, .local_rank = 1});
  expect_launch({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}},
                {.launcher = "", .rank = 0, .size = 1, .local_rank = 0});
}

TEST(LaunchDiscovery, MissingOrMalformedNumbersAreRefused) {
  EXPECT_EQ(problem({{"RANK", "1"}}), "RANK is set and WORLD_SIZE is not; torchrun sets both");
  EXPECT_EQ(problem({{"OMPI_COMM_WORLD_SIZE", "4"}}),
            "OMPI_COMM_WORLD_SIZE is set and OMPI_COMM_WORLD_RANK is not; mpirun sets both");
  EXPECT_EQ(problem({{"RANK", "4"}, {"WORLD_SIZE", "4"}}), "RANK=4 is not below WORLD_SIZE=4");
  for (const char* text : {"", "-1", "2x", " 2", "99999999999", "0x2"})
    EXPECT_EQ(problem(with(kTorchrun, "RANK", text)), std::string("RANK=") + text + " is not an integer from 0 up");
}

struct Choosing {
  const char* name;
  Environment environment;
  bool has_mpi;
  std::string row;     ///< the expected process group; empty: the choice is refused
  std::string reason;  ///< the expected reason of the choice, or its error
};

const Environment kPmix = {{"PMIX_RANK", "5"}};
const Environment kPmi = {{"PMI_RANK", "5"}};

const Choosing kChoices[] = {
    {"nobody", {}, true, "in_process", "no launcher started ranks: each is a thread of this process"},
    {"nobody_no_mpi", {}, false, "in_process", "no launcher started ranks: each is a thread of this process"},
    {"mpirun", kMpirun, true, "mpi", "mpirun launched the ranks"},
    {"mpirun_no_mpi", kMpirun, false, "",
     "mpirun started this process as rank 5 of 8, and no MPI here; install it and build again, or start the ranks with "
     "torchrun"},
    {"torchrun", kTorchrun, true, "sockets", "torchrun launched the ranks: they connect over Unix sockets"},
    {"torchrun_no_mpi", kTorchrun, false, "sockets", "torchrun launched the ranks: they connect over Unix sockets"},
    {"torchrun_in_mpirun", both(kTorchrun, kMpirun), true, "sockets",
     "torchrun launched the ranks: they connect over Unix sockets"},
    {"srun_pmix", both(kSrun, kPmix), true, "mpi", "srun launched the ranks with a process manager that MPI supports"},
    {"srun_pmi", both(kSrun, kPmi), true, "mpi", "srun launched the ranks with a process manager that MPI supports"},
    {"srun_plain", kSrun, true, "sockets",
     "srun launched the ranks without a process manager that MPI supports (--mpi=pmix): they connect over Unix "
     "sockets"},
    {"srun_no_mpi", both(kSrun, kPmix), false, "sockets",
     "srun launched the ranks, and no MPI here: they connect over Unix sockets"},
};

class Choice : public testing::TestWithParam<Choosing> {};
INSTANTIATE_TEST_SUITE_P(Launches, Choice, testing::ValuesIn(kChoices),
                         [](const auto& param) { return std::string(param.param.name); });

TEST_P(Choice, FollowsTheLauncherAndTheBuild) {
  const Choosing& expected = GetParam();
  ProcessGroupChoice choice;
  const std::string error = error_of([&] {
    choice = choose_process_group(discover(expected.environment), lookup(expected.environment),
                                  expected.has_mpi ? "" : "no MPI here");
  });
  EXPECT_EQ(choice.row, expected.row);
  EXPECT_EQ(expected.row.empty() ? error : choice.reason, expected.reason);
}

Rendezvous rendezvous_of(const Environment& environment) {
  return discover_rendezvous(discover(environment), lookup(environment));
}

TEST(RendezvousDiscovery, ReadsTheVariablesThatNameTheJob) {
  const Environment job = both(kTorchrun, {{"MASTER_ADDR", "node7"},
                                           {"MASTER_PORT", "29500"},
                                           {"TORCHELASTIC_RUN_ID", "a"},
                                           {"TORCHELASTIC_RESTART_COUNT", "2"}});
  EXPECT_EQ(rendezvous_of(job), (Rendezvous{.rank = 5, .size = 8, .job = "a/2///node7/29500/", .host = "node7"}));
  EXPECT_EQ(rendezvous_of(both(kSrun, {{"SLURM_JOB_ID", "71"}, {"SLURM_STEP_ID", "3"}})),
            (Rendezvous{.rank = 5, .size = 8, .job = "//71/3///"}));
}

TEST(RendezvousDiscovery, RanksOnSeveralHostsAreRefused) {
  const auto refusal = [](const Environment& environment) { return error_of([&] { rendezvous_of(environment); }); };
  constexpr const char* kNeedsMpi =
      " started 8 ranks on several hosts; a job over several hosts needs MPI (mpirun, or srun --mpi=pmix), with NCCL "
      "for "
      "GPUs";
  EXPECT_EQ(refusal(with(kTorchrun, "LOCAL_WORLD_SIZE", "4")), std::string("torchrun") + kNeedsMpi);
  EXPECT_EQ(refusal(with(kSrun, "SLURM_NNODES", "2")), std::string("srun") + kNeedsMpi);
  EXPECT_EQ(refusal(with(kSrun, "SLURM_STEP_NUM_NODES", "2")), std::string("srun") + kNeedsMpi);
  // A step on one of the hosts of an allocation.
  EXPECT_EQ(refusal(with(with(kSrun, "SLURM_STEP_NUM_NODES", "1"), "SLURM_NNODES", "4")), "");
  EXPECT_EQ(refusal(with(kTorchrun, "SLURM_NNODES", "4")), "");
}

}  // namespace
}  // namespace fp8lab::comm_test
