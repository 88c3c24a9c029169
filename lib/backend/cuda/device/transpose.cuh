#pragma once

#include <cstdint>
#include <type_traits>

#include "backend/cuda/context.h"
#include "backend/cuda/cuda_check.h"

// Transposes of 1-, 2-, 4- and 8-byte elements through shared memory.
namespace fp8lab::cuda {

/// out(c, r) = in(r, c). Element (r, c) of `in` is at r * in_stride + c, element (c, r) of `out` at c * out_stride + r,
/// both in elements.
struct Transpose {
  const std::byte* in;
  std::int64_t in_stride;
  std::int64_t rows;
  std::int64_t cols;
  std::byte* out;
  std::int64_t out_stride;
};

inline constexpr int kTileWords = 32;
inline constexpr int kTransposeThreads = 256;

/// Transposes a square whose side is the number of elements of a word: exchanges element j of words[i] with element i
/// of words[j].
template <class Word>
__device__ inline void transpose_square(Word (&)[1]) {}
__device__ inline void transpose_square(std::uint32_t (&words)[2]) {
  const std::uint32_t a = words[0], b = words[1];
  words[0] = __byte_perm(a, b, 0x5410);
  words[1] = __byte_perm(a, b, 0x7632);
}
__device__ inline void transpose_square(std::uint32_t (&words)[4]) {
  const std::uint32_t low01 = __byte_perm(words[0], words[1], 0x5140), high01 = __byte_perm(words[0], words[1], 0x7362);
  const std::uint32_t low23 = __byte_perm(words[2], words[3], 0x5140), high23 = __byte_perm(words[2], words[3], 0x7362);
  words[0] = __byte_perm(low01, low23, 0x5410);
  words[1] = __byte_perm(low01, low23, 0x7632);
  words[2] = __byte_perm(high01, high23, 0x5410);
  words[3] = __byte_perm(high01, high23, 0x7632);
}

// A tile is 32 words wide and has equally many rows and columns; a warp reads or writes full words of a row at once.
// `Aligned`: both matrices hold aligned words. If not, and at the edges, elements are moved one by one.
template <class Element, bool Aligned>
__global__ void __launch_bounds__(kTransposeThreads) transpose_kernel(const Transpose args) {
  using Word = std::conditional_t<(sizeof(Element) < 4), std::uint32_t, Element>;
  constexpr int kPerWord = sizeof(Word) / sizeof(Element);
  constexpr int kTile = kTileWords * kPerWord;
  constexpr int kWarps = kTransposeThreads / 32;
  constexpr int kSquares = kTileWords / kWarps;  // squares per thread
  constexpr int kBits = 8 * sizeof(Element);
  // Column kPerWord * lane + j of the tile is row j * 32 + lane here, so that the words of a warp lie in different
  // banks.
  __shared__ Word transposed[kTile][kTileWords + 1];

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::int64_t row0 = static_cast<std::int64_t>(blockIdx.y) * kTile;
  const std::int64_t col0 = static_cast<std::int64_t>(blockIdx.x) * kTile;
  const auto* in = reinterpret_cast<const Element*>(args.in);
  auto* out = reinterpret_cast<Element*>(args.out);
  const bool full = Aligned && row0 + kTile <= args.rows && col0 + kTile <= args.cols;

  Word words[kSquares][kPerWord];
  if (full) {
#pragma unroll
    for (int s = 0; s < kSquares; ++s)
#pragma unroll
      for (int i = 0; i < kPerWord; ++i) {
        const std::int64_t row = row0 + (s * kWarps + warp) * kPerWord + i;
        words[s][i] = reinterpret_cast<const Word*>(in + row * args.in_stride + col0)[lane];
      }
  } else {
#pragma unroll
    for (int s = 0; s < kSquares; ++s)
#pragma unroll
      for (int i = 0; i < kPerWord; ++i) {
        const std::int64_t row = row0 + (s * kWarps + warp) * kPerWord + i;
        words[s][i] = 0;
#pragma unroll
        for (int j = 0; j < kPerWord; ++j) {
          const std::int64_t col = col0 + lane * kPerWord + j;
          if (row < args.rows && col < args.cols)
            words[s][i] |= static_cast<Word>(in[row * args.in_stride + col]) << (j * kBits % (8 * sizeof(Word)));
        }
      }
  }
#pragma unroll
  for (int s = 0; s < kSquares; ++s) {
    transpose_square(words[s]);
#pragma unroll
    for (int j = 0; j < kPerWord; ++j) transposed[j * 32 + lane][s * kWarps + warp] = words[s][j];
  }
  __syncthreads();
#pragma unroll
  for (int s = 0; s < kTile / kWarps; ++s) {
    const int local = s * kWarps + warp;
    const std::int64_t col = col0 + local;
    const Word word = transposed[local % kPerWord * 32 + local / kPerWord][lane];
    if (full) {
      reinterpret_cast<Word*>(out + col * args.out_stride + row0)[lane] = word;
    } else {
#pragma unroll
      for (int i = 0; i < kPerWord; ++i) {
        const std::int64_t row = row0 + lane * kPerWord + i;
        if (row < args.rows && col < args.cols)
          out[col * args.out_stride + row] = static_cast<Element>(word >> (i * kBits % (8 * sizeof(Word))));
      }
    }
  }
}

template <class Element>
void transpose(const Transpose& matrix, CudaContext& context) {
  constexpr std::int64_t kPerWord = sizeof(Element) < 4 ? 4 / sizeof(Element) : 1;
  constexpr std::int64_t kTile = kTileWords * kPerWord;
  constexpr std::int64_t kMostRows = 65535 * kTile;  // most rows that a grid covers
  if (matrix.cols == 0) return;
  const auto at_words = [](const std::byte* data, std::int64_t stride) {
    return reinterpret_cast<std::uintptr_t>(data) % (kPerWord * sizeof(Element)) == 0 && stride % kPerWord == 0;
  };
  const bool aligned = at_words(matrix.in, matrix.in_stride) && at_words(matrix.out, matrix.out_stride);
  for (std::int64_t row = 0; row < matrix.rows; row += kMostRows) {
    Transpose part = matrix;
    part.rows = matrix.rows - row < kMostRows ? matrix.rows - row : kMostRows;
    part.in += row * matrix.in_stride * static_cast<std::int64_t>(sizeof(Element));
    part.out += row * static_cast<std::int64_t>(sizeof(Element));
    const dim3 grid(static_cast<unsigned>((part.cols + kTile - 1) / kTile),
                    static_cast<unsigned>((part.rows + kTile - 1) / kTile));
    if (aligned)
      transpose_kernel<Element, true><<<grid, kTransposeThreads, 0, context.stream()>>>(part);
    else
      transpose_kernel<Element, false><<<grid, kTransposeThreads, 0, context.stream()>>>(part);
    cuda_check_launch("transpose_kernel");
  }
}

}  // namespace fp8lab::cuda
