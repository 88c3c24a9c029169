#include <algorithm>

#include "backend/cuda/attention/attention_tensor.h"
#include "backend/cuda/attention/device/attention_backward_softmax.cuh"
#include "backend/cuda/attention/device/attention_backward_tiles.cuh"
#include "backend/cuda/attention/device/attention_matrix.cuh"
#include "backend/cuda/attention/tensor_map.h"
#include "backend/cuda/context.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/bulk_copy.cuh"

// The gradient of attention on Hopper's matrix units: five products for each tile of 128 keys by 64 queries. Blocks
// take jobs. A job is a tile of keys, whose sums of dK and dV stay in registers, with the queries of every head that
// shares the keys. In each block two warp groups of 64 keys each multiply. In a third warp group one warp loads tiles
// of queries, and two warps add what each tile of keys contributes to dQ to sums in device memory.
//
// Those sums have a fixed order, whatever the timing: tiles of keys are added to a tile of queries one after another,
// and each waits until the one before it has been added. Under the causal mask the order goes down from the diagonal.
// Jobs that start together reach a tile of queries in that order, so that none of them waits. Deadlock is impossible: a
// job waits only for jobs of lower numbers, and jobs are taken in the order of their numbers, so those are running or
// done. Runs are bitwise equal, and no S x S matrix is stored.
//
// Without casts P and dS are rounded to bf16, by at most 2^-8 of themselves; quantized data and cast values are exact
// in bf16. Products are summed in FP32. The sum of Q K^T starts at minus lse, the sum of dO V^T at minus the sum of dO
// * O. The arithmetic equals the `cpu` kernel's except for the order of sums.
namespace fp8lab::cuda {
namespace {

using namespace attention_backward;

/// A warp group multiplies 64 keys of each job with the job's tiles of queries. The matrix units always have the next
/// product queued: while they compute dP, the CUDA cores exponentiate the logits; while they add to dV, the CUDA cores
/// compute dS; and while they add to dK and compute the next logits, the CUDA cores pass dQ on.
template <int Dim, Casts kCasts, bool Drops>
class Multiplier {
 public:
  __device__ Multiplier(const BackwardLaunch& launch, int group, const Places<Dim>& places, const Barriers& barriers)
      : launch_(launch), places_(places), barriers_(barriers), group_(group) {
    const int thread = static_cast<int>(threadIdx.x) % wgmma::kGroupThreads, lane = thread % 32;
    group_rows_ = static_cast<std::uint32_t>(group * 64 * wgmma::kRowBytes);
    k_columns_ = places.k + static_cast<std::uint32_t>(Dim == 128 ? group * kKeys * wgmma::kRowBytes : group * Dim);
    slope_place_ = wgmma::unit_offset(64 * group + 16 * (thread / 32) + lane % 16, lane / 16);
    sums_place_ = places.sums(group) + static_cast<std::uint32_t>(thread) * 16;
    zero_ = static_cast<std::uint32_t>(launch.call.shape.seq >> 40);
  }

  __device__ void run() {
    for (unsigned round = 0;; ++round) {
      // Equal in all threads of a warp; after the reduction the compiler treats the value as warp-uniform.
      const int number = __reduce_max_sync(0xFFFFFFFFu, await_job(barriers_, round));
      if (number >= launch_.jobs) return;
      multiply(Job(launch_, number));
    }
  }

