// The way of tokens to the ranks that have their experts, and back.

#include "ops/experts/dispatch.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/process_groups.h"
#include "ops/quantize.h"
#include "recipe/recipe.h"
#include "reference/test_data.h"
#include "support/dense.h"
#include "support/error_of.h"

namespace fp8lab {
namespace {

constexpr std::int64_t kTokens = 7, kChoices = 2, kExperts = 12, kColumns = 3;
using Numbers = std::vector<std::int32_t>;

void on_ranks(int ranks, const RankFunction& rank_function, bool moves_data = true) {
  run_ranks("in_process", {.ranks = ranks, .timeout = std::chrono::seconds(60), .moves_data = moves_data},
            rank_function);
}

/// The experts of each of a rank's choices: other ones on each rank, half of them on two experts, and none for experts
/// 3, 4 and 5.
Numbers choices_of(int rank) {
  Numbers out;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    const auto draw = reference::scramble(static_cast<std::uint64_t>(97 * rank + t));
    const auto first = static_cast<std::int32_t>(draw % 2 == 0 ? 0 : 6 + draw / 2 % 6);
    out.push_back(first);
    out.push_back(first == 1 + rank % 2 ? 0 : 1 + rank % 2);
  }
  return out;
}

/// The value of a column of a choice; no two choices have the same.
float value_of(int rank, std::int64_t choice, std::int64_t column) {
  return static_cast<float>(1 + rank * 100 + choice * kColumns + column);
}

struct Sent {
  GroupedRows chosen;
  Tensor rows;  ///< sorted by expert
};

/// This rank's choices, each a row of its own values.
Sent sent_by(Device& device, int rank) {
  const HolderId anyone = support::anyone(device);
  const Tensor experts = device.allocate({Shape{kTokens, kChoices}, DType::kI32}, anyone);
  const Numbers chosen = choices_of(rank);
  device.write_bytes(experts, std::as_bytes(std::span(chosen)));
  Sent sent{.chosen = group_rows(device, experts, kExperts, 1, anyone), .rows = {}};
  std::vector<float> values;
  for (std::int32_t e = 0; e < kExperts; ++e)
    for (std::size_t i = 0; i < chosen.size(); ++i)
      for (std::int64_t j = 0; chosen[i] == e && j < kColumns; ++j)
        values.push_back(value_of(rank, static_cast<std::int64_t>(i), j));
  sent.rows = support::make_tensor(device, {kTokens * kChoices, kColumns}, DType::kF32, values);
  return sent;
}

/// What `rank` has of all choices: the rows of its experts, of each from rank 0 first, padded with zeros.
std::vector<float> expected_on(int rank, int ranks, std::int64_t multiple, std::int64_t rows) {
  std::vector<float> out;
  const auto own = static_cast<std::int32_t>(kExperts / ranks);
  for (std::int32_t e = rank * own; e < (rank + 1) * own; ++e) {
    for (int source = 0; source < ranks; ++source) {
      const Numbers chosen = choices_of(source);
      for (std::size_t i = 0; i < chosen.size(); ++i)
        for (std::int64_t j = 0; chosen[i] == e && j < kColumns; ++j)
          out.push_back(value_of(source, static_cast<std::int64_t>(i), j));
    }
    while (std::ssize(out) % (multiple * kColumns) != 0) out.push_back(0.0f);
  }
  out.resize(static_cast<std::size_t>(rows * kColumns));
  return out;
}

TEST(Dispatch, RowsComeToTheirExpertsInTheOrderOfRanks_AndBackToTheirPlaces) {
  for (const int ranks : {1, 2, 3, 4, 6, 12})
    for (const std::int64_t multiple : {1, 4})
      on_ranks(ranks, [&](ProcessGroup& world) {
        const auto device = open_device(support::test_device(),
                                        {.rank = world.local_rank(), .memory = {.capacity_bytes = 0, .poison = true}});
        const std::unique_ptr<ProcessGroup> group = world.for_device(*device);
        const HolderId anyone = support::anyone(*device);
        const Sent sent = sent_by(*device, world.rank());
        const ExchangedRows exchanged = exchange_counts(*device, *group, sent.chosen, multiple, anyone, "mlp");
        const Tensor there = send_to_experts(*device, *group, exchanged, sent.rows, anyone, "mlp");
        EXPECT_EQ(device->read(there), expected_on(world.rank(), ranks, multiple, there.rows()))
            << ranks << " ranks, rank " << world.rank();
        const Tensor back = return_from_experts(*device, *group, exchanged, there, kTokens * kChoices, anyone, "mlp");
        EXPECT_EQ(device->read(back), device->read(sent.rows)) << ranks << " ranks, rank " << world.rank();
        const std::vector<RowGroup> groups = read_groups(*device, exchanged.arrived, multiple);
        EXPECT_EQ(std::ssize(groups), kExperts / ranks);
        EXPECT_EQ(group->traffic().of(CollectiveKind::kAllToAll),
                  (TrafficCount{.collectives = 2, .payload_bytes = 2 * ranks * kTokens * kChoices * kColumns * 4}));
        EXPECT_EQ(group->host().traffic().of(CollectiveKind::kAllGather),
                  (TrafficCount{.collectives = 1, .payload_bytes = ranks * kExperts * 4}));
      });
}

// Sizes, traffic and the order of calls are the same as on a device with values.
TEST(Dispatch, OnShapesAlone_MovesTheSameBytes) {
  on_ranks(
      4,
      [&](ProcessGroup& world) {
        const auto device = open_device("meta");
        const Sent sent = sent_by(*device, world.rank());
        const HolderId anyone = support::anyone(*device);
        const ExchangedRows exchanged = exchange_counts(*device, world, sent.chosen, 4, anyone, "mlp");
        const Tensor there = send_to_experts(*device, world, exchanged, sent.rows, anyone, "mlp");
        EXPECT_EQ(there.rows(), (4 * kTokens * kChoices + 3 * 3) / 4 * 4);
        const Tensor back = return_from_experts(*device, world, exchanged, there, kTokens * kChoices, anyone, "mlp");
        EXPECT_EQ(back.shape(), sent.rows.shape());
        EXPECT_EQ(world.traffic().of(CollectiveKind::kAllToAll),
                  (TrafficCount{.collectives = 2, .payload_bytes = 2 * 4 * kTokens * kChoices * kColumns * 4}));
      },
      false);
}

constexpr std::int64_t kWide = 256;
constexpr float kScale = 5.0f;

QuantFormat format_of(const char* recipe) { return make_recipe(recipe).activation; }

/// Row-wise, under one scale on all ranks if the format has one.
QuantizedTensor cast_rows(Device& device, const Tensor& x, const QuantFormat& format) {
  Quantizer quantizer{.format = format, .holder = support::anyone(device)};
  if (format.amax_source == AmaxSource::kHistory)
    quantizer.scale = support::make_tensor(device, {1}, DType::kF32, {kScale});
  return quantize(device, x, quantizer);
}

/// Tokens of this rank, of which every block of 32 columns has a magnitude of its own.
Tensor tokens_of(Device& device, int rank) {
  std::vector<float> values;
  for (std::int64_t t = 0; t < kTokens; ++t)
    for (std::int64_t j = 0; j < kWide; ++j) {
      const auto draw = reference::scramble(static_cast<std::uint64_t>((rank * kTokens + t) * kWide + j));
      const auto binade = static_cast<int>((t + j / 32 * 3 + rank) % 11);
      values.push_back(std::ldexp(1.0f + static_cast<float>(draw % 1024) / 512.0f, binade - 5));
    }
  return support::make_tensor(device, {kTokens, kWide}, DType::kBF16, values);
}

/// Scales that travel with a row.
TrafficCount expected_traffic(const QuantFormat& format, int ranks) {
  const std::int64_t rows = ranks * kTokens * kChoices;
  // A byte for 32 columns, or 4 for 128.
  const std::int64_t scales = format.per_tensor() ? 0 : kWide / 32;
  return {.collectives = 1, .payload_bytes = rows * kWide, .scale_bytes = rows * scales};
}

// A cast of rows commutes with their way: every row arrives with its own scales, whichever rank sent it.
TEST(Dispatch, RowsInEightBitsArriveAsIfTheyWereCastAfterTheWay) {
  for (const char* recipe : {"delayed", "block", "mxfp8"})
    for (const int ranks : {1, 2, 4})
      on_ranks(ranks, [&](ProcessGroup& world) {
        const auto device = open_device(support::test_device(),
                                        {.rank = world.local_rank(), .memory = {.capacity_bytes = 0, .poison = true}});
        const std::unique_ptr<ProcessGroup> group = world.for_device(*device);
        const HolderId anyone = support::anyone(*device);
        const QuantFormat format = format_of(recipe);
        const GroupedRows chosen = sent_by(*device, world.rank()).chosen;
        const Tensor tokens = tokens_of(*device, world.rank()), choices = permute(*device, tokens, chosen, {}, anyone);
        const ExchangedRows exchanged = exchange_counts(*device, *group, chosen, 4, anyone, "mlp");
        const QuantizedTensor expected =
            cast_rows(*device, send_to_experts(*device, *group, exchanged, choices, anyone, "mlp"), format);
        const std::vector<EightBitRows> sent{permute(*device, cast_rows(*device, tokens, format), chosen, anyone),
                                             eight_bit_rows(*device, cast_rows(*device, choices, format), anyone)};
        for (const EightBitRows& rows : sent) {
          group->reset_traffic();
          const QuantizedTensor there = send_to_experts(*device, *group, exchanged, rows, anyone, "mlp");
          const std::string text = std::string(recipe) + ", rank " + std::to_string(world.rank());
          EXPECT_EQ(group->traffic().of(CollectiveKind::kAllToAll), expected_traffic(format, ranks)) << text;
          EXPECT_TRUE(device->read_bytes(there.rowwise().data) == device->read_bytes(expected.rowwise().data)) << text;
          const auto values = [&](const QuantizedTensor& q) {
            return device->read(dequantize(*device, q.rowwise_operand(), DType::kF32, anyone));
          };
          EXPECT_EQ(values(there), values(expected)) << text;
        }
      });
}

TEST(Dispatch, OfAScaleThatFollowsFromOneRanksRows_IsRefused) {
  const std::string error = support::error_of([] {
    const auto device = open_device("cpu");
    const QuantizedTensor cast = cast_rows(*device, tokens_of(*device, 0), format_of("current"));
    eight_bit_rows(*device, cast, support::anyone(*device));
  });
  EXPECT_TRUE(error.starts_with("send_to_experts: a scale that follows from the rows of one rank")) << error;
}

TEST(Dispatch, RanksThatDoNotDivideTheExpertsAreRefused) {
  const std::string error = support::error_of([] {
    on_ranks(5, [](ProcessGroup& world) {
      const auto device = open_device("cpu");
      const Sent sent = sent_by(*device, world.rank());
      exchange_counts(*device, world, sent.chosen, 1, support::anyone(*device), "mlp");
    });
  });
  EXPECT_TRUE(error.ends_with("exchange_counts: 5 ranks have 12 experts between them; each has the same number"))
      << error;
}

}  // namespace
}  // namespace fp8lab
