#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/cuda_check.h"

// A ring of rows in shared memory: the copy engine loads each row in full, several ahead of the block that reads them,
// which costs the block's threads neither registers nor instructions.
namespace fp8lab::cuda {

inline constexpr int kMostStages = 4;

/// Shared memory that a block uses in addition to its ring.
inline constexpr std::size_t kRingReserve = 2048;

/// True if a block may have a ring of slots of `bytes`. GPUs give a block `shared_bytes`, from 99 to 227 KiB.
constexpr bool ring_fits(std::size_t bytes, std::size_t shared_bytes) {
  return 2 * bytes + kRingReserve <= shared_bytes;
}

/// How many slots of `bytes` a block's ring has: enough to keep a multiprocessor's loads in flight, as far as they fit,
/// between 2 and kMostStages.
constexpr int ring_stages(std::size_t bytes, std::size_t shared_bytes) {
  constexpr std::size_t kAim = std::size_t{104} << 10;
  const std::size_t stages = (kAim < shared_bytes - kRingReserve ? kAim : shared_bytes - kRingReserve) / bytes;
  return stages < 2 ? 2 : stages > kMostStages ? kMostStages : static_cast<int>(stages);
}
static_assert(ring_stages(26624, 227 << 10) == 4 && ring_stages(26624, 99 << 10) == 3);
static_assert(ring_fits(49664, 99 << 10) && !ring_fits(49665, 99 << 10));

/// Allows `kernel`, of `threads` threads, the largest ring that a block may have, and returns how many of its blocks a
/// multiprocessor has registers for.
inline int ring_blocks(const void* kernel, int threads, std::size_t shared_bytes) {
  int blocks = 0;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared_bytes - kRingReserve)),
             "cudaFuncSetAttribute");
  cuda_check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, 0),
             "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  return blocks;
}

/// `index` counts the rows that a block reads, from 0; row `index` goes through slot index % stages. A slot may be
/// fetched into again only after a barrier of the block behind all of its reads.
class RowRing {
 public:
  /// `slots` is dynamic shared memory of stages * bytes; `full` has one barrier per slot.
  __device__ RowRing(std::byte* slots, std::uint64_t* full, int stages, unsigned bytes)
      : slots_(slots), full_(full), stages_(stages), bytes_(bytes) {}

  /// Initialises the barriers; called by all threads of the block, before anything else.
  __device__ void open() const {
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < stages_; ++stage)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(full_ + stage)));
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
  }
  /// Starts loading slot index % stages, called by one thread: `parts` are rows of equal length that fill the slot side
  /// by side.
  template <int Parts>
  __device__ void fetch(int index, const std::byte* const (&parts)[Parts]) const {
    const int stage = index % stages_;
    const std::uint32_t barrier = address(full_ + stage);
    const unsigned part_bytes = bytes_ / Parts;
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes_) : "memory");
#pragma unroll
    for (int part = 0; part < Parts; ++part)
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                       address(slots_ + stage * bytes_ + part * part_bytes)),
                   "l"(parts[part]), "r"(part_bytes), "r"(barrier)
                   : "memory");
  }
  /// Waits for row `index` and returns it; called by every thread.
  __device__ const std::byte* wait(int index) const {
    const int stage = index % stages_;
    const std::uint32_t barrier = address(full_ + stage), parity = index / stages_ & 1;
    std::uint32_t done = 0;
    while (done == 0)
      asm volatile(
          "{\n"
          ".reg .pred p;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
          "selp.u32 %0, 1, 0, p;\n"
          "}\n"
          : "=r"(done)
          : "r"(barrier), "r"(parity)
          : "memory");
    return slots_ + stage * bytes_;
  }
  __device__ int stages() const { return stages_; }

 private:
  __device__ static std::uint32_t address(const void* shared) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  }

  std::byte* slots_;
  std::uint64_t* full_;
  int stages_;
  unsigned bytes_;
};

}  // namespace fp8lab::cuda
