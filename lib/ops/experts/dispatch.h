#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "backend/device.h"
#include "comm/process_group.h"
#include "ops/experts/routing.h"
#include "tensor/quantized_tensor.h"

// Expert parallelism: the ranks of a group have the experts of a layer between them, rank r experts [r, r + 1) *
// experts / ranks. Each rank's choices travel to the ranks that have their experts, and the results travel back.
namespace fp8lab {

/// The most rows that one of `ranks` ranks can receive: the experts of a token differ, so a token sends one rank at
/// most `experts / ranks` of its `choices`. Memory has room for so many, whatever the counts of this batch are.
std::int64_t most_received_rows(std::int64_t tokens, std::int64_t choices, std::int64_t experts, int ranks);

/// The way of the choices of all ranks, as one rank sees it.
struct ExchangedRows {
  Tensor counts;        ///< i32 [ranks, experts]: how many choices of each rank go to each expert
  GroupedRows arrived;  ///< received rows, from rank 0 first and then by expert, as choices; grouped by own experts
  /// The values of `counts`, so that neither way waits for the device; empty without values (meta).
  std::vector<std::int32_t> known_counts{};
};
/// The same from tensors that were saved; waits for the device.
ExchangedRows known_exchange(Device& device, Tensor counts, GroupedRows arrived);
/// Every rank learns every rank's counts, in one all-gather over host memory. `chosen`: this rank's choices, grouped by
/// all experts without padding. The received rows of each own expert, from rank 0 first, are padded to a multiple of
/// `multiple`. A collective, which waits for the device. Without values (meta) the experts have nearly equal counts.
ExchangedRows exchange_counts(Device& device, ProcessGroup& ranks, const GroupedRows& chosen, std::int64_t multiple,
                              HolderId holder, std::string_view label);

/// Sends the rows [choices, columns] of this rank's choices, sorted by expert, to the ranks that have their experts.
/// Returns the rows of own experts, grouped by expert, with zeros in rows of padding. Frees `rows` in between. A
/// collective.
Tensor send_to_experts(Device& device, ProcessGroup& ranks, const ExchangedRows& exchanged, Tensor rows,
                       HolderId holder, std::string_view label);

/// Rows of choices in eight bits, on their way to the ranks that have their experts. The scales of blocks of one row
/// travel apart from the data and without the padding that products need. A scale of the full tensor does not travel,
/// so every rank must have cast with the same one: this is so if it follows from a history of the largest amaxes over
/// all ranks (update_scales() with a group). Then what arrives has the bits that a cast after the arrival would give.
struct EightBitRows {
  QuantFormat format;
  Tensor data;    ///< [choices, columns]
  Tensor scales;  ///< [choices, blocks of a row], or f32 [1] for the full tensor
};
/// From tokens, cast row-wise, to their choices, sorted by expert. Throws Error if a scale of the full tensor follows
/// from its own amax.
EightBitRows permute(Device& device, const QuantizedTensor& tokens, const GroupedRows& chosen, HolderId holder);
/// From rows of choices, cast row-wise. The data is not copied.
EightBitRows eight_bit_rows(Device& device, const QuantizedTensor& choices, HolderId holder);
/// As above, in eight bits: data and scales travel in one collective. The result has the row-wise orientation, with
/// zeros in padding.
QuantizedTensor send_to_experts(Device& device, ProcessGroup& ranks, const ExchangedRows& exchanged, EightBitRows rows,
                                HolderId holder, std::string_view label);

/// The way back: from rows grouped by own experts to this rank's choices, sorted by expert. A collective.
Tensor return_from_experts(Device& device, ProcessGroup& ranks, const ExchangedRows& exchanged, Tensor rows,
                           std::int64_t choices, HolderId holder, std::string_view label);

}  // namespace fp8lab
