#pragma once

#include <cstdint>

#include "core/float_bits.h"

// The orders in which long sums are added. They are the same on every device, so that results are too: each order is
// fixed only by the number of terms, never by the number of threads, vector elements or multiprocessors at hand.
namespace fp8lab {

/// Order of sums over a row, and of losses. Term j goes to partial sum j % kSumLanes; each partial sum begins as +0 and
/// adds its terms in order. Then the partial sums are joined pairwise: inside each run of kSumRun neighbours i with i +
/// 4, then i + 2, then i + 1; then run r with run r + 1, the sums of two runs with the next two, and so on. Partial
/// sums without terms are +0 and change nothing. A term goes through count / kSumLanes + 11 roundings at most.
inline constexpr int kSumLanes = 2048;
inline constexpr int kSumRun = 8;  ///< elements that one GPU thread reads at once

/// Order of losses: elements are split in order into parts of this many, each part is summed as above, and so are the
/// sums of the parts.
inline constexpr std::int64_t kLossPart = 32768;

/// Order of a row's sum of exponentials, of which one pass finds the maximum too (ExponentialSum of core/elementary.h).
/// Terms go to partial sums and these are joined as above, but each run has a maximum m of its own: if a term
/// exceeds it, the run's partial sums are first multiplied by exp(m - new m), and two joined sums by exp(m - larger m).
/// Runs begin with the lowest finite number as their maximum.

/// Order of sums over columns: rows are split in order into parts of this many; kPartsInGroup consecutive parts make a
/// group, and groups are added in order. Every sum begins as +0.
F8_HOST_DEVICE constexpr std::int64_t rows_in_part(std::int64_t rows) {
  constexpr std::int64_t kFewestRows = 8, kMostParts = 256;
  const std::int64_t even = (rows + kMostParts - 1) / kMostParts;
  return even > kFewestRows ? even : kFewestRows;
}
inline constexpr std::int64_t kPartsInGroup = 16;

}  // namespace fp8lab
