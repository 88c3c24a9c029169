#include "comm/launch.h"

#include <fmt/core.h>

#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <string>

#include "core/check.h"

namespace fp8lab {
namespace {

struct Launcher {
  std::string_view name;
  const char* rank;
  const char* size;
  const char* local_rank;
};

// If several agree, the first one is reported.
constexpr std::array kLaunchers = {
    Launcher{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"},
    Launcher{"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    Launcher{"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"},
};
constexpr const Launcher& kSlurm = kLaunchers.back();

std::optional<int> number(const EnvironmentLookup& variable, const char* name) {
  const char* text = variable(name);
  if (text == nullptr) return std::nullopt;
  int value = -1;
  const char* end = text + std::strlen(text);
  const auto [last, error] = std::from_chars(text, end, value);
  if (error != std::errc() || last != end || value < 0)
    fail(fmt::format("{}={} is not an integer from 0 up", name, text));
  return value;
}

std::optional<Launch> set_by(const Launcher& launcher, const EnvironmentLookup& variable) {
  const std::optional<int> rank = number(variable, launcher.rank);
  const std::optional<int> size = number(variable, launcher.size);
  // A Slurm batch script has SLURM_PROCID set although it is no step of several tasks.
  if (!size && (!rank || &launcher == &kSlurm)) return std::nullopt;
  if (!rank || !size)
    fail(fmt::format("{} is set and {} is not; {} sets both", rank ? launcher.rank : launcher.size,
                     rank ? launcher.size : launcher.rank, launcher.name));
  if (*rank >= *size) fail(fmt::format("{}={} is not below {}={}", launcher.rank, *rank, launcher.size, *size));
  return Launch{.launcher = launcher.name,
                .rank = *rank,
                .size = *size,
                .local_rank = number(variable, launcher.local_rank).value_or(0)};
}

std::string describe(const Launcher& launcher, const Launch& launch) {
  return fmt::format("{} ({}, {}) says rank {} of {}", launch.launcher, launcher.rank, launcher.size, launch.rank,
                     launch.size);
}

}  // namespace

Launch discover_launch(const EnvironmentLookup& variable) {
  const Launcher* found_by = nullptr;
  Launch found;
  for (const Launcher& launcher : kLaunchers) {
    const std::optional<Launch> launch = set_by(launcher, variable);
    if (!launch) continue;
    if (found_by == nullptr) {
      found_by = &launcher;
      found = *launch;
      continue;
    }
    const bool of_daemons = &launcher == &kSlurm && launch->size != found.size;
    if (of_daemons || (launch->rank == found.rank && launch->size == found.size)) continue;
    fail(fmt::format("{}, but {}; unset the variables of the one that did not start this process",
                     describe(*found_by, found), describe(launcher, *launch)));
  }
  return found;
}

Rendezvous discover_rendezvous(const Launch& launch, const EnvironmentLookup& variable) {
  const int ranks_here = number(variable, "LOCAL_WORLD_SIZE").value_or(launch.size);
  const std::optional<int> hosts_of_step = number(variable, "SLURM_STEP_NUM_NODES");
  const int hosts = hosts_of_step ? *hosts_of_step : number(variable, "SLURM_NNODES").value_or(1);
  if (launch.launcher == "torchrun" ? ranks_here < launch.size : hosts > 1)
    fail(fmt::format("{} started {} ranks on several hosts; {}", launch.launcher, launch.size, kSeveralHosts));
  const auto text = [&](const char* name) {
    const char* value = variable(name);
    return std::string(value == nullptr ? "" : value);
  };
  Rendezvous rendezvous{.rank = launch.rank, .size = launch.size, .host = text("MASTER_ADDR")};
  for (const char* name : {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID", "SLURM_STEP_ID",
                           "MASTER_ADDR", "MASTER_PORT"})
    rendezvous.job += text(name) + '/';
  return rendezvous;
}

ProcessGroupChoice choose_process_group(const Launch& launch, const EnvironmentLookup& variable,
                                        std::string_view no_mpi) {
  if (launch.launcher.empty()) return {"in_process", "no launcher started ranks: each is a thread of this process"};
  if (launch.launcher == "torchrun") return {"sockets", "torchrun launched the ranks: they connect over Unix sockets"};
  if (launch.launcher == "mpirun") {
    if (!no_mpi.empty())
      fail(fmt::format(
          "mpirun started this process as rank {} of {}, and {}; install it and build again, or start the ranks "
          "with torchrun",
          launch.rank, launch.size, no_mpi));
    return {"mpi", "mpirun launched the ranks"};
  }
  const std::string started = fmt::format("{} launched the ranks", launch.launcher);
  if (!no_mpi.empty()) return {"sockets", fmt::format("{}, and {}: they connect over Unix sockets", started, no_mpi)};
  if (variable("PMIX_RANK") == nullptr && variable("PMI_RANK") == nullptr)
    return {"sockets",
            started + " without a process manager that MPI supports (--mpi=pmix): they connect over Unix sockets"};
  return {"mpi", started + " with a process manager that MPI supports"};
}

}  // namespace fp8lab
