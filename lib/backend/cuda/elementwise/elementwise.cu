#include "backend/cuda/device/map.cuh"
#include "backend/cuda/kernels.h"
#include "core/counter_rng.h"
#include "core/float_bits.h"

namespace fp8lab::cuda {
namespace {

struct Fill {
  float value;

  template <int Width>
  __device__ void operator()(const float (&)[1][Width], float (&out)[1][Width], std::int64_t, std::int64_t) const {
#pragma unroll
    for (int j = 0; j < Width; ++j) out[0][j] = value;
  }
};

struct Scale {
  float factor;

  template <int Width>
  __device__ void operator()(const float (&in)[1][Width], float (&out)[1][Width], std::int64_t, std::int64_t) const {
#pragma unroll
    for (int j = 0; j < Width; ++j) out[0][j] = in[0][j] * factor;
  }
};

struct Add {
  float alpha;
  float beta;

  template <int Width>
  __device__ void operator()(const float (&in)[2][Width], float (&out)[1][Width], std::int64_t, std::int64_t) const {
#pragma unroll
    for (int j = 0; j < Width; ++j) out[0][j] = alpha * in[0][j] + beta * in[1][j];
  }
};

/// Draws the random words of indices first ... first + Width - 1; one Philox block holds four words.
template <int Width>
__device__ void draw_words(const CounterRng& rng, std::uint64_t first, std::uint32_t (&words)[Width]) {
  if (Width >= 4 && first % 4 == 0) {
#pragma unroll
    for (int block = 0; block < Width / 4; ++block) {
      const PhiloxBlock drawn = rng.block(first / 4 + block);
#pragma unroll
      for (int j = 0; j < 4; ++j) words[4 * block + j] = drawn.words[j];
    }
    return;
  }
#pragma unroll 1
  for (int j = 0; j < Width; ++j) words[j] = rng.bits(first + j);
}

/// The same for numbers of 16 bits; one block holds eight.
template <int Width>
__device__ void draw_16_bits(const CounterRng& rng, std::uint64_t first, std::uint32_t (&drawn_bits)[Width]) {
  if (Width == 4 && first % 4 == 0) {  // half of a block
    const PhiloxBlock drawn = rng.block(first / 8);
    const bool second = first % 8 != 0;
    const std::uint32_t words[2] = {second ? drawn.words[2] : drawn.words[0], second ? drawn.words[3] : drawn.words[1]};
#pragma unroll
    for (int j = 0; j < Width; ++j) drawn_bits[j] = CounterRng::half_of(words[j / 2 % 2], j % 2);
    return;
  }
  if (Width % 8 == 0 && first % 8 == 0) {
    std::uint32_t words[Width / 2 + 1];  // other widths do not come here, but are compiled
#pragma unroll
    for (int block = 0; block < Width / 8; ++block) {
      const PhiloxBlock drawn = rng.block(first / 8 + block);
#pragma unroll
      for (int j = 0; j < 4; ++j) words[4 * block + j] = drawn.words[j];
    }
#pragma unroll
    for (int j = 0; j < Width; ++j) drawn_bits[j] = CounterRng::half_of(words[j / 2], j % 2);
    return;
  }
#pragma unroll 1
  for (int j = 0; j < Width; ++j) drawn_bits[j] = rng.half(first + j);
}

/// The random index of an element: the matrix is a range of rows, from `row_offset` on, of a global matrix with `cols`
/// columns.
struct DrawnAt {
  std::int64_t row_offset;
  std::int64_t cols;

  __device__ std::uint64_t operator()(std::int64_t row, std::int64_t col) const {
    return static_cast<std::uint64_t>(row_offset + row) * static_cast<std::uint64_t>(cols) +
           static_cast<std::uint64_t>(col);
  }
};

struct Uniform {
  std::uint64_t seed;
  std::uint64_t stream;
  DrawnAt index;
  float scale;

  template <int Width>
  __device__ void operator()(const float (&)[1][Width], float (&out)[1][Width], std::int64_t row,
                             std::int64_t col) const {
    std::uint32_t words[Width];
    draw_words(CounterRng(seed, stream), index(row, col), words);
#pragma unroll
    for (int j = 0; j < Width; ++j) out[0][j] = CounterRng::to_unit(words[j]) * scale;
  }
};

struct Normal {
  std::uint64_t seed;
  std::uint64_t stream;
  DrawnAt index;
  float scale;

