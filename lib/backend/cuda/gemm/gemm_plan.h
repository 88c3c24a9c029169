#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "backend/kernels.h"

// How the GPU computes a product, decided only on the host from types, strides, alignments and scales. The plan is a
// value that can be compared and printed, so that the choice of a route is tested without a GPU.
namespace fp8lab::cuda {

/// How an operand's elements are scaled by the library.
enum class OperandScaling : std::uint8_t { kNone, kTensor, kRowBlocks, kSquareBlocks };

/// An operand [rows, k] as the library reads it: contiguous along k or, if `along_rows`, contiguous along its rows.
struct PlannedOperand {
  DType dtype = DType::kF32;
  OperandScaling scaling = OperandScaling::kNone;
  bool along_rows = false;
  std::int64_t stride = 0;  ///< elements from the start of one contiguous row (or column) to the next

  bool operator==(const PlannedOperand&) const = default;
};

/// A product that the library computes; also the key under which its descriptors and algorithm are cached. The result
/// is row-major.
struct LibraryProblem {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  PlannedOperand a;
  PlannedOperand b;
  DType out = DType::kF32;
  std::int64_t out_stride = 0;
  bool bias = false;
  DType bias_dtype = DType::kF32;
  bool amax = false;  ///< the amax is measured too; for results in eight bits only
  bool accumulate = false;
  bool fast_accumulation = false;
  /// All matrices and their rows begin at multiples of 16 bytes. Algorithms that need more alignment are never
  /// requested, so that the address that the allocator chose does not influence the choice of the algorithm.
  bool aligned = false;

  bool operator==(const LibraryProblem&) const = default;
};

struct LibraryProblemHash {
  std::size_t operator()(const LibraryProblem& problem) const noexcept;
};

enum class GemmRoute : std::uint8_t {
  kLibrary,   ///< cuBLASLt on the operands in place
  kEmulated,  ///< cuBLASLt on operands dequantized to BF16 into scratch
  kGeneral,   ///< the kernel gemm_general() of gemm_kernels.cu
};

struct GemmPlan {
  GemmRoute route = GemmRoute::kGeneral;
  /// Why the library cannot be used. Empty on other routes.
  std::string_view why_general;
  /// True if the operand's scales are first copied to scratch as the library reads them (packed_scales()). Parts of a
  /// matrix need it: the library takes no stride between scales.
  bool pack_a = false;
  bool pack_b = false;
  /// True if the library writes an FP32 product to scratch and a kernel adds bias and `out` and rounds once, because
  /// the library has no such epilogue.
  bool finish = false;
  LibraryProblem problem;

  bool operator==(const GemmPlan&) const = default;
};

/// The plan of a product whose m, n and k are positive.
GemmPlan plan_gemm(const GemmArgs& args);

/// One line, for example "library: bf16 T x bf16 N -> bf16, finished apart".
std::string describe(const GemmPlan& plan);

/// How a product is computed of which only the quantized data are wanted.
struct GemmQuantizePlan {
  /// Why the library does not write the quantized data, so that the product goes through scratch in FP32. Empty if it
  /// does.
  std::string_view why_apart;
  /// The library's problem if it writes the quantized data: row-wise, under one scale.
  LibraryProblem problem;

  bool operator==(const GemmQuantizePlan&) const = default;
};

/// The plan of a product that is not empty. Beyond the conditions of plan_gemm(), the library writes quantized data
/// only for operands scaled per tensor, E5M2 only if an operand is E5M2, and adds only a bias in 16 bits, and only if
/// no amax is measured.
GemmQuantizePlan plan_gemm_quantize(const GemmQuantizeArgs& args);

std::string describe(const GemmQuantizePlan& plan);

/// Number of products computed on a context so far, by route.
struct GemmRoutes {
  std::int64_t through_library = 0;
  std::int64_t emulated = 0;
  std::int64_t general = 0;
  /// General products that were planned for the library, which had no algorithm.
  std::int64_t declined = 0;
  /// Products through the library whose quantized data it wrote itself.
  std::int64_t to_quantized = 0;
};
const GemmRoutes& gemm_routes(ExecContext& context);

/// The layout of an operand dequantized to BF16: in the order in which its data are stored, rows padded to 16 bytes.
/// `data` is null.
MatrixView dequantized_layout(const OperandView& operand);

/// The layout in which the library reads an operand's scales by blocks: f32 [blocks along rows, blocks along columns].
/// `data` is null.
MatrixView packed_scales(const OperandView& operand);

}  // namespace fp8lab::cuda