 private:
  __device__ void multiply(const Job& job) {
    const TensorBackward& call = launch_.call;
    const AttentionShape& shape = call.shape;
    Softmax<kCasts, Drops> softmax(call, job.first_key() + 64 * group_);
    float grad_k[Dim / 2] = {}, grad_v[Dim / 2] = {};
    float sums[Dim / 4];
    Elements p, grad;
    Fragments fresh;  // dS of the current tile
    int m = job.first_query_tile, member = 0;
    const int last = t_ + job.members * (job.end_query_tile - m) - 1;

    // From the logits of a tile, whose product is still in flight, to its dS. At the end no product is in flight. Order
    // matters twice. Registers: a product in flight owns its result registers, so wgmma::wait() and settle() come
    // before each use. Shared memory: products read their operands while they are in flight, so a stage is freed only
    // after wait<0>().
    const auto differentiate = [&](bool first) {
      const int stage = t_ % kGradStages;
      bulk::wait(Barriers::at(barriers_.grad_o_here[stage]), static_cast<unsigned>(t_ / kGradStages) & 1);
      if constexpr (!Drops) softmax.start(grad, places_.dots(q_slot_.stage));
      wgmma::fence();
      multiply_rows<Dim, kKeys, kQueries>(grad, places_.v + group_rows_, places_.grad_o(stage), !Drops);
      wgmma::commit();
      if (!first) announce_sums();
      wgmma::wait<1>();
      wgmma::settle(p);
      if (!first) free_last_queries();
      Fragments weights;
      softmax.exponentiate(p, weights, m * kQueries, job, member);
      wgmma::fence();
      add_fragments<kQueries, kQueries>(grad_v, weights, places_.grad_o(stage));
      wgmma::commit();
      wgmma::wait<1>();
      wgmma::settle(grad);
      softmax.differentiate(p, grad, fresh, places_.dots(q_slot_.stage));
#pragma unroll
      for (int step = 0; step < kQueries / wgmma::kStepCols; ++step)
        wgmma::store_fragment((places_.slopes(t_) + slope_place_) ^ static_cast<std::uint32_t>(2 * step) << 4,
                              fresh[step]);
      wgmma::publish();
      // Barrier of the two warp groups, since each reads the dS that the other wrote. It also ensures that both have
      // finished with the dS of two tiles ago, whose place in shared memory the next tile reuses.
      asm volatile("bar.sync 1, %0;\n" ::"n"(kGroups * wgmma::kGroupThreads) : "memory");
      wgmma::wait<0>();
      arrive(barriers_.grad_o_free[stage]);
      if (++m == job.end_query_tile) {
        m = job.first_query_tile;
        ++member;
      }
    };

    wgmma::settle(grad_k);
    wgmma::settle(grad_v);
    multiply_queries(softmax, p);
    wgmma::wait<0>();  // the compiler would always put a wait here
    differentiate(true);
    while (t_ < last) {
      multiply_slopes(sums, grad_k, fresh);
      multiply_queries(softmax, p);
      wgmma::wait<2>();
      pass_on(sums);
      ++t_;
      differentiate(false);
    }
    multiply_slopes(sums, grad_k, fresh);
    wgmma::wait<1>();
    pass_on(sums);
    announce_sums();
    ++t_;
    wgmma::wait<0>();
    wgmma::settle(grad_k);
    wgmma::settle(grad_v);
    free_last_queries();
    arrive(barriers_.keys_free);
    store_sums(grad_k, call.grad_k, shape, job.sequence, job.kv_head, softmax.group_key,
               joint_factor(slope_factor(call), scale_inv_of(call.q), shape.softmax_scale));
    store_sums(grad_v, call.grad_v, shape, job.sequence, job.kv_head, softmax.group_key,
               joint_factor(PairCast(call.s).scale_inv(), scale_inv_of(call.grad_o)));
    if constexpr (kCasts != Casts::kNone) {
      softmax.s_cast.store_amax(call.s);
      softmax.grad_p_cast.store_amax(call.grad_p);
    }
  }

  /// Starts the product for the logits of the next tile.
  template <class Softmax>
  __device__ void multiply_queries(const Softmax& softmax, Elements& p) const {
    bulk::wait(Barriers::at(barriers_.q_here[q_slot_.stage]), q_slot_.parity);
    softmax.start(p, places_.rows(q_slot_.stage));
    wgmma::fence();
    multiply_rows<Dim, kKeys, kQueries>(p, places_.k + group_rows_, places_.q(q_slot_.stage), true);
    wgmma::commit();
  }
  /// Starts two products: dQ of both groups' keys for this group's columns, then the addition to dK.
  __device__ void multiply_slopes(float (&sums)[Dim / 4], float (&grad_k)[Dim / 2], const Fragments& fresh) {
    wgmma::fence();
#pragma unroll
    for (int step = 0; step < kKeys / wgmma::kStepCols; ++step) {
      const std::uint32_t rows = static_cast<std::uint32_t>(step) * wgmma::kStepCols * wgmma::kRowBytes;
      wgmma::multiply_columns(sums, wgmma::across_rows(places_.slopes(t_), rows, kSlopesBytes),
                              wgmma::across_rows(k_columns_, rows, kKeys * wgmma::kRowBytes), step > 0);
    }
    wgmma::commit();
    // Copies dS out of registers that the next logits will overwrite, by an operation that the compiler cannot remove.
    Fragments slopes;
#pragma unroll
    for (int i = 0; i < kElements / 2; ++i)
      asm volatile("xor.b32 %0, %1, %2;\n" : "=r"(slopes[i / 4][i % 4]) : "r"(fresh[i / 4][i % 4]), "r"(zero_));
    wgmma::fence();
    add_fragments<kQueries, kQueries>(grad_k, slopes, places_.q(q_slot_.stage));
    wgmma::commit();
    q_slot_.advance();
  }
  __device__ void pass_on(float (&sums)[Dim / 4]) const {
    wgmma::settle(sums);
    bulk::wait(Barriers::at(barriers_.sums_free[group_]), static_cast<unsigned>(t_ + 1) & 1);
#pragma unroll
    for (int block = 0; block < Dim / 16; ++block)
      store_four(sums_place_ + static_cast<std::uint32_t>(block * wgmma::kGroupThreads * 16), sums[4 * block],
                 sums[4 * block + 1], sums[4 * block + 2], sums[4 * block + 3]);
  }
  __device__ void announce_sums() const {
    wgmma::publish();
    arrive(barriers_.sums_here[group_]);
  }
  __device__ void free_last_queries() const {
    arrive(barriers_.q_free[(q_slot_.stage + kQueryStages - 1) % kQueryStages]);
  }
  /// Arrives for the warp once all of its lanes are done.
  __device__ static void arrive(const std::uint64_t& barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) bulk::arrive(Barriers::at(barrier));
  }

