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

/// Checks the handles that one call of the launcher takes: before it fills tables, it makes one for each of `tensors`
/// tensors in each of `lists` lists, and one for the flag that makes kernels skip. Hazard: a process has 20,321 handles
/// (20 MiB of 1032 bytes each in Transformer Engine 2.19), so the number of tensors in a call has a limit. Rule: long
/// lists are divided among calls. Throws Error if there are fewer handles.
void check_handles(std::size_t tensors, std::size_t lists);

/// True if a table that counts elements in 32 bits has the right size of a tensor with `elems` elements.
bool fits_32_bits(std::int64_t elems);

}  // namespace fp8lab
