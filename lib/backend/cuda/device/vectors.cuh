#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "backend/cuda/device/elements.cuh"
#include "core/dtype.h"

// Vectorized loads and stores. Loading and converting (conversions.cuh) are separate steps, so that all loads of a
// thread can be in flight before the first is waited for.
namespace fp8lab::cuda {

/// What is fixed at compile time about a matrix's type: the type itself (>= 0), or which types it may have at run
/// time: f32, f16 and bf16 (kRealTypes), all but i64 (kAnyTypes), or f32, f16, bf16, e4m3 and e5m2 (kFloatTypes).
inline constexpr int kRealTypes = -1;
inline constexpr int kAnyTypes = -2;
inline constexpr int kFloatTypes = -3;

/// Bytes of an element.
template <auto Type>
inline constexpr int kBytesOf = sizeof(typename Element<static_cast<DType>(Type)>::Storage);

/// Elements that one access moves: eight of a 16-bit type. Four of all others, so that vectors of different types have
/// the same number of elements.
template <auto Type>
inline constexpr int kVectorWidth =
    Type == static_cast<decltype(Type)>(DType::kBF16) || Type == static_cast<decltype(Type)>(DType::kF16) ? 8 : 4;

/// `Width` neighbouring elements of type `Type`, as they are stored, in a thread's registers. A load or store is one
/// access of 16 bytes, the widest that a thread can make, or of the entire vector if that is smaller; a larger vector
/// takes several of 16 bytes. Addresses must be aligned to one access.
template <auto Type, int Width = kVectorWidth<Type>>
struct Vector {
  static constexpr int kElementBytes = kBytesOf<Type>;
  static constexpr int kWords = Width * kElementBytes / 4;

  /// Elements in memory order, the first in the lowest bits.
  std::uint32_t words[kWords];

  __device__ __forceinline__ void load(const void* from) { load_by<false>(from); }
  /// Loads the elements from `at` on of an array.
  __device__ __forceinline__ void load(const std::byte* array, std::int64_t at, DType = {}) {
    load(array + at * kElementBytes);
  }
  /// Loads memory that no thread writes while the kernel runs, through the read-only cache.
  __device__ __forceinline__ void load_read_only(const void* from) { load_by<true>(from); }
  /// Loads the first `count` elements, of 16 or 32 bits and any alignment; the others become zero.
  __device__ __forceinline__ void load_some(const void* from, int count) {
    static_assert(kElementBytes >= 2);
    zero();
#pragma unroll
    for (int j = 0; j < Width; ++j) {
      if (j >= count) continue;
      if constexpr (kElementBytes == 4)
        words[j] = static_cast<const std::uint32_t*>(from)[j];
      else
        words[j / 2] |= std::uint32_t{static_cast<const std::uint16_t*>(from)[j]} << (16 * (j % 2));
    }
  }
  __device__ __forceinline__ void zero() {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = 0;
  }

  __device__ __forceinline__ void store(void* to) const {
    static_assert(kWords == 1 || kWords == 2 || kWords % 4 == 0);
    if constexpr (kWords == 1)
      *static_cast<std::uint32_t*>(to) = words[0];
    else if constexpr (kWords == 2)
      *static_cast<uint2*>(to) = make_uint2(words[0], words[1]);
    else
#pragma unroll
      for (int i = 0; i < kWords / 4; ++i)
        static_cast<uint4*>(to)[i] = make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
  }
  /// Stores the elements from `at` on of an array.
  __device__ __forceinline__ void store(std::byte* array, std::int64_t at) const { store(array + at * kElementBytes); }

