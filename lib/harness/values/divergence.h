#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/values/recording.h"

// The first tensor, in the order of execution, in which two runs differ by more than two equal runs do.
namespace fp8lab {

/// A tensor in which two recordings differ.
struct Difference {
  int rank = 0;
  std::int64_t step = 0;
  std::string place;      ///< "backward, blocks.3.attn: gradient of output"
  double size = 0;        ///< relative_difference(); infinity also for another shape
  double norm = 0;        ///< the norm of the tensor in the first recording
  double other_norm = 0;  ///< its norm in the second recording
  double noise = 0;       ///< largest difference of this tensor, or of the tensor before it, in two equal runs
  std::size_t order = 0;  ///< position in the order of execution of its rank
  std::string why;        ///< "shape 4x8 instead of 8x8"; "" for other values
  std::string types;      ///< "bfloat16 instead of float32"; "" for equal types
};

struct Divergence {
  std::size_t tensors = 0;    ///< that both recordings have
  std::size_t different = 0;  ///< by more than noise
  std::size_t only_in_one = 0;
  std::string first_only;  ///< the first tensor that only one recording has, and which one
  double largest_noise = 0;
  std::string noisiest;             ///< the tensor that has it; "" if equal runs have equal bits
  std::optional<Difference> first;  ///< nothing: no tensor differs by more than noise
  /// The tensor whose difference exceeds every difference before it in its phase by the largest factor, and this
  /// factor; only a tensor after `first`, and only from a factor of kSteep on. The first of a phase is compared with
  /// all phases: a gradient's relative difference is larger than an output's in healthy training.
  std::optional<Difference> rise;
  double rise_factor = 0;
};

/// A difference must be so many times the noise, which is one sample of a random figure.
inline constexpr double kTimesNoise = 8.0;
/// From this factor on a rise is worth a line.
inline constexpr double kSteep = 10.0;

/// Two recordings of equal runs.
struct Repeat {
  const Recording* one;
  const Recording* other;
};

/// Compares `b` with `a`. A difference up to `tolerance` is none. Another shape, and a value that is not finite in one
/// of two runs, is a difference, and never noise. Tensors are paired by step, phase, module and name,
/// and equal ones by their number; the order is the order of `a`. The first difference is the one of the lowest
/// position over all ranks. Throws Error if the recordings have different ranks, or no tensor in common.
Divergence compare_recordings(const Recording& a, const Recording& b, const std::vector<Repeat>& repeats,
                              double tolerance);

}  // namespace fp8lab
