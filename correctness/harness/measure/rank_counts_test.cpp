#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/check.h"
#include "harness/cell/sharding_keys.h"
#include "harness/cell/vocabulary.h"
#include "harness/measure/measure.h"
#include "harness/results/json_codec.h"
#include "harness/results/verdict.h"
#include "harness/scenario/scenario.h"
#include "support/cells.h"
#include "support/drifting_group.h"
#include "support/paths.h"

// Every sharded cell that ships, over rank counts that its scenario does not give, with values that differ between
// ranks: all ranks must still call the same collectives and agree on the figures of all ranks together.
namespace fp8lab {
namespace {

constexpr int kRankCounts[] = {2, 3, 4, 5, 7, 8};

/// Results that are changed by one bit on odd ranks, in the last step of the arm's own run only. In that step even
/// ranks find values equal to the values of the run that they compare with, and odd ranks do not.
enum class Drift { kNone, kGathers, kGradients };

const char* name(Drift drift) {
  return drift == Drift::kNone ? "no drift" : drift == Drift::kGathers ? "drift of gathers" : "drift of gradients";
}

/// The same measurement in a fraction of the time. The sequence of collectives depends on sizes only through which
/// ranks have rows and whether those are full blocks: of MXFP8's blocks of 32 rows there are two, so that two ranks
/// have one each; without blocks 32 rows are as uneven over 3, 5 and 7 ranks as more.
CellConfig small(CellConfig cell) {
  const std::int64_t block = make_recipe(cell.training.recipe).rows_multiple;
  const std::int64_t tokens = std::max<std::int64_t>(block, 16);
  const std::int64_t widest = std::max<std::int64_t>(tokens, tokens == 16 ? 32 : 64);
  cell.training.steps = std::min<std::int64_t>(cell.training.steps, 2);
  cell.training.micro_batches = std::min<std::int64_t>(cell.training.micro_batches, 2);
  cell.training.frozen_layers = 0;  // parity, which every cell measures here, refuses them
  ModelConfig& model = cell.model;
  model.layers = std::min<std::int64_t>(model.layers, cell.gather_ahead ? 2 : 1);
  model.heads = model.kv_heads = std::min<std::int64_t>(model.heads, 2);
  model.hidden = std::min(model.hidden, widest);
  model.ffn = std::min(model.ffn, widest);
  model.seq = tokens;
  model.batch = 1;
  return cell;
}

/// `cell` over `ranks` ranks. A mesh with replicas gets two of them if the count is even, and only replicas if it is
/// odd.
CellConfig over(CellConfig cell, int ranks) {
  const bool replicas = mesh_of(cell).replicas > 1;
  cell.ranks = ranks;
  if (cell.context_parallel > 1) {
    cell.context_parallel = ranks;
    cell.model.seq *= 2 * ranks;  // two chunks for each
  }
  cell.mesh = !replicas        ? std::to_string(ranks)
              : ranks % 2 == 0 ? "2x" + std::to_string(ranks / 2)
                               : std::to_string(ranks) + "x1";
  cell.expert_parallel = std::gcd(cell.expert_parallel, mesh_of(cell).shards);
  return cell;
}

struct Work {
  CellConfig cell;
  Arm arm = Arm::kAfter;
  bool fails = false;  ///< at the number of ranks that its scenario gives
};

/// A key that is equal for arms whose runs are the same.
std::string identity_of(CellConfig cell, Arm arm) {
  cell.scenario = cell.id = "";
  cell.axes.clear();
  if (arm != Arm::kBefore) cell.fix = "";
  TrainingConfig& training = cell.training;
  if (!make_recipe(training.recipe).quantized) training.quantized_weights = false;
  // Values that sharded cells have if these are left out.
  if (cell.sharding == Sharded::kFsdp) cell.sharding.reset();
  if (training.deferred_init == true) training.deferred_init.reset();
  return cell_to_json(over(cell, 2)) + (arm == Arm::kBefore ? " before" : "");
}

bool ends(const PlannedCell& planned, Arm arm, std::string_view status) {
  return std::ranges::any_of(planned.expect, [&](const Expectation& e) {
    return e.comparison == Comparison::kEnds && e.status == status && name(e.side) == name(arm);
  });
}

/// Both arms of every sharded cell on `cpu` of the scenarios that ship, with the measurements of parity and of traffic,
/// which each rank counts by itself. Arms whose cells differ only in names, sizes or ranks count once. Excluded are
/// arms that crash in some cell, since over another number of ranks they may crash in each and end this process, and
/// the BF16 arm, which cells under `bf16` run.
std::vector<Work> bundled_work() {
  std::vector<Work> all;
  std::set<std::string> known, crashing_fixes;
  const Vocabulary& vocabulary = bundled_vocabulary();
  const LoadedScenarios loaded = load_scenarios(find_scenario_files({paths::kScenarios}), vocabulary);
  for (const PlannedCell& planned : loaded.cells)
    if (ends(planned, Arm::kBefore, "crashed")) crashing_fixes.insert(planned.config.fix);
  for (const PlannedCell& planned : loaded.cells) {
    if (planned.config.device != "cpu" || !has_ranks(planned.config)) continue;
    CellConfig cell = small(planned.config);
    std::set<std::string> measure(cell.measure.begin(), cell.measure.end());
    measure.erase("time");
    measure.insert({"parity", "traffic"});
    cell.measure.assign(measure.begin(), measure.end());
    for (const Arm arm : arms_of(planned, vocabulary))
      if (arm != Arm::kBf16 && !(arm == Arm::kBefore && crashing_fixes.contains(cell.fix)) &&
          known.insert(identity_of(cell, arm)).second)
        all.push_back({.cell = cell, .arm = arm, .fails = ends(planned, arm, "error")});
  }
  return all;
}

struct Outcome {
  std::vector<ArmResult> by_rank;
  std::string error;
};

/// Measures an arm; `of_rank(rank)` returns the function that sees that rank's collectives.
Outcome measure(const CellConfig& cell, Arm arm, const std::function<support::SeeCollective(int rank)>& of_rank) {
  Outcome outcome{.by_rank = std::vector<ArmResult>(static_cast<std::size_t>(cell.ranks)), .error = ""};
  try {
    start_ranks_here(cell, [&](ProcessGroup& world) {
      support::DriftingGroup seen(world, of_rank(world.rank()));
      outcome.by_rank[static_cast<std::size_t>(world.rank())] = measure_arm_on_rank(cell, arm, &seen);
    });
  } catch (const Error& error) {
    outcome.error = error.what();
  }
  return outcome;
}

support::SeeCollective drifting(const CellConfig& cell, Drift drift, int rank) {
  const CollectiveKind kind = drift == Drift::kGathers ? CollectiveKind::kAllGather : CollectiveKind::kReduceScatter;
  // In the last step: every layer scatters in each micro-batch, and so does the root of a language model. Experts that
  // other ranks shard are scattered by themselves.
  const std::int64_t groups =
      cell.model.layers * (cell.expert_parallel > 1 ? 2 : 1) + (is_language_model(cell) ? 1 : 0);
  const std::int64_t before = (cell.training.steps - 1) * cell.training.micro_batches * groups;
  // A state that is saved before the last step gathers the shards' numbers of rows, which must stay as they are.
  const std::int64_t from = before + (cell.training.resume_at == cell.training.steps - 1 ? 1 : 0);
  return [=](const support::SeenCollective& seen) {
    if (drift == Drift::kNone || rank % 2 == 0 || seen.run != 1 || seen.kind != kind) return;
    // Ranks that have the experts between them gather how many tokens they send, which must stay as it is too.
    if (seen.group == "experts") return;
    if (seen.received != nullptr && seen.scatters >= from) *seen.received ^= std::byte{1};
  };
}

bool same(const std::optional<double>& a, const std::optional<double>& b) {
  return a == b || (a && b && std::isnan(*a) && std::isnan(*b));
}

/// Compares the figures that belong to all ranks together.
void expect_agreement(const ArmResult& first, const ArmResult& other) {
  EXPECT_EQ(first.losses, other.losses);
  EXPECT_EQ(first.values_hash, other.values_hash);
  for (const auto& [metric, figure] : first.metrics) {
    if (!metric.starts_with("parity.") && !metric.starts_with("twin.") && !metric.starts_with("traffic.")) continue;
    ASSERT_TRUE(other.metrics.contains(metric)) << metric;
    EXPECT_TRUE(same(figure.value, other.metrics.at(metric).value)) << metric;
  }
}

class RankCounts : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, RankCounts, ::testing::ValuesIn(kRankCounts), ::testing::PrintToStringParamName());

/// True for errors of ranks that made different calls, or of a rank that waited for others without result.
bool breaks_lock_step(const std::string& error) {
  constexpr const char* kSigns[] = {"wait for each other", "issue different collectives", "did not come",
                                    "without joining"};
  return std::ranges::any_of(kSigns, [&](const char* sign) { return error.find(sign) != std::string::npos; });
}

void expect_equal_calls(const Work& work, const CellConfig& cell, Drift drift) {
  SCOPED_TRACE(testing::Message() << cell.id << " over " << cell.mesh << ", arm " << name(work.arm) << ", "
                                  << name(drift));
  const Outcome outcome = measure(cell, work.arm, [&](int rank) { return drifting(cell, drift, rank); });
  if (work.fails)
    EXPECT_FALSE(breaks_lock_step(outcome.error)) << outcome.error;
  else
    EXPECT_EQ(outcome.error, "");
  if (!outcome.error.empty()) return;
  for (const ArmResult& other : outcome.by_rank) expect_agreement(outcome.by_rank[0], other);
}

TEST_P(RankCounts, RanksOfEveryBundledCellMakeTheSameCallsWhateverTheirValues) {
  constexpr Drift kDrifts[] = {Drift::kNone, Drift::kGathers, Drift::kGradients};
  const std::vector<Work> all = bundled_work();
  ASSERT_GT(all.size(), 200u);
  const auto number = static_cast<std::size_t>(std::ranges::find(kRankCounts, GetParam()) - kRankCounts);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const CellConfig cell = over(all[i].cell, GetParam());
    const Drift drift = kDrifts[(i + number) % std::size(kDrifts)];  // each drift at two of the rank counts
    expect_equal_calls(all[i], cell, drift);
    // Ranks compare value by value when the after arm is compared with the before arm.
    if (all[i].arm == Arm::kBefore && drift != Drift::kGradients) expect_equal_calls(all[i], cell, Drift::kGradients);
    if (HasFailure()) return;
  }
}

