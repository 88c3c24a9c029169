#pragma once

#include <functional>
#include <string_view>

namespace fp8lab {

/// What a launcher told this process of its place among the ranks.
struct Launch {
  std::string_view
      launcher;  ///< "torchrun", "mpirun" or "srun"; empty: nobody launched ranks, there is this process alone
  int rank = 0;
  int size = 1;
  int local_rank = 0;  ///< among the ranks of this machine
};

/// The value of a variable of the environment, null where it is not set.
using Variable = std::function<const char*(const char* name)>;

/// Reads what torchrun (RANK, WORLD_SIZE, LOCAL_RANK), mpirun (OMPI_COMM_WORLD_RANK, ...) and srun (SLURM_PROCID,
/// SLURM_STEP_NUM_TASKS, SLURM_LOCALID) set. Throws Error where two of them disagree, one is incomplete, or a value is
/// not what it should be. A Slurm step of another size than mpirun's or torchrun's is the one their daemons run in,
/// and no launcher of ranks.
Launch discover_launch(const Variable& variable);

}  // namespace fp8lab
