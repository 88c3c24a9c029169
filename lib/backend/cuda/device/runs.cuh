#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/device/elements.cuh"
#include "core/dtype.h"
#include "core/float8.h"
#include "tensor/view.h"

// Runs of FP32 values, read from and rounded to whatever type a matrix stores, as in backend/cpu/rows.h. A run of eight
// elements is one 16-byte access in 16-bit types, two in FP32, and one 8-byte access in FP8.
namespace fp8lab::cuda {

/// A matrix as device code accesses it.
struct Elements {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t row_stride = 0;
  std::int64_t col_stride = 1;

  template <class T>
  __device__ T* at(std::int64_t row, std::int64_t col) const {
    return reinterpret_cast<T*>(data) + row * row_stride + col * col_stride;
  }
};

__host__ __device__ inline Elements elements(const MatrixView& view) {
  return {.data = view.data, .dtype = view.dtype, .row_stride = view.row_stride, .col_stride = view.col_stride};
}

/// Alignment of a wide run in bytes: 16, or the run's size if that is less.
inline constexpr int kRunWidth = 8;
inline std::int64_t run_alignment(DType dtype) {
  const auto bytes = static_cast<std::int64_t>(size_bytes(dtype)) * kRunWidth;
  return bytes < 16 ? bytes : 16;
}
/// True if every row of `view` can be accessed in wide runs.
inline bool holds_runs(const MatrixView& view) {
  if (view.cols > 1 && view.col_stride != 1) return false;
  const std::int64_t alignment = run_alignment(view.dtype);
  const std::int64_t step = view.row_stride * static_cast<std::int64_t>(size_bytes(view.dtype));
  return reinterpret_cast<std::uintptr_t>(view.data) % static_cast<std::uintptr_t>(alignment) == 0 &&
         (view.rows <= 1 || step % alignment == 0);
}

template <class T>
struct alignas(sizeof(T) * kRunWidth < 16 ? sizeof(T) * kRunWidth : 16) Run {
  T values[kRunWidth];
};

/// Two numbers in 16 bits, the first in the lower 16, by one instruction. Its NaNs have other bits than the host's.
template <DType Type>
__device__ inline std::uint32_t pack_numbers(float first, float second) {
  if constexpr (Type == DType::kBF16) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  } else {
    const __half2 pair = __floats2half2_rn(first, second);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }
}
/// Values in 16 bits, two per word, bitwise equal to the host's conversion: NaNs keep their sign.
template <DType Type, int Width>
__device__ inline void pack(const float (&values)[Width], std::uint32_t (&words)[Width / 2]) {
  bool nan = false;
#pragma unroll
  for (int i = 0; i < Width / 2; ++i) {
    words[i] = pack_numbers<Type>(values[2 * i], values[2 * i + 1]);
    nan |= (values[2 * i] != values[2 * i]) | (values[2 * i + 1] != values[2 * i + 1]);
  }
  if (!nan) return;
#pragma unroll
  for (int i = 0; i < Width / 2; ++i)
    words[i] = Element<Type>::store(values[2 * i]).bits |
               static_cast<std::uint32_t>(Element<Type>::store(values[2 * i + 1]).bits) << 16;
}

/// Reads a full run of contiguous elements.
template <DType Type>
__device__ inline void load_full(const typename Element<Type>::Storage* from, float (&values)[kRunWidth]) {
  using Storage = typename Element<Type>::Storage;
  const Run<Storage> run = *reinterpret_cast<const Run<Storage>*>(from);
#pragma unroll
  for (int j = 0; j < kRunWidth; ++j) values[j] = Element<Type>::load(run.values[j]);
}
template <DType Type>
__device__ inline void store_full(const float (&values)[kRunWidth], typename Element<Type>::Storage* to) {
  using Storage = typename Element<Type>::Storage;
  if constexpr (Type == DType::kBF16 || Type == DType::kF16) {
    std::uint32_t words[kRunWidth / 2];
    pack<Type>(values, words);
    *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
  } else {
    Run<Storage> run;
#pragma unroll
    for (int j = 0; j < kRunWidth; ++j) run.values[j] = Element<Type>::store(values[j]);
    *reinterpret_cast<Run<Storage>*>(to) = run;
  }
}

template <DType Type, bool Wide, int Width>
__device__ inline void load_typed(const Elements& from, std::int64_t row, std::int64_t col, std::int64_t count,
                                  float (&values)[Width]) {
  using Storage = typename Element<Type>::Storage;
  if constexpr (Wide && Width == kRunWidth) {
    const Storage* at = reinterpret_cast<const Storage*>(from.data) + row * from.row_stride + col;
    if (count >= Width) return load_full<Type>(at, values);
#pragma unroll
    for (int j = 0; j < Width; ++j) values[j] = j < count ? Element<Type>::load(at[j]) : 0.0f;
  } else {
    const Storage* at = from.at<const Storage>(row, col);
#pragma unroll
    for (int j = 0; j < Width; ++j) values[j] = j < count ? Element<Type>::load(at[j * from.col_stride]) : 0.0f;
  }
}