  const BackwardLaunch& launch_;
  const Places<Dim>& places_;
  const Barriers& barriers_;
  int group_;
  std::uint32_t group_rows_;
  /// Address of the columns of K that give this group's columns of dQ: a panel of K, or half of one.
  std::uint32_t k_columns_;
  /// Address of the lane's row of the first fragment of dS. Units of a row are permuted by exclusive or, so exclusive
  /// or also finds the other fragments.
  std::uint32_t slope_place_;
  std::uint32_t sums_place_;
  std::uint32_t zero_;  ///< always 0, which the compiler does not know
  RingSlot<kQueryStages> q_slot_;
  int t_ = 0;  ///< number of tiles multiplied so far, over all jobs
};

template <int Dim, Casts kCasts, bool Drops>
__global__ void __launch_bounds__(kBackwardThreads, 1)
    attention_tensor_backward_kernel(const __grid_constant__ BackwardLaunch launch) {
  extern __shared__ __align__(1024) std::byte tiles[];
  Barriers& barriers = *reinterpret_cast<Barriers*>(tiles + Places<Dim>::kBytes);
  const Places<Dim> places(tiles);
  if (threadIdx.x == 0) barriers.make();
  __syncthreads();
  // Equal in all threads of a warp; after the reduction the compiler treats the value as warp-uniform.
  const int group = __reduce_max_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / wgmma::kGroupThreads);
  if (group == kGroups) {
    wgmma::give_registers<24>();
    const int warp = static_cast<int>(threadIdx.x) % wgmma::kGroupThreads / 32;
    if (threadIdx.x % 32 == 0) {
      if (warp == 0) load_tiles<Dim>(launch, places, barriers);
      if (warp == 1 || warp == 2) add_grad_q<Dim>(launch, warp - 1, places, barriers);
    }
  } else {
    wgmma::take_registers<240>();
    Multiplier<Dim, kCasts, Drops>(launch, group, places, barriers).run();
  }
}

/// Created once per GPU: allows the kernel its dynamic shared memory.
template <int Dim, Casts kCasts, bool Drops>
struct Prepared {
  explicit Prepared(CudaContext&) {
    cuda_check(cudaFuncSetAttribute(attention_tensor_backward_kernel<Dim, kCasts, Drops>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<Dim>),
               "cudaFuncSetAttribute");
  }
};

template <int Dim, Casts kCasts, bool Drops>
void launch(const BackwardLaunch& job, CudaContext& context) {
  context.kept<Prepared<Dim, kCasts, Drops>>();
  attention_tensor_backward_kernel<Dim, kCasts, Drops>
      <<<static_cast<unsigned>(std::min(job.jobs, context.multiprocessors())), kBackwardThreads, kSharedBytes<Dim>,
         context.stream()>>>(job);
  cuda_check_launch("attention_tensor_backward_kernel");
}

template <int Dim, Casts kCasts>
void launch(const BackwardLaunch& job, CudaContext& context) {
  job.call.shape.dropout > 0.0f ? launch<Dim, kCasts, true>(job, context) : launch<Dim, kCasts, false>(job, context);
}

template <int Dim>
void launch(const BackwardLaunch& job, CudaContext& context) {
  const AttentionRole &s = job.call.s, &grad_p = job.call.grad_p;
  if (s.scale == nullptr && grad_p.scale == nullptr) return launch<Dim, Casts::kNone>(job, context);
  const bool usual =
      s.scale != nullptr && s.dtype == DType::kE4M3 && grad_p.scale != nullptr && grad_p.dtype == DType::kE5M2;
  usual ? launch<Dim, Casts::kUsual>(job, context) : launch<Dim, Casts::kAny>(job, context);
}

}  // namespace

void launch_tensor_backward(const TensorBackward& call, CudaContext& context) {
  const AttentionShape& shape = call.shape;
  const int key_tiles = static_cast<int>((shape.seq + kKeys - 1) / kKeys);
  const BackwardLaunch job{.call = call,
                           .q = head_rows_map(call.q, shape, shape.heads, kQueries),
                           .k = head_rows_map(call.k, shape, shape.kv_heads, kKeys),
                           .v = head_rows_map(call.v, shape, shape.kv_heads, kKeys),
                           .grad_o = head_rows_map(call.grad_o, shape, shape.heads, kQueries),
                           .key_tiles = key_tiles,
                           .query_tiles = static_cast<int>((shape.seq + kQueries - 1) / kQueries),
                           .jobs = static_cast<int>(key_tiles * shape.kv_heads * shape.batch)};
  prepare_tensor_backward(call, context);
  shape.head_dim == 128 ? launch<128>(job, context) : launch<64>(job, context);
  finish_tensor_backward(call, context);
}

}  // namespace fp8lab::cuda
