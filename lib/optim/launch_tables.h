#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fp8lab {

/// How many lists of pointers a kernel over lists of tensors takes, which determines how many tensors fit into a table.
enum class ListDepth {
  kOne,   ///< gradients: 110 tensors
  kFour,  ///< gradients, parameters and two moments: 36 tensors
  kFive,  ///< the same and masters: 30 tensors
};

/// How many of the first tensors of a list the host launches a kernel for.
///
/// The launcher writes tensors and blocks of 65536 elements of them into a table, and launches the kernel when the
/// table is full (of tensors, or of 320 blocks) and after the last block of the last tensor. Hazard: a tensor without
/// elements has no block, so nothing is launched after it; if it is the last one, the tensors of the last table are
/// lost. Rule: the list has no such tensors. A tensor counts as launched if its last block is: kernels here update
/// entire tensors, but kernels of Transformer Engine update single blocks.
///
/// Throws Error if a table overflows, because its last place went to a tensor without elements.
std::size_t launched_tensors(std::span<const std::int64_t> elems, ListDepth depth);

}  // namespace fp8lab
