#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/runs.cuh"
#include "backend/cuda/device/sums.cuh"
#include "backend/cuda/experts/device/numbers.cuh"
#include "backend/cuda/kernels.h"
#include "core/elementary.h"

// The router. A warp has one token: the logits of a token are few, and all tokens' logits are a small part of what the
// experts read.
namespace fp8lab::cuda {
namespace {

constexpr int kWarps = 8;  ///< tokens per block
constexpr unsigned kAllLanes = 0xFFFFFFFFu;

/// A number that is larger if the logit of an expert is chosen earlier: it has the logit in the high half, so that NaN
/// is above all numbers and -0 equals 0, and lower experts above higher ones in the low half. Neither 0 nor ~0.
__device__ std::uint64_t key_of(float logit, std::uint32_t expert) {
  constexpr std::uint32_t kSign = 0x80000000u, kNaN = 0xFFFFFFFEu;
  const std::uint32_t bits = float_bits(logit == 0.0f ? 0.0f : logit);
  std::uint32_t order = (bits & kSign) != 0 ? ~bits : bits | kSign;
  if (logit != logit) order = kNaN;
  return static_cast<std::uint64_t>(order) << 32 | ~expert;
}
__device__ std::int64_t expert_of(std::uint64_t key) {
  return static_cast<std::int64_t>(~static_cast<std::uint32_t>(key));
}

__device__ std::uint64_t largest_of_warp(std::uint64_t key) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const std::uint64_t other = __shfl_xor_sync(kAllLanes, key, distance);
    key = other > key ? other : key;
  }
  return key;
}

struct Router {
  Elements logits;
  std::int64_t tokens;
  std::int64_t experts;
  Numbers chosen;
  Floats weights;
  std::int64_t choices;
  bool sigmoid;
  float scale;
  Floats slopes;
  const float* biases;  ///< null: none
  std::int64_t groups;  ///< 1: every expert can be chosen
  std::int64_t group_size;
  std::int64_t top_groups;
  float* counts;  ///< null: nothing is counted

  __device__ float logit(std::int64_t token, std::int64_t expert) const {
    return load1(logits.data, logits.dtype, token * logits.row_stride + expert * logits.col_stride);
  }
  /// What the choice follows.
  __device__ float score(std::int64_t token, std::int64_t expert) const {
    const float of_expert = logit(token, expert);
    if (biases != nullptr) return fp8lab::sigmoid(of_expert) + biases[expert];
    return groups > 1 ? fp8lab::sigmoid(of_expert) : of_expert;
  }
};

/// The largest key below `before` among the keys of experts [begin, end) whose group is open: a bit of `open` for each.
__device__ std::uint64_t largest_key(const Router& args, std::int64_t token, std::int64_t begin, std::int64_t end,
                                     unsigned open, std::uint64_t before, int lane) {
  std::uint64_t best = 0;
  for (std::int64_t e = begin + lane; e < end; e += 32) {
    if (args.groups > 1 && (open >> (e / args.group_size) & 1u) == 0) continue;
    const std::uint64_t key = key_of(args.score(token, e), static_cast<std::uint32_t>(e));
    if (key < before && key > best) best = key;
  }
  return largest_of_warp(best);
}

/// A bit for each group whose experts can be chosen. Each thread of the warp keeps the key of one group.
__device__ unsigned open_groups(const Router& args, std::int64_t token, int lane) {
  if (args.groups == 1) return 1u;
  std::uint64_t own = 0;
  for (std::int64_t g = 0; g < args.groups; ++g) {
    const std::int64_t begin = g * args.group_size, end = begin + args.group_size;
    const std::uint64_t first = largest_key(args, token, begin, end, kAllLanes, ~std::uint64_t{0}, lane);
    const std::uint64_t second = largest_key(args, token, begin, end, kAllLanes, first, lane);
    if (lane == g)
      own = key_of(args.score(token, expert_of(first)) + args.score(token, expert_of(second)),
                   static_cast<std::uint32_t>(g));
  }
  std::uint64_t last = ~std::uint64_t{0};
  for (std::int64_t i = 0; i < args.top_groups; ++i) last = largest_of_warp(own < last ? own : 0);
  return __ballot_sync(kAllLanes, own >= last);
}

