#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "comm/process_groups.h"
#include "harness/cell/sharding_keys.h"
#include "harness/train/training_run.h"
#include "support/cells.h"

// Training over ranks that split sequences between them, compared with training on ranks that read entire ones: the
// same tokens, positions and targets, so the same losses and gradients.
namespace fp8lab {
namespace {

using Values = std::vector<float>;
using Lists = std::vector<Values>;

/// What all ranks trained together: losses by step, the mean over ranks; and the last step's gradients of unsharded
/// parameters.
struct Trained {
  explicit Trained(const CellConfig& cell) {
    const auto ranks = static_cast<std::size_t>(cell.ranks);
    std::vector<Values> losses_of(ranks);
    std::vector<std::vector<ValidationLoss>> validations_of(ranks);
    std::vector<Lists> parts(ranks);
    run_ranks("in_process", {.ranks = cell.ranks}, [&](ProcessGroup& world) {
      TrainingRun run(cell, {}, make_recipe(cell.training.recipe, cell.training.recipe_options), {.world = &world});
      run.keep_values(true);
      run.train();
      const auto rank = static_cast<std::size_t>(world.rank());
      losses_of[rank] = run.losses();
      validations_of[rank] = run.validations();
      parts[rank] = run.values().gradients;
      if (rank == 0) names = run.parameter_names();
    });
    losses.resize(losses_of.front().size());
    validations.resize(validations_of.front().size());
    gradients.resize(parts.front().size());
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      for (std::size_t i = 0; i < losses.size(); ++i)
        losses[i] += static_cast<double>(losses_of[rank][i]) / static_cast<double>(ranks);
      for (std::size_t i = 0; i < validations.size(); ++i)
        validations[i] += validations_of[rank][i].loss / static_cast<double>(ranks);
      if (rank >= static_cast<std::size_t>(mesh_of(cell).shards)) continue;  // another replica
      for (std::size_t i = 0; i < gradients.size(); ++i)
        gradients[i].insert(gradients[i].end(), parts[rank][i].begin(), parts[rank][i].end());
    }
  }

  std::vector<double> losses, validations;
  Lists gradients;
  std::vector<std::string> names;
};

/// Three steps of Adam in f32 without eight bits. Weights are large enough that attention and positions matter.
CellConfig plain_cell(std::string_view form, bool language) {
  CellConfig cell = support::small_cell("bf16", form);
  cell.model.layers = 2;
  cell.model.seq = 48;  // two chunks for each of 1, 2, 3 or 4 ranks
  cell.model.init_std = 0.15;
  cell.training.param_dtype = "f32";
  cell.sharding = Sharded::kFsdp;
  if (language) {
    cell.model.vocabulary = 41;
    cell.training.loss = "cross_entropy";
  }
  return cell;
}

CellConfig split(CellConfig cell, int ranks) {
  cell.ranks = cell.context_parallel = ranks;
  return cell;
}

double distance(const Values& a, const Values& b) {
  double difference = 0.0, norm = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / norm);
}

// Only the order of sums differs. A sum of n terms has an error of at most n roundings, 2^-24 each, relative to its
// magnitudes. Between a parameter and its gradient lie at most 60 sums (15 operations a layer in either direction), of
// at most 96 tokens, 64 columns or 48 keys.
constexpr double kTolerance = 60 * 96 * 0x1p-24;

void expect_equal(const Trained& actual, const Trained& expected, double tolerance) {
  ASSERT_EQ(actual.losses.size(), expected.losses.size());
  for (std::size_t i = 0; i < expected.losses.size(); ++i)
    EXPECT_NEAR(actual.losses[i], expected.losses[i], tolerance * std::fabs(expected.losses[i])) << "step " << i;
  ASSERT_EQ(actual.validations.size(), expected.validations.size());
  for (std::size_t i = 0; i < expected.validations.size(); ++i)
    EXPECT_NEAR(actual.validations[i], expected.validations[i], tolerance * std::fabs(expected.validations[i]));
  ASSERT_EQ(actual.gradients.size(), expected.gradients.size());
  for (std::size_t i = 0; i < expected.gradients.size(); ++i) {
    ASSERT_EQ(actual.gradients[i].size(), expected.gradients[i].size()) << expected.names[i];
    EXPECT_LE(distance(actual.gradients[i], expected.gradients[i]), tolerance) << expected.names[i];
  }
}

