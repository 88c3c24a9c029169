#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace fp8lab {

/// What a launcher says of the place of this process among the ranks.
struct Launch {
  std::string_view
      launcher;  ///< "torchrun", "mpirun" or "srun"; empty: nobody launched ranks, there is this process alone
  int rank = 0;
  int size = 1;
  int local_rank = 0;  ///< among the ranks of this machine
};

/// The value of a variable of the environment, null where it is not set.
using EnvironmentLookup = std::function<const char*(const char* name)>;

/// Reads what torchrun (RANK, WORLD_SIZE, LOCAL_RANK), mpirun (OMPI_COMM_WORLD_RANK, ...) and srun (SLURM_PROCID,
/// SLURM_STEP_NUM_TASKS, SLURM_LOCALID) set. Throws Error where two of them disagree, one is incomplete, or a value is
/// not what it should be. A Slurm step of another size than mpirun's or torchrun's is the one their daemons run in,
/// and no launcher of ranks.
Launch discover_launch(const EnvironmentLookup& variable);

/// Where the processes of a launch find each other.
struct Rendezvous {
  int rank = 0;
  int size = 1;
  std::string host = {};  ///< of rank 0
  int port = 0;
  bool port_taken = false;  ///< by the launcher itself; the next ones are meant
  std::string job = {};     ///< tells jobs apart that share a host
  std::string secret = {};  ///< what ranks must know to connect; empty: nothing

  bool operator==(const Rendezvous&) const = default;
};

/// Reads MASTER_ADDR and MASTER_PORT, which torchrun sets and srun's user may; of torchrun also whether its agent
/// listens there (TORCHELASTIC_USE_AGENT_STORE), and what names the job; and FP8LAB_JOB_SECRET. Throws Error where one
/// is missing or is no port, or the secret is short.
Rendezvous discover_rendezvous(const Launch& launch, const EnvironmentLookup& variable);

/// The row of process_groups.h that a launched process's ranks are of.
struct ProcessGroupChoice {
  std::string_view row;
  std::string reason;  ///< in words
};

/// in_process where nobody launched ranks, mpi under mpirun, sockets under torchrun; under srun mpi where this build
/// has it and the step offers it a process manager (PMIX_RANK or PMI_RANK is set), else sockets. `no_mpi`: why mpi is
/// unavailable, empty if it is not. Throws Error under mpirun without MPI.
ProcessGroupChoice choose_process_group(const Launch& launch, const EnvironmentLookup& variable,
                                        std::string_view no_mpi);

}  // namespace fp8lab
