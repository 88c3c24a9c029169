#include "ops/experts/dispatch.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/shape.h"
#include "ops/elementwise.h"
#include "ops/quantized_storage.h"

namespace fp8lab {
namespace {

using Numbers = std::vector<std::int32_t>;

/// How many of the choices that begin at `begins` go to each expert.
Numbers counts_of(Device& device, const Tensor& begins, std::int64_t choices) {
  const std::int64_t experts = begins.numel() - 1;
  Numbers first(static_cast<std::size_t>(experts) + 1), counts;
  if (device.computes())
    device.read_bytes_to(begins, std::as_writable_bytes(std::span(first)));
  else
    for (std::int64_t e = 0; e <= experts; ++e)
      first[static_cast<std::size_t>(e)] = static_cast<std::int32_t>(choices * e / experts);
  for (std::size_t e = 0; e + 1 < first.size(); ++e) counts.push_back(first[e + 1] - first[e]);
  return counts;
}

/// Every rank's numbers, `own` of this one.
Numbers counts_of_all_ranks(ProcessGroup& ranks, const Numbers& own, std::string_view label) {
  Numbers all;
  std::vector<std::int64_t> offsets{0};
  for (int rank = 0; rank < ranks.size(); ++rank) {
    all.insert(all.end(), own.begin(), own.end());
    offsets.push_back(static_cast<std::int64_t>(all.size() * sizeof(std::int32_t)));
  }
  const GatherPart part{.from = reinterpret_cast<const std::byte*>(own.data()),
                        .to = reinterpret_cast<std::byte*>(all.data()),
                        .offsets_bytes = offsets};
  ranks.host().all_gather({&part, 1}, label);
  return all;
}

/// The rows that a rank received, grouped by its experts.
struct Grouping {
  Numbers rows, sources, begins;
};

/// `counts`: [ranks, experts]. `received`, `grouped`: the rows for which there is room, before and after.
Grouping group_received(const Numbers& counts, int ranks, int rank, std::int64_t received, std::int64_t grouped,
                        std::int64_t multiple) {
  const std::size_t experts = counts.size() / static_cast<std::size_t>(ranks),
                    own = experts / static_cast<std::size_t>(ranks), first = own * static_cast<std::size_t>(rank);
  Grouping out{.rows = Numbers(static_cast<std::size_t>(received), -1),
               .sources = Numbers(static_cast<std::size_t>(grouped), -1),
               .begins = {0}};
  for (std::size_t e = 0; e < own; ++e) {
    std::int64_t rows = 0;
    for (std::size_t s = 0; s < static_cast<std::size_t>(ranks); ++s) rows += counts[s * experts + first + e];
    out.begins.push_back(static_cast<std::int32_t>(out.begins.back() + round_up(rows, multiple)));
  }
  Numbers next = out.begins;
  std::int32_t source = 0;
  for (std::size_t s = 0; s < static_cast<std::size_t>(ranks); ++s)
    for (std::size_t e = 0; e < own; ++e)
      for (std::int32_t i = 0; i < counts[s * experts + first + e]; ++i) {
        out.rows[static_cast<std::size_t>(source)] = next[e];
        out.sources[static_cast<std::size_t>(next[e]++)] = source++;
      }
  return out;
}

/// The rows that each rank sends to each rank, sender by sender; on the way back the receivers send what they received.
std::vector<std::int64_t> rows_between(Device& device, const ExchangedRows& exchanged, std::int64_t choices,
                                       bool back) {
  const std::int64_t ranks = exchanged.counts.rows(), experts = exchanged.counts.cols();
  const Numbers& counts = exchanged.known_counts;
  std::vector<std::int64_t> rows(static_cast<std::size_t>(ranks * ranks));
  for (std::int64_t s = 0; s < ranks; ++s)
    for (std::int64_t e = 0; e < experts; ++e) {
      const std::int64_t d = e / (experts / ranks), count = device.computes()
                                                                ? counts[static_cast<std::size_t>(s * experts + e)]
                                                                : choices * (e + 1) / experts - choices * e / experts;
      rows[static_cast<std::size_t>(back ? d * ranks + s : s * ranks + d)] += count;
    }
  return rows;
}

/// A matrix that travels, with the rows_between() ranks, to one of `received` rows on the ranks that get them.
struct Travel {
  Travel(Device& device, const Tensor& rows, std::int64_t received, std::vector<std::int64_t> between, HolderId holder,
         Content is = Content::kPayload)
      : from(rows),
        to(device.allocate({Shape{received, rows.cols()}, rows.dtype()}, holder)),
        bytes(std::move(between)),
        content(is) {
    for (std::int64_t& count : bytes) count *= rows.cols() * static_cast<std::int64_t>(size_bytes(rows.dtype()));
  }
  AllToAllPart part() const {
    return {.from = from.view().data, .to = to.view().data, .bytes = bytes, .content = content};
  }

