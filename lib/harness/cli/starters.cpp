#include "harness/cli/starters.h"

#include <array>

namespace fp8lab {
namespace {

constexpr std::string_view kMemory = R"(version: 1
name: memory
title: What one training step keeps in memory

# meta runs the schedule on shapes alone, so sizes may be those of real models. cpu computes values too; cuda needs a GPU.
device: meta
model:
  layer: transformer_layer
  form: llama          # RMSNorm, SwiGLU, RoPE; gpt: LayerNorm, GELU, biases
  layers: 4
  hidden: 4096
  heads: 32
  kv_heads: 8
  ffn: 14336
  seq: 4096
  batch: 1
training: {steps: 2, optimizer: adam, master_weights: f32}

# One cell for each combination. `fp8lab keys` lists what an axis may be.
matrix:
  recipe: [bf16, delayed, current]
  checkpoint: [none, full]

measure: [memory]

# What must hold, or the run ends with exit code 1. `fp8lab metrics` lists what can be gated.
expect:
  - {metric: memory.retained_bytes, equals: 0}        # nothing outlives backward that should not
  - {metric: memory.peak_bytes, equals: predicted}    # to the byte
  - {metric: memory.peak_bytes, at_most: 24e9, when: {checkpoint: full}}
)";

constexpr std::string_view kFix = R"(version: 1
name: fix
title: A leak before and after its fix

# The `before` arm reverts this fix, the `after` arm does not. `fp8lab fixes` lists all.
fix: release_attention_tensors
device: meta
model: {layer: transformer_layer, form: gpt, layers: 3, hidden: 2048, heads: 16, ffn: 6144, seq: 1048, batch: 32}
training: {optimizer: adam, recipe: delayed, fp8_attention: true}
matrix:
  checkpoint: [none, full]
measure: [memory]
expect:
  - {metric: memory.retained_bytes, arm: before, at_least: 1}
  - {metric: memory.retained_bytes, arm: before, equals: predicted}
  - {metric: memory.retained_bytes, arm: after, equals: 0}
)";

constexpr std::string_view kSharded = R"(version: 1
name: sharded
title: FSDP over four ranks, weights in eight bits

device: cpu             # every rank is a thread that computes
ranks: 4
model: {layer: transformer_layer, form: llama, layers: 2, hidden: 256, heads: 4, kv_heads: 2, ffn: 512, seq: 64, batch: 1}
training: {steps: 3, optimizer: adam, master_weights: f32, quantized_weights: true, loss: mse}
matrix:
  recipe: [bf16, delayed, current, mxfp8]
measure: [memory, traffic, parity]
expect:
  - {metric: traffic.all_gather_payload_bytes, equals: predicted}
  - {metric: parity.ranks_equal, equals: 1}           # all ranks hold the same weights
  - {metric: parity.weights_moved, equals: 1}         # every weight trains
  - {metric: memory.unexplained_bytes, equals: 0}
)";

constexpr std::string_view kParity = R"(version: 1
name: parity
title: How far each recipe is from BF16

device: cpu
model: {layer: transformer_layer, form: llama, layers: 2, hidden: 128, heads: 4, kv_heads: 2, ffn: 256, seq: 64, batch: 2}
training: {steps: 5, optimizer: adam, learning_rate: 1e-3, loss: mse}
matrix:
  recipe: [delayed, current, block, mxfp8]
  seed: [1, 2]
measure: [parity]
expect:
  - {metric: parity.loss_gap, at_most: 0.02}          # relative, after the last step
  - {metric: parity.output_sqnr_db, at_least: 15}
  - {metric: parity.grad_sqnr_db, at_least: 8}
  - {metric: parity.weights_moved, equals: 1}
)";

constexpr std::string_view kTime = R"(version: 1
name: time
title: A step's time and the host's work, before and after a fix

fix: reuse_quantizer_at_gather
device: cpu
ranks: 2
model: {layer: transformer_layer, form: llama, layers: 2, hidden: 128, heads: 4, ffn: 256, seq: 32, batch: 1}
training: {steps: 6, optimizer: adam, master_weights: f32, recipe: delayed, quantized_weights: true, loss: mse}
measure: [host, time]
expect:
  - {metric: host.pre_forward_quantizer_copies, arm: before, at_least: 1}
  - {metric: host.pre_forward_quantizer_copies, arm: after, equals: 0}
# To gate the time of a step as well (eight processes an arm, judged by the interval of the ratio):
#  - {metric: time.step_ms, arm: after, at_most: 1.05 of before}
)";

constexpr std::array kStarters{
    Starter{"memory", "peak and retained bytes of a model at full size, by recipe and recomputation", kMemory},
    Starter{"fix", "a fix of Transformer Engine, before and after", kFix},
    Starter{"sharded", "FSDP over ranks: traffic, memory, equal weights", kSharded},
    Starter{"parity", "loss, outputs and gradients of every recipe against BF16", kParity},
    Starter{"time", "host work and step time before and after a fix", kTime},
};

}  // namespace

std::span<const Starter> starters() { return kStarters; }

}  // namespace fp8lab
