#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace fp8lab {

/// This process's place among the ranks, as the launcher set it.
struct Launch {
  /// "torchrun", "mpirun" or "srun"; empty: no launcher, and this process is the only rank.
  std::string_view launcher;
  int rank = 0;
  int size = 1;
  int local_rank = 0;  ///< among the ranks of this machine
};

/// Returns the value of an environment variable, or null if it is not set.
using EnvironmentLookup = std::function<const char*(const char* name)>;

/// Reads what torchrun (RANK, WORLD_SIZE, LOCAL_RANK), mpirun (OMPI_COMM_WORLD_RANK, ...) and srun (SLURM_PROCID,
/// SLURM_STEP_NUM_TASKS, SLURM_LOCALID) set. Throws Error if two of them disagree, one is incomplete, or a value is
/// invalid. Exception: a Slurm step of another size than mpirun's or torchrun's is the step in which their daemons run,
/// so it is ignored.
Launch discover_launch(const EnvironmentLookup& variable);

inline constexpr std::string_view kSeveralHosts =
    "a job over several hosts needs MPI (mpirun, or srun --mpi=pmix), with NCCL for GPUs";

/// By what the processes of a launch on one host find each other.
struct Rendezvous {
  int rank = 0;
  int size = 1;
  std::string job = {};   ///< distinguishes jobs of one user
  std::string host = {};  ///< host of rank 0, for messages; may be empty

  bool operator==(const Rendezvous&) const = default;
};

/// Reads the variables that name the job: of torchrun (TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT), of srun
/// (SLURM_JOB_ID, SLURM_STEP_ID), and MASTER_ADDR with MASTER_PORT, which count as names only. Throws Error if the
/// ranks are on several hosts (LOCAL_WORLD_SIZE of torchrun, SLURM_STEP_NUM_NODES or else SLURM_NNODES of srun).
Rendezvous discover_rendezvous(const Launch& launch, const EnvironmentLookup& variable);

/// The row of process_groups.h by which the ranks of a launched process run.
struct ProcessGroupChoice {
  std::string_view row;
  std::string reason;  ///< reason of the choice, in words
};

/// in_process without a launcher, mpi under mpirun, sockets under torchrun. Under srun, mpi if this build has it
/// and the step offers a process manager (PMIX_RANK or PMI_RANK is set), else sockets. `no_mpi` is the reason why mpi
/// is unavailable, empty if it is available. Throws Error under mpirun without MPI.
ProcessGroupChoice choose_process_group(const Launch& launch, const EnvironmentLookup& variable,
                                        std::string_view no_mpi);

}  // namespace fp8lab
