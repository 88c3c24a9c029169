#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/check.h"
#include "harness/measure/measure.h"
#include "harness/predict/predict.h"
#include "support/cells.h"
#include "support/recipe_names.h"

// Cells with a bound on the device's memory.
namespace fp8lab {
namespace {

/// On `meta`, which computes nothing, a model of many of the allocator's segments; elsewhere a small one.
CellConfig cell_of(const std::string& device, std::string_view recipe, int ranks) {
  CellConfig cell = support::small_cell(recipe, "llama");
  cell.device = device;
  if (device == "meta")
    cell.model = {
        .form = "llama", .layers = 3, .hidden = 2048, .heads = 16, .kv_heads = 4, .ffn = 4096, .seq = 1024, .batch = 2};
  cell.ranks = ranks;
  cell.measure = {"memory"};
  return cell;
}

double value_of(const ArmResult& result, const std::string& metric) {
  const auto found = result.metrics.find(metric);
  EXPECT_TRUE(found != result.metrics.end() && found->second.value) << metric << " is absent; " << result.reason;
  return found == result.metrics.end() ? -1.0 : found->second.value.value_or(-1.0);
}

void expect_text(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no `" << part << "` in: " << text;
}

/// Visits cells of every recipe on both devices, unsharded and in shards, with the result of an unbounded run.
template <class Visit>
void for_each_cell(Visit visit) {
  for (const char* device : {"cpu", "meta"})
    for (const std::string_view recipe : support::recipe_names())
      for (const int ranks : {1, 2}) {
        SCOPED_TRACE(std::string(device) + " " + std::string(recipe) + " on " + std::to_string(ranks));
        const CellConfig cell = cell_of(device, recipe, ranks);
        visit(cell, measure_arm(cell, Arm::kAfter));
      }
}

TEST(Capacity, OfTheReservedPeak_ChangesNothing) {
  for_each_cell([](CellConfig cell, const ArmResult& unbounded) {
    cell.capacity = static_cast<std::int64_t>(value_of(unbounded, "memory.reserved_peak_bytes"));
    const ArmResult bounded = measure_arm(cell, Arm::kAfter);
    EXPECT_EQ(bounded.status, "ok") << bounded.reason;
    EXPECT_EQ(bounded.sequence_hash, unbounded.sequence_hash);
    for (const auto& [name, metric] : unbounded.metrics) EXPECT_EQ(value_of(bounded, name), metric.value) << name;
  });
}

// Blocks that are in use at one moment take at least their own bytes.
TEST(Capacity, OneByteBelowThePeak_IsOutOfMemory) {
  for_each_cell([](CellConfig cell, const ArmResult& unbounded) {
    cell.capacity = static_cast<std::int64_t>(value_of(unbounded, "memory.peak_bytes")) - 1;
    try {
      measure_arm(cell, Arm::kAfter);
      ADD_FAILURE() << "the peak fitted into one byte less";
    } catch (const OutOfMemory& error) {
      const std::string text = error.what();
      expect_text(text, "out of device memory");
      expect_text(text, "B asked for by ");
      expect_text(text, "B reserved, capacity ");
      const std::size_t at = text.find("held by:");  // absent if nothing is held yet
      const std::string holders = at == std::string::npos ? "" : text.substr(at);
      if (cell.device == "meta") expect_text(holders, " of layers[*].");
      EXPECT_EQ(holders.find("layers[0]."), std::string::npos) << text;
    }
  });
}

// An unsharded model, which the parity metrics compare the shards with, needs more memory than the shards.
TEST(Capacity, DoesNotBoundTheRunsThatAnArmIsComparedWith) {
  CellConfig cell = cell_of("cpu", "delayed", 4);
  cell.training.quantized_weights = true;
  cell.training.master_weights = "f32";
  cell.training.optimizer = "adam";
  cell.measure = {"memory", "parity", "twin"};
  const ArmResult unbounded = measure_arm(cell, Arm::kAfter);
  cell.capacity = static_cast<std::int64_t>(value_of(unbounded, "memory.reserved_peak_bytes"));
  const ArmResult bounded = measure_arm(cell, Arm::kAfter);
  EXPECT_EQ(bounded.status, "ok") << bounded.reason;
  EXPECT_EQ(bounded.values_hash, unbounded.values_hash);
  EXPECT_EQ(value_of(bounded, "twin.losses_equal"), 1.0);
}

// The closed forms do not know of capacities: they say what a run needs.
TEST(Capacity, LeavesPredictionsAlone) {
  CellConfig cell = cell_of("meta", "delayed", 2);
  const auto unbounded = predict(cell, Arm::kAfter);
  cell.capacity = 1;
  EXPECT_EQ(predict(cell, Arm::kAfter), unbounded);
  EXPECT_GT(unbounded.at("memory.peak_bytes"), 1.0);
}

}  // namespace
}  // namespace fp8lab
