#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "backend/kernels.h"

// How the GPU makes a product, decided on the host alone from types, strides, alignments and scales: a value that can
// be compared and printed, so that what takes which route is tested without a GPU.
namespace fp8lab::cuda {

/// How the library scales an operand's elements.
enum class OperandScaling : std::uint8_t { kNone, kTensor, kRowBlocks, kSquareBlocks };

/// A row-major operand [rows, k] as the library takes it: contiguous along k, or (`along_rows`) along its rows.
struct PlannedOperand {
  DType dtype = DType::kF32;
  OperandScaling scaling = OperandScaling::kNone;
  bool along_rows = false;
  std::int64_t stride = 0;  ///< elements between the starts of contiguous stretches

  bool operator==(const PlannedOperand&) const = default;
};

/// A problem of the library, which is also what its descriptors and algorithm are kept under. The result is row-major.
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
  bool amax = false;  ///< measured too; of a result in eight bits
  bool accumulate = false;
  bool fast_accumulation = false;
  /// Every matrix and its rows begin at multiples of 16 bytes. Algorithms that need more are not asked for, so that
  /// where the allocator put something does not choose how it is multiplied.
  bool aligned = false;

  bool operator==(const LibraryProblem&) const = default;
};

struct LibraryProblemHash {
  std::size_t operator()(const LibraryProblem& problem) const noexcept;
};

enum class GemmRoute : std::uint8_t {
  kLibrary,   ///< cuBLASLt on the operands as they lie
  kEmulated,  ///< cuBLASLt on operands dequantized to BF16 into scratch
  kGeneral,   ///< the kernel of gemm_general.cu
};

struct GemmPlan {
  GemmRoute route = GemmRoute::kGeneral;
  /// Why not the library: what of the operands it cannot take. Empty on other routes.
  std::string_view why_general;
  /// The library writes an FP32 product to scratch, and a kernel adds bias and `out` and rounds once: where the library
  /// has no such epilogue.
  bool finish = false;
  LibraryProblem problem;

  bool operator==(const GemmPlan&) const = default;
};

/// Of a product that is not empty: m, n and k positive.
GemmPlan plan_gemm(const GemmArgs& args);

/// One line, as in "library: bf16 T x bf16 N -> bf16, finished apart".
std::string describe(const GemmPlan& plan);

/// How a product is made of which only the quantized data are wanted.
struct GemmQuantizePlan {
  /// Why the library does not write the quantized data, so that the product goes through scratch in FP32. Empty where
  /// it does.
  std::string_view why_apart;
  /// The library's, where it writes them: row-wise, scaled by one factor.
  LibraryProblem problem;

  bool operator==(const GemmQuantizePlan&) const = default;
};

/// Of a product that is not empty. Beyond what plan_gemm() asks for, the library writes quantized data only of operands
/// scaled per tensor, e5m2 only where an operand is that, and adds only a bias in 16 bits, to what is not measured.
GemmQuantizePlan plan_gemm_quantize(const GemmQuantizeArgs& args);

std::string describe(const GemmQuantizePlan& plan);

/// Products made on a context so far, by the route that they took.
struct GemmRoutes {
  std::int64_t through_library = 0;
  std::int64_t emulated = 0;
  std::int64_t general = 0;
  /// Of the general ones, those planned for the library, which had no algorithm.
  std::int64_t declined = 0;
  /// Of those through the library, those whose data it wrote itself.
  std::int64_t to_quantized = 0;
};
const GemmRoutes& gemm_routes(ExecContext& context);

/// Where an operand dequantized to BF16 lies: in the order in which its data are stored, rows padded to 16 bytes.
/// `data` is an offset from nothing.
MatrixView dequantized_layout(const OperandView& operand);

}  // namespace fp8lab::cuda
