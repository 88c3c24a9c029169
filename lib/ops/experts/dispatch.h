#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "backend/device.h"
#include "comm/process_group.h"
#include "ops/experts/routing.h"

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
/// The way back: from rows grouped by own experts to this rank's choices, sorted by expert. A collective.
Tensor return_from_experts(Device& device, ProcessGroup& ranks, const ExchangedRows& exchanged, Tensor rows,
                           std::int64_t choices, HolderId holder, std::string_view label);

}  // namespace fp8lab