TEST(ContextParallel, TrainsAsOneRankDoes) {
  for (const char* form : {"gpt", "llama"})
    for (const bool language : {false, true}) {
      CellConfig cell = plain_cell(form, language);
      cell.training.validation_batches = 1;
      const Trained alone(cell);
      for (const int ranks : {2, 3, 4}) {
        SCOPED_TRACE(std::string(form) + (language ? ", language model, " : ", ") + std::to_string(ranks) + " ranks");
        expect_equal(Trained(split(cell, ranks)), alone, kTolerance);
      }
    }
}

TEST(ContextParallel, TrainsAsOneRankDoesWithMicroBatchesAndCheckpoints) {
  CellConfig cell = plain_cell("llama", true);
  cell.training.micro_batches = 2;
  cell.training.checkpoint = "full";
  cell.training.steps = 2;
  const Trained alone(cell);
  expect_equal(Trained(split(cell, 2)), alone, kTolerance);
  CellConfig replicated = split(cell, 4);
  replicated.mesh = "2x2";
  expect_equal(Trained(replicated), alone, kTolerance);
}

// Each pair of ranks splits the sequences that one of two ranks reads by itself.
TEST(ContextParallel, PairsOfRanksTrainAsSingleRanksDo) {
  CellConfig cell = plain_cell("gpt", true);
  cell.training.validation_batches = 2;
  cell.ranks = 2;
  CellConfig pairs = cell;
  pairs.ranks = 4;
  pairs.context_parallel = 2;
  expect_equal(Trained(pairs), Trained(cell), kTolerance);
}

// The bound notices tokens at other places: one rank's training without positions, and with other tokens.
TEST(ContextParallel, ToleranceNoticesOtherPositionsAndTokens) {
  const CellConfig cell = plain_cell("gpt", true);
  const Trained of_split(split(cell, 2));
  const auto differs = [&](const CellConfig& changed) {
    const Trained other(changed);
    return std::fabs(of_split.losses[0] - other.losses[0]) > kTolerance * other.losses[0];
  };
  EXPECT_FALSE(differs(cell));
  CellConfig changed = cell;
  changed.model.form = "llama";
  changed.model.kv_heads = 2;
  EXPECT_TRUE(differs(changed));
  changed = cell;
  changed.training.seed = 77;
  EXPECT_TRUE(differs(changed));
}

// In eight bits P is cast as each chunk of keys normalises it, so that no bits equal the bits of one rank. A cast moves
// P, dS and what follows by at most half a unit of E4M3's, 2^-4 relative; both runs are that far from exact attention.
TEST(ContextParallel, TrainsInEightBitsWithinTheirRounding) {
  for (const char* recipe : {"delayed", "current"})
    for (const char* form : {"gpt", "llama"}) {
      CellConfig cell = plain_cell(form, false);
      cell.training.recipe = recipe;
      cell.training.param_dtype = "bf16";
      cell.training.fp8_attention = true;
      for (const bool backward : {true, false}) {
        cell.training.fp8_attention_backward = backward;
        const Trained alone(cell);
        for (const int ranks : {2, 3}) {
          SCOPED_TRACE(std::string(recipe) + " " + form + ", " + std::to_string(ranks) + " ranks");
          const Trained over(split(cell, ranks));
          for (std::size_t i = 0; i < alone.losses.size(); ++i)
            EXPECT_NEAR(over.losses[i], alone.losses[i], 0x1p-4 * std::fabs(alone.losses[i])) << "step " << i;
        }
      }
    }
}

}  // namespace
}  // namespace fp8lab