template <DType Type, bool Wide, int Width>
__device__ inline void store_typed(const float (&values)[Width], const Elements& to, std::int64_t row, std::int64_t col,
                                   std::int64_t count) {
  using Storage = typename Element<Type>::Storage;
  if constexpr (Wide && Width == kRunWidth) {
    Storage* at = reinterpret_cast<Storage*>(to.data) + row * to.row_stride + col;
    if (count >= Width) return store_full<Type>(values, at);
#pragma unroll
    for (int j = 0; j < Width; ++j)
      if (j < count) at[j] = Element<Type>::store(values[j]);
  } else {
    Storage* at = to.at<Storage>(row, col);
#pragma unroll
    for (int j = 0; j < Width; ++j)
      if (j < count) at[j * to.col_stride] = Element<Type>::store(values[j]);
  }
}

/// What a kernel knows at compile time about a matrix's type: the type itself (>= 0), that it is f32, f16 or bf16
/// (kRealTypes), or nothing (kAnyTypes).
inline constexpr int kRealTypes = -1;
inline constexpr int kAnyTypes = -2;

/// Reads at most `count` elements, exactly; the others become 0. Any type but I64. `Wide`: the rows hold wide runs
/// (holds_runs()).
template <int Type, bool Wide = true, int Width>
__device__ inline void load_run(const Elements& from, std::int64_t row, std::int64_t col, std::int64_t count,
                                float (&values)[Width]) {
  if constexpr (Type >= 0) {
    load_typed<static_cast<DType>(Type), Wide>(from, row, col, count, values);
  } else {
    switch (from.dtype) {
      case DType::kF32: return load_typed<DType::kF32, Wide>(from, row, col, count, values);
      case DType::kF16: return load_typed<DType::kF16, Wide>(from, row, col, count, values);
      case DType::kBF16: return load_typed<DType::kBF16, Wide>(from, row, col, count, values);
      default: break;
    }
    if constexpr (Type == kAnyTypes) {
      switch (from.dtype) {
        case DType::kE4M3: return load_typed<DType::kE4M3, Wide>(from, row, col, count, values);
        case DType::kE5M2: return load_typed<DType::kE5M2, Wide>(from, row, col, count, values);
        case DType::kE8M0: return load_typed<DType::kE8M0, Wide>(from, row, col, count, values);
        case DType::kU8: return load_typed<DType::kU8, Wide>(from, row, col, count, values);
        case DType::kI16: return load_typed<DType::kI16, Wide>(from, row, col, count, values);
        case DType::kI32: return load_typed<DType::kI32, Wide>(from, row, col, count, values);
        default: break;
      }
    }
  }
}

/// Stores at most `count` elements, rounded to nearest even. Types f32, f16, bf16, e4m3 and e5m2.
template <int Type, bool Wide = true, int Width>
__device__ inline void store_run(const float (&values)[Width], const Elements& to, std::int64_t row, std::int64_t col,
                                 std::int64_t count) {
  if constexpr (Type >= 0) {
    store_typed<static_cast<DType>(Type), Wide>(values, to, row, col, count);
  } else {
    switch (to.dtype) {
      case DType::kF32: return store_typed<DType::kF32, Wide>(values, to, row, col, count);
      case DType::kF16: return store_typed<DType::kF16, Wide>(values, to, row, col, count);
      case DType::kBF16: return store_typed<DType::kBF16, Wide>(values, to, row, col, count);
      default: break;
    }
    if constexpr (Type == kAnyTypes) {
      if (to.dtype == DType::kE4M3) store_typed<DType::kE4M3, Wide>(values, to, row, col, count);
      if (to.dtype == DType::kE5M2) store_typed<DType::kE5M2, Wide>(values, to, row, col, count);
    }
  }
}

/// A run as it is stored, not yet converted, so that all loads of a thread can be in flight before the first is waited
/// for: eight elements of a 16-bit type, else four.
template <int Type>
inline constexpr int kRawWidth =
    Type == static_cast<int>(DType::kBF16) || Type == static_cast<int>(DType::kF16) ? kRunWidth : 4;

template <int Type>
class RawRun {
 public:
  static constexpr int kWidth = kRawWidth<Type>;

