// Witnesses of fixes to sharded eight-bit weights; each runs two ranks that gather.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "fixes/witness.h"
#include "fsdp/sharded_run.h"

namespace fp8lab {
namespace {

using fsdp_test::ModelRun;
using fsdp_test::RunConfig;

constexpr int kRanks = 2;

/// A layer with one weight of 64 x 64. Its shards have 32 rows, one block of MXFP8 and far below 128.
RunConfig one_product(const char* recipe, const Behaviors& behaviors) {
  RunConfig config;
  config.recipe = recipe;
  config.layer = "linear";
  config.layers = 1;
  config.config = fsdp_test::small_block(64);
  config.config.form = layer_form("llama");
  config.behaviors = behaviors;
  return config;
}

/// True if `holds(run, world)` is true on every rank.
template <class Holds>
bool on_every_rank(const RunConfig& config, const Holds& holds) {
  std::atomic<int> held = 0;
  fsdp_test::on_ranks(kRanks, [&](ProcessGroup& world) {
    ModelRun run(config, world, {.replicas = 1, .shards = kRanks});
    held += holds(run, world) ? 1 : 0;
  });
  return held == kRanks;
}

const Parameter& weight(ModelRun& run) { return *run.model().parameters().front(); }

bool gathers_quantized_data(const Behaviors& behaviors) {
  return on_every_rank(one_product("delayed", behaviors), [](ModelRun& run, ProcessGroup&) {
    run.sharding().unshard(run.runtime());
    return run.sharding().mesh().shard_group().traffic().of(CollectiveKind::kAllGather).payload_bytes == 64 * 64;
  });
}

bool blocks_travel_once(const Behaviors& behaviors) {
  RunConfig config = one_product("block", behaviors);
  config.config = fsdp_test::small_block(256);  // shards of one block
  config.config.form = layer_form("llama");
  return on_every_rank(config, [](ModelRun& run, ProcessGroup&) {
    run.sharding().unshard(run.runtime());
    return run.sharding().mesh().shard_group().traffic().of(CollectiveKind::kAllGather).payload_bytes == 256 * 256;
  });
}

/// True if all ranks have the same scale of the unsharded weight.
bool scales_agree(ModelRun& run, ProcessGroup& world) {
  run.sharding().unshard(run.runtime());
  const float own = run.device().read(weight(run).quantized.rowwise().scale_inv).front();
  std::array<float, kRanks> all{};
  const std::array<std::int64_t, kRanks + 1> offsets{0, sizeof(float), 2 * sizeof(float)};
  const GatherPart part{.from = reinterpret_cast<const std::byte*>(&own),
                        .to = reinterpret_cast<std::byte*>(all.data()),
                        .offsets_bytes = offsets};
  world.all_gather(std::span(&part, 1), "scales");
  return all[0] == all[1];
}

bool shards_have_one_scale(const Behaviors& behaviors) {
  return on_every_rank(one_product("current", behaviors), scales_agree);
}

bool forward_gathers_rows_alone(const Behaviors& behaviors) {
  return on_every_rank(one_product("mxfp8", behaviors), [](ModelRun& run, ProcessGroup&) {
    run.sharding().unshard(run.runtime());
    return weight(run).quantized.rowwise() && !weight(run).quantized.columnwise();
  });
}

bool forward_makes_no_transpose(const Behaviors& behaviors) {
  return on_every_rank(one_product("delayed", behaviors), [](ModelRun& run, ProcessGroup&) {
    Device& device = run.device();
    const Tensor x = device.allocate({Shape{128, 64}, DType::kBF16}, 0);
    fill(device, x, 1.0f);
    run.model().forward(run.runtime(), {x, nullptr});
    return !weight(run).quantized.columnwise();
  });
}

/// A 16-bit weight that products quantize.
RunConfig product_in_16_bits(const Behaviors& behaviors) {
  RunConfig config = one_product("delayed", behaviors);
  config.eight_bit_weights = false;
  return config;
}

/// The gradient of this rank's shard in the second step, whose scales the first one's amaxes have set.
std::vector<std::byte> second_gradient(ModelRun& run) {
  for (int i = 0; i < 2; ++i) {
    weight(run).local->grad = {};
    run.step();
  }
  return fsdp_test::bytes_of(run.device(), weight(run).local->grad);
}

/// True if between forward and backward a layer keeps its input in one orientation and its scale, and of its weight
/// nothing but a scale. Backward has the same bits in either case.
bool forward_saves_no_copy_of_the_weight(const Behaviors& behaviors) {
  return on_every_rank(product_in_16_bits(behaviors), [&](ModelRun& run, ProcessGroup& world) {
    Device& device = run.device();
    const Tensor x = device.allocate({Shape{128, 64}, DType::kBF16}, 0);
    fill(device, x, 1.0f);
    const std::int64_t before = device.ledger().live_bytes();
    std::int64_t kept = 0;
    {
      const Variable y = run.model().forward(run.runtime(), {x, nullptr});
      kept = device.ledger().live_bytes() - before - y.value.numel() * 2;
    }
    ModelRun fixed(product_in_16_bits({}), world, {.replicas = 1, .shards = kRanks});
    ModelRun own(product_in_16_bits(behaviors), world, {.replicas = 1, .shards = kRanks});
    EXPECT_EQ(second_gradient(own), second_gradient(fixed));
    return kept == 128 * 64 + 2 * static_cast<std::int64_t>(sizeof(float));
  });
}

/// True if a step leaves no transpose of a gathered weight.
bool backward_clears_the_transpose(const Behaviors& behaviors) {
  return on_every_rank(one_product("delayed", behaviors), [](ModelRun& run, ProcessGroup&) {
    run.step();
    return run.device().ledger().by_kind().at(std::string(name(HolderKind::kUnsharded))) == 0;
  });
}

bool gathered_values_equal_the_unsharded_ones(const Behaviors& behaviors) {
  const RunConfig config = one_product("mxfp8", behaviors);
  ModelRun alone(config);
  const std::vector<float> expected =
      alone.device().read(dequantize(alone.device(), weight(alone).quantized.rowwise_operand(), DType::kF32, 0));
  return on_every_rank(config, [&](ModelRun& run, ProcessGroup&) {
    run.sharding().unshard(run.runtime());
    return run.device().read(dequantize(run.device(), weight(run).quantized.rowwise_operand(), DType::kF32, 0)) ==
           expected;
  });
}

/// True if the shards of a model whose initialisation was deferred are in eight bits.
bool deferred_models_are_made_in_eight_bits(const Behaviors& behaviors) {
  return on_every_rank(one_product("delayed", behaviors),
                       [](ModelRun& run, ProcessGroup&) { return weight(run).local->in_eight_bits(); });
}

/// True if the shards of an initialised MXFP8 model are in eight bits.
bool initialised_models_are_split_in_eight_bits(const Behaviors& behaviors) {
  RunConfig config = one_product("mxfp8", behaviors);
  config.deferred_init = false;
  return on_every_rank(config, [](ModelRun& run, ProcessGroup&) { return weight(run).local->in_eight_bits(); });
}

/// True if what a rank keeps of a weight is the arrays of its shard and no more, with blocks of either size.
bool shards_have_no_copy_beside_them(const Behaviors& behaviors) {
  bool all = true;
  for (const char* recipe : {"mxfp8", "block"}) {
    RunConfig config = one_product(recipe, behaviors);
    config.config = fsdp_test::small_block(256);  // two blocks of 128 rows
    config.config.form = layer_form("llama");
    all = on_every_rank(config,
                        [](ModelRun& run, ProcessGroup&) {
                          const QuantizedTensor& shard = weight(run).local->quantized;
                          std::int64_t bytes = 0;
                          for (const QuantizedOrientation* one : {&shard.rowwise(), &shard.columnwise()})
                            bytes += one->data.bytes() + one->scale_inv.bytes();
                          return run.device().ledger().by_kind().at(std::string(name(HolderKind::kParameter))) == bytes;
                        }) &&
          all;
  }
  return all;
}

/// Quantizers copied by the first step of a model of one weight, and by the second.
std::pair<std::int64_t, std::int64_t> quantizer_copies(ModelRun& run) {
  const std::int64_t before = run.runtime().host.quantizer_copies;
  run.step();
  const std::int64_t between = run.runtime().host.quantizer_copies;
  run.step();
  return {between - before, run.runtime().host.quantizer_copies - between};
}

bool only_the_first_gather_copies_a_quantizer(const Behaviors& behaviors) {
  return on_every_rank(one_product("delayed", behaviors), [&](ModelRun& run, ProcessGroup&) {
    const auto [first, second] = quantizer_copies(run);
    // Without the fix each of a step's two gathers copies it, and the first one once more.
    if (!behaviors.reuse_quantizer_at_gather) {
      EXPECT_EQ(first, 3);
      EXPECT_EQ(second, 2);
    }
    return first == 1 && second == 0;
  });
}

}  // namespace

std::span<const fixes_test::Witness> fixes_test::sharding_witnesses() {
  static constexpr Witness kWitnesses[] = {
      {"split_in_eight_bits", initialised_models_are_split_in_eight_bits},
      {"gather_eight_bits", gathers_quantized_data},
      {"share_amax_over_shards", shards_have_one_scale},
      {"choose_usage_by_pass", forward_gathers_rows_alone},
      {"validate_usage_by_pass", forward_makes_no_transpose},
      {"use_weight_quantizer", forward_makes_no_transpose},
      {"keep_fp8_init_metadata", deferred_models_are_made_in_eight_bits},
      {"strip_scale_padding", gathered_values_equal_the_unsharded_ones},
      {"nearest_sharding_state", forward_gathers_rows_alone},
      {"requantize_in_backward", forward_saves_no_copy_of_the_weight},
      {"clear_gathered_transposes", backward_clears_the_transpose},
      {"reuse_quantizer_at_gather", only_the_first_gather_copies_a_quantizer},
      {"gather_blocks_row_wise", blocks_travel_once},
      {"flatten_without_copy", shards_have_no_copy_beside_them},
  };
  return kWitnesses;
}

}  // namespace fp8lab
