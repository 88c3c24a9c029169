// Witnesses of fixes to optimizers over eight-bit weights.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <utility>
#include <vector>

#include "fixes/witness.h"
#include "fsdp/sharded_run.h"
#include "nn/cores/role_scales.h"
#include "ops/quantize.h"
#include "optim/adam.h"
#include "optim/foreach_optimizers.h"

namespace fp8lab {
namespace {

using fsdp_test::bytes_of;
using fsdp_test::ModelRun;
using fsdp_test::RunConfig;

RunConfig one_weight(const Behaviors& behaviors) {
  RunConfig config;
  config.recipe = "current";
  config.layer = "linear";
  config.config = fsdp_test::small_block(64);
  config.config.form = layer_form("llama");
  config.behaviors = behaviors;
  return config;
}

bool lists_move_the_weight(const Behaviors& behaviors) {
  ModelRun run(one_weight(behaviors));
  const Parameter& weight = *run.model().parameters().front();
  const auto before = bytes_of(run.device(), weight.quantized);
  ForeachAdam adam(run.model().parameters(), {.learning_rate = 0.1});
  run.step();
  adam.step(run.runtime());
  return bytes_of(run.device(), weight.quantized) != before;
}

/// True if `work` ends normally in a child process.
template <class Work>
bool survives(const Work& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_CORE, &none);
    std::signal(SIGSEGV, SIG_DFL);  // otherwise sanitizers would report the expected crash
    work();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/// The weight's amax is recorded in the history that the first forward made.
bool weight_records_into_the_resized_history(const Behaviors& behaviors) {
  RunConfig config = one_weight(behaviors);
  config.recipe = "delayed";
  config.initial_history_length = 16;
  ModelRun run(config);
  Adam adam(run.model().parameters(), {.master = MasterWeights::kF32});
  run.step();
  adam.step(run.runtime());
  const DelayedScales& scales = *run.model().registry().forward_scales.front()->delayed();
  const float weight = run.device().read(scales.amaxes())[1];  // input, weight
  return weight > 0.0f;
}

bool adam_finds_the_shard(const Behaviors& behaviors) {
  return survives([&] {
    fsdp_test::on_ranks(2, [&](ProcessGroup& world) {
      ModelRun run(one_weight(behaviors), world, {.replicas = 1, .shards = 2});
      Adam adam(run.model().parameters(), {.master = MasterWeights::kF32});
      run.step();
      adam.step(run.runtime());
    });
  });
}

bool adam_casts_blocks(const Behaviors& behaviors) {
  return survives([&] {
    RunConfig config = one_weight(behaviors);
    config.recipe = "mxfp8";
    ModelRun run(config);
    Adam adam(run.model().parameters(), {.master = MasterWeights::kF32});
    run.step();
    adam.step(run.runtime());
  });
}

/// True if each weight is its master except for roundings, after a step that doubles the largest.
bool adam_clips_no_weight(const Behaviors& behaviors) {
  ModelRun run(one_weight(behaviors));
  Adam adam(run.model().parameters(), {.learning_rate = 0.1, .master = MasterWeights::kF32});
  run.step();
  adam.step(run.runtime());
  Device& device = run.device();
  const QuantizedTensor& weight = run.model().parameters().front()->quantized;
  const HolderId holder = device.holder(HolderKind::kWorkspace);
  const std::vector<float> values = device.read(dequantize(device, weight.rowwise_operand(), DType::kF32, holder));
  const std::vector<float> masters = device.read(adam.state()[0].master);
  float largest = 0.0f, error = 0.0f;
  for (std::size_t i = 0; i < masters.size(); ++i) {
    largest = std::max(largest, std::abs(masters[i]));
    error = std::max(error, std::abs(values[i] - masters[i]));
  }
  // Half a step of E4M3 is 16 if the largest value is 448; BF16 rounds by at most 1 / 512.
  return error <= (16.0f / 448.0f + 0.005f) * largest;
}

RunConfig one_plain_weight(const Behaviors& behaviors) {
  RunConfig config = one_weight(behaviors);
  config.recipe = "bf16";
  return config;
}

bool state_has_the_size_of_shards(const Behaviors& behaviors) {
  std::atomic<int> held = 0;
  fsdp_test::on_ranks(2, [&](ProcessGroup& world) {
    ModelRun run(one_plain_weight(behaviors), world, {.replicas = 1, .shards = 2});
    Adam adam(run.model().parameters(), {});
    run.step();
    adam.step(run.runtime());
    const Parameter& weight = *run.model().parameters().front();
    held += adam.state()[0].exp_avg.numel() == weight.local->value.numel() &&
            adam.state()[0].exp_avg_sq.numel() == weight.local->value.numel();
  });
  return held == 2;
}

/// True if a step with BF16 moments allocates nothing, and has the bits of a step that expands them in either case.
bool steps_copy_no_moments(const Behaviors& behaviors) {
  const auto peak_and_bits = [](const Behaviors& own) {
    ModelRun run(one_plain_weight(own));
    Adam adam(run.model().parameters(), {.exp_avg = DType::kBF16, .exp_avg_sq = DType::kBF16});
    run.step();
    adam.step(run.runtime());
    Ledger& ledger = run.device().ledger();
    ledger.set_phase(PhaseKind::kOptimizer, 1);
    const std::int64_t before = ledger.live_bytes();
    adam.step(run.runtime());
    const Tensor& value = run.model().parameters().front()->value;
    return std::pair(ledger.peak_bytes(PhaseKind::kOptimizer) - before, bytes_of(run.device(), value));
  };
  const auto [peak, bits] = peak_and_bits(behaviors);
  EXPECT_EQ(bits, peak_and_bits({}).second);
  return peak == 0;
}

/// An MLP over 9 ranks, the last of which has only rows of fc1: 8 rows of 64 go to each of the others.
constexpr int kUnevenRanks = 9;
RunConfig uneven_mlp(const Behaviors& behaviors) {
  RunConfig config = one_plain_weight(behaviors);
  config.layer = "layernorm_mlp";
  return config;
}

bool every_shard_moves(const Behaviors& behaviors) {
  std::atomic<int> moved = 0, shards = 0;
  fsdp_test::on_ranks(kUnevenRanks, [&](ProcessGroup& world) {
    ModelRun run(uneven_mlp(behaviors), world, {.replicas = 1, .shards = kUnevenRanks});
    const auto values = [&] {
      std::vector<std::vector<std::byte>> bytes;
      for (const Parameter* parameter : run.model().parameters())
        bytes.push_back(bytes_of(run.device(), parameter->local->value));
      return bytes;
    };
    Adam adam(run.model().parameters(), {.learning_rate = 0.1});
    const auto before = values();
    run.step();
    adam.step(run.runtime());
    const auto after = values();
    for (std::size_t i = 0; i < after.size(); ++i) {
      shards += !after[i].empty();
      moved += after[i] != before[i];
    }
    EXPECT_TRUE(after.back().empty() || world.rank() + 1 < kUnevenRanks);
  });
  return moved == shards;
}

/// True if ranks count the same steps of vectors, of which the last rank has no element.
bool ranks_count_alike(const Behaviors& behaviors) {
  std::atomic<std::int64_t> steps = 0;
  fsdp_test::on_ranks(kUnevenRanks, [&](ProcessGroup& world) {
    ModelRun run(uneven_mlp(behaviors), world, {.replicas = 1, .shards = kUnevenRanks});
    Adam adam(run.model().parameters(), {});
    for (int i = 0; i < 2; ++i) {
      run.step();
      adam.step(run.runtime());
    }
    EXPECT_EQ(adam.group_steps()[0], 2);
    steps += adam.group_steps()[1];
  });
  return steps == 2 * kUnevenRanks;
}

}  // namespace

std::span<const fixes_test::Witness> fixes_test::optimizer_witnesses() {
  static constexpr Witness kWitnesses[] = {
      {"write_back_list_updates", lists_move_the_weight},
      {"unwrap_shards_in_adam", adam_finds_the_shard},
      {"shard_optimizer_state", state_has_the_size_of_shards},
      {"fuse_moment_casts", steps_copy_no_moments},
      {"skip_empty_tensors", every_shard_moves},
      {"count_empty_steps", ranks_count_alike},
      {"cast_blocks_in_adam", adam_casts_blocks},
      {"measure_scale_in_adam", adam_clips_no_weight},
      {"rebind_amax_on_resize", weight_records_into_the_resized_history},
  };
  return kWitnesses;
}

}  // namespace fp8lab