  /// Loads a full run of a row that holds wide runs.
  __device__ void load(const Elements& from, std::int64_t row, std::int64_t col) {
    const std::int64_t at = row * from.row_stride + col;
    if constexpr (Type >= 0) {
      words_ = *reinterpret_cast<const uint4*>(from.data + at * static_cast<std::int64_t>(sizeof(Storage)));
    } else {
      switch (from.dtype) {
        case DType::kF32:
        case DType::kI32: words_ = *reinterpret_cast<const uint4*>(from.data + 4 * at); break;
        case DType::kF16:
        case DType::kBF16:
        case DType::kI16: {
          const uint2 words = *reinterpret_cast<const uint2*>(from.data + 2 * at);
          words_.x = words.x;
          words_.y = words.y;
          break;
        }
        default: words_.x = *reinterpret_cast<const std::uint32_t*>(from.data + at);
      }
    }
  }
  __device__ void get(const Elements& from, float (&values)[kWidth]) const {
    if constexpr (Type >= 0) {
      as<static_cast<DType>(Type)>(values);
    } else {
      switch (from.dtype) {
        case DType::kF32: return as<DType::kF32>(values);
        case DType::kF16: return as<DType::kF16>(values);
        case DType::kBF16: return as<DType::kBF16>(values);
        default: break;
      }
      if constexpr (Type == kAnyTypes) {
        switch (from.dtype) {
          case DType::kE4M3: return as<DType::kE4M3>(values);
          case DType::kE5M2: return as<DType::kE5M2>(values);
          case DType::kE8M0: return as<DType::kE8M0>(values);
          case DType::kU8: return as<DType::kU8>(values);
          case DType::kI16: return as<DType::kI16>(values);
          case DType::kI32: return as<DType::kI32>(values);
          default: break;
        }
      }
    }
  }

 private:
  using Storage = typename Element<static_cast<DType>(Type >= 0 ? Type : 0)>::Storage;

  template <DType From>
  __device__ void as(float (&values)[kWidth]) const {
    using Stored = typename Element<From>::Storage;
    constexpr int kBits = 8 * sizeof(Stored);
    const std::uint32_t words[4] = {words_.x, words_.y, words_.z, words_.w};
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const std::uint32_t word = words[j * kBits / 32];
      if constexpr (From == DType::kBF16)
        values[j] = float_from_bits(j % 2 == 0 ? word << 16 : word & 0xFFFF0000u);
      else if constexpr (kBits == 32)
        values[j] = Element<From>::load(__builtin_bit_cast(Stored, word));
      else if constexpr (kBits == 16)
        values[j] = Element<From>::load(__builtin_bit_cast(Stored, static_cast<std::uint16_t>(word >> (j % 2 * 16))));
      else
        values[j] = Element<From>::load(static_cast<std::uint8_t>(word >> (j % 4 * 8)));
    }
  }

  uint4 words_;
};

/// Stores a full run of `Width` elements.
template <DType Type, int Width>
__device__ inline void store_raw_typed(const float (&values)[Width], const Elements& to, std::int64_t at) {
  using Storage = typename Element<Type>::Storage;
  std::byte* const here = to.data + at * static_cast<std::int64_t>(sizeof(Storage));
  if constexpr (Type == DType::kBF16 || Type == DType::kF16) {
    std::uint32_t words[Width / 2];
    pack<Type>(values, words);
    if constexpr (Width == 8)
      *reinterpret_cast<uint4*>(here) = make_uint4(words[0], words[1], words[2], words[3]);
    else
      *reinterpret_cast<uint2*>(here) = make_uint2(words[0], words[1]);
  } else if constexpr (Type == DType::kF32) {
    *reinterpret_cast<float4*>(here) = make_float4(values[0], values[1], values[2], values[3]);
  } else {
    std::uint32_t word = 0;
#pragma unroll
    for (int j = 0; j < Width; ++j) word |= static_cast<std::uint32_t>(Element<Type>::store(values[j])) << (8 * j);
    *reinterpret_cast<std::uint32_t*>(here) = word;
  }
}
template <int Type>
__device__ inline void store_raw(const float (&values)[kRawWidth<Type>], const Elements& to, std::int64_t row,
                                 std::int64_t col) {
  const std::int64_t at = row * to.row_stride + col;
  if constexpr (Type >= 0) {
    store_raw_typed<static_cast<DType>(Type)>(values, to, at);
  } else {
    switch (to.dtype) {
      case DType::kF32: return store_raw_typed<DType::kF32>(values, to, at);
      case DType::kF16: return store_raw_typed<DType::kF16>(values, to, at);
      case DType::kBF16: return store_raw_typed<DType::kBF16>(values, to, at);
      default: break;
    }
    if constexpr (Type == kAnyTypes) {
      if (to.dtype == DType::kE4M3) store_raw_typed<DType::kE4M3>(values, to, at);
      if (to.dtype == DType::kE5M2) store_raw_typed<DType::kE5M2>(values, to, at);
    }
  }
}

}  // namespace fp8lab::cuda