// Each choice is the largest key below the one before, so that nothing records which experts are taken.
__global__ void __launch_bounds__(32 * kWarps) route_kernel(const Router args) {
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (token >= args.tokens) return;
  const unsigned open = open_groups(args, token, lane);
  std::uint64_t best = ~std::uint64_t{0};
  float sum = 0.0f, largest = 0.0f;
  for (std::int64_t k = 0; k < args.choices; ++k) {
    best = largest_key(args, token, 0, args.experts, open, best, lane);
    const float logit = args.logit(token, expert_of(best));
    if (k == 0) largest = logit;
    const float weight = args.sigmoid ? fp8lab::sigmoid(logit) : exponential(logit - largest);
    sum += weight;
    if (lane != 0) continue;
    args.chosen.at(token, k) = static_cast<std::int32_t>(expert_of(best));
    args.weights.at(token, k) = weight;
    if (args.sigmoid) args.slopes.at(token, k) = fp8lab::sigmoid(-logit);
    // Sums of integers below 2^24 are the same in every order.
    if (args.counts != nullptr) atomicAdd(args.counts + expert_of(best), 1.0f);
  }
  __syncwarp();
  for (std::int64_t k = lane; k < args.choices; k += 32)
    args.weights.at(token, k) = args.weights.at(token, k) / sum * args.scale;
}

struct RouterGradient {
  Numbers chosen;
  Floats weights;
  Floats slopes;  ///< data is null: all are 1
  float scale;
  Floats grad_weights;
  std::int64_t tokens;
  std::int64_t choices;
  std::int64_t experts;
  Elements grad_logits;
  Elements logits;  ///< data is null: no auxiliary loss
  const float* counts;
  float aux;
  float even_count;  ///< even_count(args)
  bool sigmoid;
};

/// A token's part of the auxiliary loss. `thread`: in the token's warp; all threads of it call the constructor.
struct AuxiliaryLoss {
  const RouterGradient& args;
  std::int64_t token;
  float largest = 0.0f;  ///< logit
  float all = 1.0f;      ///< the sum of all scores
  float mean = 0.0f;     ///< slope, weighted by shares

  __device__ AuxiliaryLoss(const RouterGradient& gradient, std::int64_t of, int thread) : args(gradient), token(of) {
    if (args.logits.data == nullptr) return;
    largest = largest_logit(thread);
    all = sum_over_experts(thread, [&](std::int64_t e) { return score(e); });
    mean = sum_over_experts(thread, [&](std::int64_t e) { return score(e) / all * slope(e); });
  }
  /// The gradient of the logit of `expert`.
  __device__ float gradient(std::int64_t expert) const {
    if (args.logits.data == nullptr) return 0.0f;
    const float own = args.sigmoid ? fp8lab::sigmoid(-logit(expert)) : 1.0f;
    return own * (score(expert) / all) * (slope(expert) - mean);
  }

 private:
  __device__ float logit(std::int64_t e) const {
    return load1(args.logits.data, args.logits.dtype, token * args.logits.row_stride + e * args.logits.col_stride);
  }
  __device__ float score(std::int64_t e) const {
    return args.sigmoid ? fp8lab::sigmoid(logit(e)) : exponential(logit(e) - largest);
  }
  __device__ float slope(std::int64_t e) const { return args.aux * (args.counts[e] - args.even_count); }
  __device__ float largest_logit(int thread) const {
    float found = logit(0);
    for (std::int64_t e = thread; e < args.experts; e += 32) found = fmaxf(found, logit(e));
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
      found = fmaxf(found, __shfl_xor_sync(kAllLanes, found, distance));
    return found;
  }
  template <class Term>
  __device__ float sum_over_experts(int thread, const Term& term) const {
    static_assert(kRouterSums == 32, "each thread of a warp has one of the sums");
    float sum = 0.0f;
    for (std::int64_t e = thread; e < args.experts; e += kRouterSums) sum += term(e);
    return join_warp(sum);
  }
};

