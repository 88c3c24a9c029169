#pragma once

#include <cstdint>

// The orders in which long sums are added, the same on every device, so that results are too. Each is fixed by the
// number of terms alone, never by the number of threads, lanes or multiprocessors at hand.
namespace fp8lab {

/// Sums over a row, and of losses: term j goes to partial sum j % kSumLanes, each partial sum begins as +0 and takes
/// its terms in order. Then they are joined pairwise: inside each run of kSumRun neighbours i with i + 4, i + 2, i + 1;
/// then run r with r
/// + 1, the sums of two with the next two, and so on. Partial sums without terms are +0 and change nothing. A term
/// takes part in count / kSumLanes + 11 roundings at most.
inline constexpr int kSumLanes = 2048;
inline constexpr int kSumRun = 8;  ///< what one thread of a GPU reads at once

/// Losses: elements in their order in parts of this many, each summed as above, and the parts' sums as above again.
inline constexpr std::int64_t kLossPart = 32768;

/// Sums over columns: rows in parts of this many, in row order; kPartsInGroup parts in order make a group, and groups
/// are added in order. Every sum begins as +0.
constexpr std::int64_t rows_in_part(std::int64_t rows) {
  constexpr std::int64_t kFewestRows = 8, kMostParts = 256;
  const std::int64_t even = (rows + kMostParts - 1) / kMostParts;
  return even > kFewestRows ? even : kFewestRows;
}
inline constexpr std::int64_t kPartsInGroup = 16;

}  // namespace fp8lab