  __device__ __forceinline__ void copy_words(std::uint32_t (&copy)[kWords]) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) copy[i] = words[i];
  }
  /// Byte `j`. Of two words by a selection: an index that is unknown at compile time would move them to local memory.
  __device__ __forceinline__ std::uint8_t byte(int j) const {
    const std::uint32_t word = kWords == 2 ? (j < 4 ? words[0] : words[kWords - 1]) : words[j / 4];
    return static_cast<std::uint8_t>(word >> (8 * (j % 4)));
  }
  /// Element `j` in FP32, of type f32, bf16 or f16, by the GPU's conversion instruction: the bits of NaNs may differ
  /// from the host's.
  __device__ __forceinline__ float operator[](int j) const {
    constexpr auto kType = static_cast<DType>(Type);
    static_assert(kType == DType::kF32 || kType == DType::kBF16 || kType == DType::kF16);
    if constexpr (kType == DType::kF32)
      return float_from_bits(words[j]);
    else if constexpr (kType == DType::kBF16)
      return float_from_bits(j % 2 == 0 ? words[j / 2] << 16 : words[j / 2] & 0xFFFF0000u);
    else
      return __half2float(__ushort_as_half(static_cast<std::uint16_t>(words[j / 2] >> (16 * (j % 2)))));
  }

 private:
  template <bool ReadOnly>
  __device__ __forceinline__ void load_by(const void* from) {
    static_assert(kWords == 1 || kWords == 2 || kWords % 4 == 0);
    if constexpr (kWords == 1) {
      const auto* const at = static_cast<const std::uint32_t*>(from);
      words[0] = ReadOnly ? __ldg(at) : *at;
    } else if constexpr (kWords == 2) {
      const auto* const at = static_cast<const uint2*>(from);
      const uint2 pair = ReadOnly ? __ldg(at) : *at;
      words[0] = pair.x;
      words[1] = pair.y;
    } else {
#pragma unroll
      for (int i = 0; i < kWords / 4; ++i) {
        const auto* const at = static_cast<const uint4*>(from) + i;
        const uint4 piece = ReadOnly ? __ldg(at) : *at;
        words[4 * i] = piece.x;
        words[4 * i + 1] = piece.y;
        words[4 * i + 2] = piece.z;
        words[4 * i + 3] = piece.w;
      }
    }
  }
};

/// Four elements of one of the types `Types` (kRealTypes, kAnyTypes), which each load takes as an argument: one access
/// of 16, 8 or 4 bytes.
template <int Types>
  requires(Types < 0)
struct Vector<Types, 4> {
  static constexpr int kWords = 4;

  /// Elements in memory order; words that narrower types do not use are undefined. No array: the compiler would store
  /// words that several types use one by one.
  uint4 words;

  /// Loads the elements from `at` on of an array.
  __device__ __forceinline__ void load(const std::byte* array, std::int64_t at, DType type) {
    switch (type) {
      case DType::kF32:
      case DType::kI32: words = *reinterpret_cast<const uint4*>(array + 4 * at); break;
      case DType::kF16:
      case DType::kBF16:
      case DType::kI16: {
        const uint2 pair = *reinterpret_cast<const uint2*>(array + 2 * at);
        words.x = pair.x;
        words.y = pair.y;
        break;
      }
      default: words.x = *reinterpret_cast<const std::uint32_t*>(array + at);
    }
  }
  __device__ __forceinline__ void copy_words(std::uint32_t (&copy)[kWords]) const {
    copy[0] = words.x;
    copy[1] = words.y;
    copy[2] = words.z;
    copy[3] = words.w;
  }
};

/// The same for kernels over lists of tensors, whose bodies also get the type at compile time: if `type` is a
/// constant, every switch folds away.
template <>
struct Vector<kFloatTypes, 4> {
  /// Elements in memory order. Words that narrower types do not use are zero: left undefined, they cost
  /// square_sum_kernel ten registers.
  uint4 words;

  __device__ static constexpr int bytes_of(DType type) {
    return type == DType::kF32 ? 4 : type == DType::kE4M3 || type == DType::kE5M2 ? 1 : 2;
  }
  /// Stores the elements from `at` on of an array.
  __device__ __forceinline__ void store(std::byte* array, std::int64_t at, DType type) const {
    std::byte* const to = array + at * bytes_of(type);
    switch (bytes_of(type)) {
      case 4: *reinterpret_cast<uint4*>(to) = words; break;
      case 2: *reinterpret_cast<uint2*>(to) = make_uint2(words.x, words.y); break;
      default: *reinterpret_cast<std::uint32_t*>(to) = words.x;
    }
  }
  /// Element `j` of a 16-bit type, as its bits.
  __device__ __forceinline__ std::uint16_t bits16(int j) const {
    const std::uint32_t word = j < 2 ? words.x : words.y;
    return static_cast<std::uint16_t>(j % 2 == 0 ? word : word >> 16);
  }
};
using FloatVector = Vector<kFloatTypes>;
inline constexpr int kVector = 4;

/// The vector that begins at element `at` of an array.
__device__ __forceinline__ FloatVector load_vector(const std::byte* array, std::int64_t at, DType type) {
  const std::byte* const from = array + at * FloatVector::bytes_of(type);
  FloatVector vector;
  switch (FloatVector::bytes_of(type)) {
    case 4: vector.words = *reinterpret_cast<const uint4*>(from); break;
    case 2: {
      const uint2 pair = *reinterpret_cast<const uint2*>(from);
      vector.words = make_uint4(pair.x, pair.y, 0, 0);
      break;
    }
    default: vector.words = make_uint4(*reinterpret_cast<const std::uint32_t*>(from), 0, 0, 0);
  }
  return vector;
}

}  // namespace fp8lab::cuda