  template <int Width>
  __device__ void operator()(const float (&)[1][Width], float (&out)[1][Width], std::int64_t row,
                             std::int64_t col) const {
    const CounterRng rng(seed, stream);
    const std::uint64_t first = index(row, col);
#pragma unroll
    for (int j = 0; j < Width; ++j) out[0][j] = rng.normal(first + static_cast<std::uint64_t>(j)) * scale;
  }
};

/// x / divisor, rounded once, for |x| from 2^-100 to 2^100 and a divisor from 2^-24 to 1: the quotient by the rounded
/// reciprocal is so near that one correction by its exact remainder rounds it correctly (Markstein, 1990).
__device__ float corrected_quotient(float x, float divisor, float reciprocal) {
  const float quotient = x * reciprocal;
  return __fmaf_rn(__fmaf_rn(-quotient, divisor, x), reciprocal, quotient);
}

struct Dropout {
  std::uint64_t seed;
  std::uint64_t stream;
  DrawnAt index;
  std::uint32_t dropped;  ///< in_65536ths() of the probability
  float keep;
  float reciprocal;  ///< 1 / keep

  template <int Width>
  __device__ void operator()(const float (&in)[1][Width], float (&out)[1][Width], std::int64_t row,
                             std::int64_t col) const {
    std::uint32_t drawn_bits[Width];
    draw_16_bits(CounterRng(seed, stream), index(row, col), drawn_bits);
    bool ordinary = true;
#pragma unroll
    for (int j = 0; j < Width; ++j) {
      ordinary = ordinary && fabsf(in[0][j]) >= 0x1p-100f && fabsf(in[0][j]) <= 0x1p100f;
      out[0][j] = corrected_quotient(in[0][j], keep, reciprocal);
    }
    if (!ordinary)
#pragma unroll
      for (int j = 0; j < Width; ++j) out[0][j] = in[0][j] / keep;
#pragma unroll
    for (int j = 0; j < Width; ++j)
      if (drawn_bits[j] < dropped) out[0][j] = 0.0f;
  }
};

}  // namespace

void fill(const FillArgs& args, ExecContext& context) {
  CudaContext& gpu = cuda_context(context);
  const MatrixView& out = args.out;
  if (out.numel() == 0) return;
  if (float_bits(args.value) != 0) return map<0, 1>({}, {out}, Fill{args.value}, gpu);
  const std::size_t element = size_bytes(out.dtype);
  if (out.contiguous()) {
    cuda_check(cudaMemsetAsync(out.data, 0, static_cast<std::size_t>(out.numel()) * element, gpu.stream()),
               "cudaMemsetAsync");
  } else if (out.col_stride == 1 && out.row_stride >= out.cols) {
    cuda_check(cudaMemset2DAsync(out.data, static_cast<std::size_t>(out.row_stride) * element, 0,
                                 static_cast<std::size_t>(out.cols) * element, static_cast<std::size_t>(out.rows),
                                 gpu.stream()),
               "cudaMemset2DAsync");
  } else {
    // +0 has all bytes zero in every type, so another type of the same size serves.
    MatrixView zeros = out;
    zeros.dtype = element == 1 ? DType::kE4M3 : element == 2 ? DType::kBF16 : DType::kF32;
    if (element == 8) {
      zeros.row_stride *= 2;
      zeros.col_stride *= 2;
      map<0, 1, kAnyTypes>({}, {zeros}, Fill{0.0f}, gpu);
      zeros.data += 4;
    }
    map<0, 1, kAnyTypes>({}, {zeros}, Fill{0.0f}, gpu);
  }
}

void scale(const ScaleArgs& args, ExecContext& context) {
  map<1, 1>({args.values}, {args.values}, Scale{args.factor}, cuda_context(context));
}

void random(const RandomArgs& args, ExecContext& context) {
  const DrawnAt index{.row_offset = args.row_offset, .cols = args.out.cols};
  CudaContext& gpu = cuda_context(context);
  if (args.normal)
    return map<0, 1>({}, {args.out},
                     Normal{.seed = args.seed, .stream = args.stream, .index = index, .scale = args.scale}, gpu);
  map<0, 1>({}, {args.out}, Uniform{.seed = args.seed, .stream = args.stream, .index = index, .scale = args.scale},
            gpu);
}

void add(const AddArgs& args, ExecContext& context) {
  map<2, 1>({args.a, args.b}, {args.out}, Add{.alpha = args.alpha, .beta = args.beta}, cuda_context(context));
}

void dropout(const DropoutArgs& args, ExecContext& context) {
  const std::uint32_t dropped = in_65536ths(args.probability);
  const float keep = static_cast<float>(65536u - dropped) * 0x1p-16f;
  const Dropout op{.seed = args.seed,
                   .stream = args.stream,
                   .index = {.row_offset = args.row_offset, .cols = args.in.cols},
                   .dropped = dropped,
                   .keep = keep,
                   .reciprocal = 1.0f / keep};
  map<1, 1>({args.in}, {args.out}, op, cuda_context(context));
}

}  // namespace fp8lab::cuda
