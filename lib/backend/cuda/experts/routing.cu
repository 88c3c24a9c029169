#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/runs.cuh"
#include "backend/cuda/experts/device/numbers.cuh"
#include "backend/cuda/kernels.h"
#include "core/check.h"
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
};

__device__ float logit_of(const Elements& logits, std::int64_t token, std::int64_t expert) {
  return load1(logits.data, logits.dtype, token * logits.row_stride + expert * logits.col_stride);
}

// Each choice is the largest key below the one before, so that nothing records which experts are taken.
__global__ void __launch_bounds__(32 * kWarps) route_kernel(const Router args) {
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (token >= args.tokens) return;
  std::uint64_t before = ~std::uint64_t{0};
  float sum = 0.0f, largest = 0.0f;
  for (std::int64_t k = 0; k < args.choices; ++k) {
    std::uint64_t best = 0;
    for (std::int64_t e = lane; e < args.experts; e += 32) {
      const std::uint64_t key = key_of(logit_of(args.logits, token, e), static_cast<std::uint32_t>(e));
      if (key < before && key > best) best = key;
    }
    before = best = largest_of_warp(best);
    const float logit = logit_of(args.logits, token, expert_of(best));
    if (k == 0) largest = logit;
    const float weight = exponential(logit - largest);
    sum += weight;
    if (lane != 0) continue;
    args.chosen.at(token, k) = static_cast<std::int32_t>(expert_of(best));
    args.weights.at(token, k) = weight;
  }
  __syncwarp();
  for (std::int64_t k = lane; k < args.choices; k += 32) args.weights.at(token, k) /= sum;
}

struct RouterGradient {
  Numbers chosen;
  Floats weights;
  Floats grad_weights;
  std::int64_t tokens;
  std::int64_t choices;
  std::int64_t experts;
  Elements grad_logits;
};

__global__ void __launch_bounds__(32 * kWarps) route_backward_kernel(const RouterGradient args) {
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (token >= args.tokens) return;
  const auto store = [&](std::int64_t expert, float value) {
    const Elements& to = args.grad_logits;
    store1(to.data, to.dtype, token * to.row_stride + expert * to.col_stride, value);
  };
  float mean = 0.0f;
  for (std::int64_t k = 0; k < args.choices; ++k) mean += args.weights.at(token, k) * args.grad_weights.at(token, k);
  for (std::int64_t e = lane; e < args.experts; e += 32) store(e, 0.0f);
  __syncwarp();
  for (std::int64_t k = lane; k < args.choices; k += 32)
    store(args.chosen.at(token, k), args.weights.at(token, k) * (args.grad_weights.at(token, k) - mean));
}

unsigned blocks_of(std::int64_t tokens) { return static_cast<unsigned>((tokens + kWarps - 1) / kWarps); }

}  // namespace

void route(const RouteArgs& args, ExecContext& context) {
  if (args.sigmoid || args.scale != 1.0f) fail("route: on cuda weights are a softmax whose sum is 1");
  if (args.logits.rows == 0) return;
  const Router router{.logits = elements(args.logits),
                      .tokens = args.logits.rows,
                      .experts = args.logits.cols,
                      .chosen = numbers(args.experts),
                      .weights = floats(args.weights),
                      .choices = args.experts.cols};
  route_kernel<<<blocks_of(router.tokens), 32 * kWarps, 0, cuda_context(context).stream()>>>(router);
  cuda_check_launch("route_kernel");
}

void route_backward(const RouteBackwardArgs& args, ExecContext& context) {
  if (args.experts.rows == 0) return;
  const RouterGradient gradient{.chosen = numbers(args.experts),
                                .weights = floats(args.weights),
                                .grad_weights = floats(args.grad_weights),
                                .tokens = args.experts.rows,
                                .choices = args.experts.cols,
                                .experts = args.grad_logits.cols,
                                .grad_logits = elements(args.grad_logits)};
  route_backward_kernel<<<blocks_of(gradient.tokens), 32 * kWarps, 0, cuda_context(context).stream()>>>(gradient);
  cuda_check_launch("route_backward_kernel");
}

}  // namespace fp8lab::cuda
