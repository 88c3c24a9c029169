#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// Which GPUs of this machine the running arms use. Rank r of an arm uses the r-th GPU from its first one, and continues
// from the beginning after the last GPU.
namespace fp8lab {

/// The most arms that run on one GPU at a time. The driver opens GPUs for one process after the other, which takes 0.2
/// to 0.4 s for each (H100), and a GPU serves one process at a time, so that more arms end no sooner.
inline constexpr int kMostArmsPerGpu = 4;

/// What an arm needs.
struct GpuNeed {
  int ranks = 1;
  double rank_bytes = 0;     ///< device memory of a rank
  double process_bytes = 0;  ///< what the driver keeps on each GPU that a process has open
  int most_arms = kMostArmsPerGpu;
};

class GpuLoad {
 public:
  /// `memory`: bytes of each GPU.
  explicit GpuLoad(const std::vector<std::int64_t>& memory);

  /// An arm that runs, its first rank on GPU `first`.
  void add(int first, const GpuNeed& need);
  /// A process that runs no arm and has GPUs open.
  void add_idle(const GpuNeed& need);
  /// The GPU on which to start the first rank of one more arm: among GPUs with room for it, the GPU with the fewest
  /// arms; nothing if there is no room.
  std::optional<int> place(const GpuNeed& need) const;

 private:
  struct Gpu {
    double free_bytes;
    int arms = 0;
  };
  /// The ranks of the arm on each GPU.
  std::vector<int> ranks_by_gpu(int first, int ranks) const;

  std::vector<Gpu> gpus_;
};

/// CUDA_VISIBLE_DEVICES for a process whose GPU 0 is this process's GPU `first` of `count`: `visible`, the variable as
/// it is set here, or null, beginning with that one.
std::string visible_gpus(const char* visible, int count, int first);

}  // namespace fp8lab
