#pragma once

#include <cuda.h>

#include <cstdint>

// The copy engine between device and shared memory (TMA, cp.async.bulk), and the barriers in shared memory (mbarrier)
// on which its copies and threads arrive. A barrier is identified by its address; its phases have parities 0, 1, 0, ...
namespace fp8lab::cuda::bulk {

/// A limit for loops that wait for other blocks. What should take microseconds and has not happened after seconds never
/// will, and an error that ends the kernel is better than a GPU that hangs.
class WaitLimit {
 public:
  __device__ void wear() {
    const long long now = clock64();
    if (start_ == 0) start_ = now;
    // A write to address 0 instead of a trap: a trap would leave the branch of a warp group's role, and the compiler
    // assigns registers only if it sees that branch in full.
    if (now - start_ > kLimit) *static_cast<volatile int*>(nullptr) = 0;
  }

 private:
  static constexpr long long kLimit = 1LL << 34;  // cycles
  long long start_ = 0;
};

/// Initialises a barrier; called by one thread, before open_barriers().
__device__ inline void make_barrier(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}
/// Makes initialised barriers visible; called by the same thread, before the __syncthreads() after which other threads
/// use them.
__device__ inline void open_barriers() { asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory"); }

__device__ inline void arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}
/// Arrives, and keeps the phase open until `bytes` bytes have been copied too.
__device__ inline void arrive_with(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes) : "memory");
}
/// Waits until the phase of this parity is complete.
__device__ inline void wait(std::uint32_t barrier, unsigned parity) {
  std::uint32_t over = 0;
  while (over == 0)
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(over)
        : "r"(barrier), "r"(parity)
        : "memory");
}

/// Copies a box of a tensor to shared memory; zeros for what lies beyond the tensor.
__device__ inline void load_box(std::uint32_t to, const CUtensorMap& tensor, int x, int y, int z,
                                std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];\n" ::"r"(to),
      "l"(&tensor), "r"(x), "r"(y), "r"(z), "r"(barrier)
      : "memory");
}
/// Copies `bytes` bytes to shared memory. Here and below, sizes and addresses must be multiples of 16.
__device__ inline void load(std::uint32_t to, const void* from, std::uint32_t bytes, std::uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
__device__ inline void store(void* to, std::uint32_t from, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}
/// Adds FP32 elements in shared memory to those in device memory; each sum is rounded to nearest even.
__device__ inline void add(float* to, std::uint32_t from, std::uint32_t bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}
/// Commits this thread's stores and additions as a group.
__device__ inline void commit() { asm volatile("cp.async.bulk.commit_group;\n" ::: "memory"); }
/// Waits until all of this thread's groups have read their shared memory.
__device__ inline void wait_until_read() { asm volatile("cp.async.bulk.wait_group.read 0;\n" ::: "memory"); }
/// Waits until all of this thread's groups are written to device memory.
__device__ inline void wait_until_written() { asm volatile("cp.async.bulk.wait_group 0;\n" ::: "memory"); }
/// Reads a count that other blocks set. What they did before setting it is in device memory once the count is seen. The
/// read is relaxed, so this thread's ordinary reads are not ordered after it; that is enough for the copy engine's
/// additions, which are performed in device memory.
__device__ inline unsigned see_count(const unsigned* count) {
  unsigned now;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];\n" : "=r"(now) : "l"(count) : "memory");
  return now;
}
__device__ inline void wait_for_count(const unsigned* count, unsigned wanted) {
  WaitLimit wait_limit;
  while (see_count(count) != wanted) wait_limit.wear();
}
/// Sets the count (release): makes everything that this thread has done visible to threads that wait for `value`.
__device__ inline void set_count(unsigned* count, unsigned value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;\n" ::"l"(count), "r"(value) : "memory");
}
/// Orders the copy engine's later accesses to device memory after this thread's ordinary ones.
__device__ inline void order_after_accesses() { asm volatile("fence.proxy.async.global;\n" ::: "memory"); }

}  // namespace fp8lab::cuda::bulk