__global__ void __launch_bounds__(32 * kWarps) route_backward_kernel(const RouterGradient args) {
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int thread = static_cast<int>(threadIdx.x % 32);
  if (token >= args.tokens) return;
  const auto store = [&](std::int64_t expert, float value) {
    const Elements& to = args.grad_logits;
    store1(to.data, to.dtype, token * to.row_stride + expert * to.col_stride, value);
  };
  float mean = 0.0f;
  for (std::int64_t k = 0; k < args.choices; ++k) mean += args.weights.at(token, k) * args.grad_weights.at(token, k);
  mean /= args.scale;
  const AuxiliaryLoss auxiliary(args, token, thread);
  for (std::int64_t e = thread; e < args.experts; e += 32) store(e, 0.0f + auxiliary.gradient(e));  // no -0
  __syncwarp();
  for (std::int64_t k = thread; k < args.choices; k += 32) {
    const float slope = args.slopes.data == nullptr ? 1.0f : args.slopes.at(token, k);
    const std::int64_t expert = args.chosen.at(token, k);
    const float of_weight = slope * args.weights.at(token, k) * (args.grad_weights.at(token, k) - mean);
    store(expert, args.logits.data == nullptr ? of_weight : of_weight + auxiliary.gradient(expert));
  }
}

constexpr int kBalancing = 256;  ///< threads of the one block that balances the experts of a router

__global__ void __launch_bounds__(kBalancing)
    balance_experts_kernel(float* counts, float* biases, int experts, float rate) {
  __shared__ unsigned long long all;
  if (threadIdx.x == 0) all = 0;
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kBalancing)
    atomicAdd(&all, static_cast<unsigned long long>(counts[e]));
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kBalancing) {
    const auto above_mean = static_cast<std::int64_t>(counts[e]) * experts - static_cast<std::int64_t>(all);
    if (above_mean != 0) biases[e] += above_mean < 0 ? rate : -rate;
    counts[e] = 0.0f;
  }
}

unsigned blocks_of(std::int64_t tokens) { return static_cast<unsigned>((tokens + kWarps - 1) / kWarps); }

}  // namespace

void route(const RouteArgs& args, ExecContext& context) {
  if (args.logits.rows == 0) return;
  const Router router{.logits = elements(args.logits),
                      .tokens = args.logits.rows,
                      .experts = args.logits.cols,
                      .chosen = numbers(args.experts),
                      .weights = floats(args.weights),
                      .choices = args.experts.cols,
                      .sigmoid = args.sigmoid,
                      .scale = args.scale,
                      .slopes = floats(args.slopes),
                      .biases = args.biases.as<const float>(),
                      .groups = args.groups,
                      .group_size = args.logits.cols / args.groups,
                      .top_groups = args.top_groups,
                      .counts = args.counts.as<float>()};
  route_kernel<<<blocks_of(router.tokens), 32 * kWarps, 0, cuda_context(context).stream()>>>(router);
  cuda_check_launch("route_kernel");
}

void route_backward(const RouteBackwardArgs& args, ExecContext& context) {
  if (args.experts.rows == 0) return;
  const RouterGradient gradient{.chosen = numbers(args.experts),
                                .weights = floats(args.weights),
                                .slopes = floats(args.slopes),
                                .scale = args.scale,
                                .grad_weights = floats(args.grad_weights),
                                .tokens = args.experts.rows,
                                .choices = args.experts.cols,
                                .experts = args.grad_logits.cols,
                                .grad_logits = elements(args.grad_logits),
                                .logits = elements(args.logits),
                                .counts = args.counts.as<const float>(),
                                .aux = args.aux,
                                .even_count = even_count(args),
                                .sigmoid = args.sigmoid};
  route_backward_kernel<<<blocks_of(gradient.tokens), 32 * kWarps, 0, cuda_context(context).stream()>>>(gradient);
  cuda_check_launch("route_backward_kernel");
}

void balance_experts(const BalanceExpertsArgs& args, ExecContext& context) {
  balance_experts_kernel<<<1, kBalancing, 0, cuda_context(context).stream()>>>(
      args.counts.as<float>(), args.biases.as<float>(), static_cast<int>(args.counts.cols), args.rate);
  cuda_check_launch("balance_experts_kernel");
}

}  // namespace fp8lab::cuda