  Tensor from, to;
  std::vector<std::int64_t> bytes;
  Content content;
};

/// Every rank calls it.
Tensor exchange(Device& device, ProcessGroup& ranks, const Tensor& rows, std::int64_t received,
                std::vector<std::int64_t> between, HolderId holder, std::string_view label) {
  const Travel travel(device, rows, received, std::move(between), holder);
  const AllToAllPart part = travel.part();
  ranks.all_to_all({&part, 1}, label);
  return travel.to;
}

void check_scales_travel(const QuantFormat& format) {
  if (format.amax_source == AmaxSource::kTensor)
    fail(
        "send_to_experts: a scale that follows from the rows of one rank is not the scale of another rank's; blocks "
        "have scales that travel, and a history has one for all ranks");
  check(format.per_tensor() || format.block_rows == 1, "send_to_experts: blocks of several rows do not travel");
}

}  // namespace

std::int64_t most_received_rows(std::int64_t tokens, std::int64_t choices, std::int64_t experts, int ranks) {
  return ranks * tokens * std::min(choices, experts / ranks);
}

ExchangedRows known_exchange(Device& device, Tensor counts, GroupedRows arrived) {
  ExchangedRows out{.counts = std::move(counts), .arrived = std::move(arrived)};
  if (!device.computes()) return out;
  out.known_counts.resize(static_cast<std::size_t>(out.counts.numel()));
  device.read_bytes_to(out.counts, std::as_writable_bytes(std::span(out.known_counts)));
  return out;
}

ExchangedRows exchange_counts(Device& device, ProcessGroup& ranks, const GroupedRows& chosen, std::int64_t multiple,
                              HolderId holder, std::string_view label) {
  const std::int64_t experts = chosen.begins.numel() - 1, choices = chosen.rows.numel();
  if (experts % ranks.size() != 0)
    fail(fmt::format("exchange_counts: {} ranks have {} experts between them; each has the same number", ranks.size(),
                     experts));
  const std::int64_t own = experts / ranks.size(),
                     received = most_received_rows(chosen.rows.rows(), chosen.rows.cols(), experts, ranks.size()),
                     grouped = rows_of_choices(received, 1, own, multiple);
  if (grouped > std::numeric_limits<std::int32_t>::max())
    fail(fmt::format("exchange_counts: {} rows of choices; their numbers have 32 bits", grouped));
  Numbers counts = counts_of_all_ranks(ranks, counts_of(device, chosen.begins, choices), label);
  const auto make = [&](std::int64_t rows, std::int64_t cols) {
    return device.allocate({Shape{rows, cols}, DType::kI32}, holder);
  };
  ExchangedRows out{.counts = make(ranks.size(), experts),
                    .arrived = {.rows = make(received, 1), .sources = make(grouped, 1), .begins = make(own + 1, 1)}};
  if (!device.computes()) return out;
  const Grouping grouping = group_received(counts, ranks.size(), ranks.rank(), received, grouped, multiple);
  device.write_bytes(out.counts, std::as_bytes(std::span(counts)));
  device.write_bytes(out.arrived.rows, std::as_bytes(std::span(grouping.rows)));
  device.write_bytes(out.arrived.sources, std::as_bytes(std::span(grouping.sources)));
  device.write_bytes(out.arrived.begins, std::as_bytes(std::span(grouping.begins)));
  out.known_counts = std::move(counts);
  return out;
}

Tensor send_to_experts(Device& device, ProcessGroup& ranks, const ExchangedRows& exchanged, Tensor rows,
                       HolderId holder, std::string_view label) {
  const Tensor received = exchange(device, ranks, rows, exchanged.arrived.rows.numel(),
                                   rows_between(device, exchanged, rows.rows(), false), holder, label);
  rows = {};
  return permute(device, received, exchanged.arrived, {}, holder);
}

EightBitRows permute(Device& device, const QuantizedTensor& tokens, const GroupedRows& chosen, HolderId holder) {
  const QuantFormat& format = tokens.format();
  check_scales_travel(format);
  EightBitRows out{.format = format,
                   .data = permute(device, tokens.rowwise().data, chosen, {}, holder),
                   .scales = tokens.rowwise().scale_inv};
  if (!format.per_tensor()) out.scales = permute(device, rowwise_scales(tokens), chosen, {}, holder);
  return out;
}

EightBitRows eight_bit_rows(Device& device, const QuantizedTensor& choices, HolderId holder) {
  const QuantFormat& format = choices.format();
  check_scales_travel(format);
  EightBitRows out{.format = format, .data = choices.rowwise().data, .scales = choices.rowwise().scale_inv};
  if (format.per_tensor()) return out;
  const Tensor padded = rowwise_scales(choices);
  out.scales = device.allocate({Shape{padded.rows(), padded.cols()}, padded.dtype()}, holder);
  copy_into(device, padded, out.scales);
  return out;
}

QuantizedTensor send_to_experts(Device& device, ProcessGroup& ranks, const ExchangedRows& exchanged, EightBitRows rows,
                                HolderId holder, std::string_view label) {
  const QuantFormat format = rows.format;
  const std::int64_t received = exchanged.arrived.rows.numel(), grouped = exchanged.arrived.sources.numel();
  const std::vector<std::int64_t> between = rows_between(device, exchanged, rows.data.rows(), false);
  QuantizedTensor out({grouped, rows.data.cols()}, format);
  std::vector<Travel> travels;
  travels.reserve(2);
  travels.emplace_back(device, rows.data, received, between, holder);
  if (format.per_tensor())
    out.rowwise().scale_inv = rows.scales;
  else
    travels.emplace_back(device, rows.scales, received, between, holder, Content::kScales);
  rows = {};
  std::vector<AllToAllPart> parts;
  for (const Travel& travel : travels) parts.push_back(travel.part());
  ranks.all_to_all(parts, label);
  for (Travel& travel : travels) travel.from = {};

  out.rowwise().data = permute(device, travels.front().to, exchanged.arrived, {}, holder);
  if (format.per_tensor()) return out;
  const OrientationLayout layout = rowwise_layout(format, out.rows(), out.cols());
  out.rowwise().scale_inv = device.allocate(layout.scales.spec, holder);
  fill(device, out.rowwise().scale_inv, 0.0f);
  permute_into(device, travels.back().to, exchanged.arrived, rowwise_scales(out));
  return out;
}

Tensor return_from_experts(Device& device, ProcessGroup& ranks, const ExchangedRows& exchanged, Tensor rows,
                           std::int64_t choices, HolderId holder, std::string_view label) {
  std::vector<std::int64_t> between = rows_between(device, exchanged, choices, true);
  // Each received row takes its row of the grouped ones: a permutation too, the other way round.
  const GroupedRows back{
      .rows = exchanged.arrived.sources, .sources = exchanged.arrived.rows, .begins = exchanged.arrived.begins};
  const Tensor leaving = permute(device, rows, back, {}, holder);
  rows = {};
  return exchange(device, ranks, leaving, choices, std::move(between), holder, label);
}

}  // namespace fp8lab