// Wherever a rank fails, in training or in the comparisons after it, the other ranks end too and name it.
TEST(RankCountsTogether, RankThatFailsAnywhereEndsTheArmOnAllAndIsNamed) {
  CellConfig cell = support::small_cell("current");
  cell.training.quantized_weights = true;
  cell.training.master_weights = "f32";
  cell.training.steps = 1;
  cell.training.deterministic = false;  // so that each of the arms below trains what it is compared with
  cell.fix = "gather_eight_bits";
  cell.ranks = 3;
  cell.measure = {"parity", "traffic", "twin"};
  std::array<int, 3> calls{};
  const auto counting = [&](int rank) {
    return [&calls, rank](const support::SeenCollective&) { ++calls[static_cast<std::size_t>(rank)]; };
  };
  ASSERT_EQ(measure(cell, Arm::kBefore, counting).error, "");
  EXPECT_EQ(calls[1], calls[0]);
  EXPECT_EQ(calls[2], calls[0]);
  ASSERT_GT(calls[0], 50);
  for (int last = 0; last < calls[0]; last += 3) {
    const auto failing = [&](int rank) {
      return [left = rank == 1 ? last : calls[0]](const support::SeenCollective&) mutable {
        if (left-- == 0) fail("a kernel failed");
      };
    };
    EXPECT_EQ(measure(cell, Arm::kBefore, failing).error, "rank 1: a kernel failed")
        << "after " << last << " collectives";
  }
}

}  // namespace
}  // namespace fp8lab
