#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
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
  std::string noisiest;             ///< the tensor that has it; "" if equal runs have equal bits, except for `unlike`
  std::size_t unlike = 0;           ///< tensors of equal runs that no relative difference compares
  std::string first_unlike;         ///< the first of them, and why
  std::optional<Difference> first;  ///< nothing: no tensor differs by more than noise
  /// The tensor whose difference exceeds every difference before it in its phase by the largest factor, and this
  /// factor; only a tensor after `first`, and only from a factor of kSteep on. The first of a phase is compared with
  /// all phases: a gradient's relative difference is larger than an output's in healthy training.
  std::optional<Difference> rise;
  double rise_factor = 0;
  std::set<std::string> incomplete;  ///< RankRecording::incomplete of the recordings that are
};

/// A difference must be so many times the noise, which is one sample of a random figure.
inline constexpr double kTimesNoise = 8.0;
/// From this factor on a rise is worth a line.
inline constexpr double kSteep = 10.0;

/// The tensors of two equal runs, of one rank.
struct Repeat {
  const RankRecording* one;
  const RankRecording* other;
};

/// Compares recordings rank by rank. A difference up to `tolerance` is none. Another shape, and other elements that are
/// not finite, are a difference, and never noise. Tensors are paired by step, phase, module and name, and equal
/// ones by their number; if a run has more of them than the other, only those with equal bits are paired, in their
/// order. The order is the order of `a`. The first difference is the one of the lowest step and position over all
/// ranks.
class RecordingComparison {
 public:
  explicit RecordingComparison(double tolerance) : tolerance_(tolerance) {}
  void add(int rank, const RankRecording& a, const RankRecording& b, const std::vector<Repeat>& repeats);
  /// Throws Error if no tensor was in both recordings.
  const Divergence& result() const;

 private:
  double tolerance_;
  Divergence out_;
};

/// The folders of two recordings, which may be of equal runs.
struct FolderPair {
  std::filesystem::path one, other;
};

/// Compares the recordings in two folders; one rank at a time is in memory. Throws Error if they have different ranks.
Divergence compare_folders(const FolderPair& compared, const std::vector<FolderPair>& repeats, double tolerance);

}  // namespace fp8lab
