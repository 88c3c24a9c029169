#pragma once

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "autograd/functions.h"
#include "backend/device.h"
#include "comm/process_groups.h"
#include "fsdp/sharding.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "support/test_device.h"

/// One rank of a sharded model, or an unsharded model, as the tests of sharding run it.
namespace fp8lab::fsdp_test {

struct RunConfig {
  std::string device{support::test_device()};
  std::string arch = "hopper";
  std::string recipe = "delayed";
  std::string layer = "transformer_layer";
  LayerConfig config;
  std::int64_t layers = 1;
  bool eight_bit_weights = true;
  bool deferred_init = true;
  bool checkpoint = false;
  bool reshard = true;
  bool gather_ahead = false;
  std::int64_t vocabulary = 0;  ///< a language model, if not 0
  bool tied_head = false;
  std::optional<DType> reduce_dtype{};
  InitialValuesIn initial_in = InitialValuesIn::kSeed;
  Behaviors behaviors{};
};

/// A GPT block; its widest matrices have four times its rows.
inline LayerConfig small_block(std::int64_t hidden) {
  LayerConfig config;
  config.form = layer_form("gpt");
  config.hidden = hidden;
  config.heads = 2;
  config.kv_heads = 2;
  config.ffn = 2 * hidden;
  config.seq = 32;
  config.batch = 2;
  return config;
}

inline std::vector<std::byte> bytes_of(Device& device, const Tensor& tensor) {
  return device.computes() && tensor ? device.read_bytes(tensor) : std::vector<std::byte>();
}

/// Everything that a quantized tensor consists of, absent orientations empty.
inline std::vector<std::vector<std::byte>> bytes_of(Device& device, const QuantizedTensor& tensor) {
  return {bytes_of(device, tensor.rowwise().data), bytes_of(device, tensor.rowwise().scale_inv),
          bytes_of(device, tensor.columnwise().data), bytes_of(device, tensor.columnwise().scale_inv)};
}

class ModelRun {
 public:
  /// An unsharded model.
  explicit ModelRun(const RunConfig& config) : ModelRun(config, nullptr, nullptr) {}
  /// The same on one of several ranks.
  ModelRun(const RunConfig& config, ProcessGroup& world) : ModelRun(config, &world, nullptr) {}
  ModelRun(const RunConfig& config, ProcessGroup& world, const MeshShape& shape) : ModelRun(config, &world, &shape) {}

  Device& device() { return *device_; }
  Runtime& runtime() { return runtime_; }
  Model& model() { return *model_; }
  Sharding& sharding() { return *sharding_; }
  Mesh& mesh() { return *mesh_; }
  /// The ranks, for buffers on the device.
  ProcessGroup& ranks() { return *ranks_; }

  /// Forward and backward of the mean square of the output, or of a language model's cross-entropy; returns the loss.
  /// `row_offset` picks the data.
  float step(std::int64_t row_offset = 0) {
    runtime_.row_offset = row_offset;
    if (config_.vocabulary > 0) return finish_step(language_loss());
    const Shape shape{config_.config.seq * config_.config.batch, config_.config.hidden};
    const Tensor x = device_->allocate({shape, DType::kBF16}, device_->holder(HolderKind::kInput, "", "x"));
    const Tensor target = device_->allocate({shape, DType::kBF16}, device_->holder(HolderKind::kInput, "", "target"));
    const auto stream = static_cast<std::uint64_t>(runtime_.step);
    random_fill(*device_, x, {.seed = 3, .stream = 1 + stream, .row_offset = row_offset});
    random_fill(*device_, target, {.seed = 3, .stream = 1000 + stream, .row_offset = row_offset});
    device_->ledger().set_phase(PhaseKind::kForward, static_cast<int>(runtime_.step));
    return finish_step(mse_loss(runtime_, model_->forward(runtime_, {x, nullptr}), target));
  }

 private:
  /// Tokens that differ from step to step and from row to row, and repeat.
  Variable language_loss() {
    const std::int64_t count = config_.config.seq * config_.config.batch;
    std::vector<std::int32_t> tokens, targets;
    for (std::int64_t i = runtime_.row_offset; i < runtime_.row_offset + count; ++i) {
      tokens.push_back(static_cast<std::int32_t>((i * i + 3 * runtime_.step) % config_.vocabulary));
      targets.push_back(static_cast<std::int32_t>((7 * i + 1) % config_.vocabulary));
    }
    const HolderId holder = device_->holder(HolderKind::kInput, "", "tokens");
    const Tensor x = make_tokens(*device_, tokens, config_.vocabulary, holder);
    device_->ledger().set_phase(PhaseKind::kForward, static_cast<int>(runtime_.step));
    return cross_entropy(runtime_, model_->forward(runtime_, {x, nullptr}),
                         make_tokens(*device_, targets, config_.vocabulary, holder));
  }
  float finish_step(const Variable& loss) {
    model_->update_forward_scales(runtime_, amax_group_);
    device_->ledger().set_phase(PhaseKind::kBackward, static_cast<int>(runtime_.step));
    run_backward(runtime_, loss);
    model_->update_backward_scales(runtime_, amax_group_);
    ++runtime_.step;
    return device_->computes() ? device_->read(loss.value).front() : 0.0f;
  }

  ModelRun(const RunConfig& config, ProcessGroup* world, const MeshShape* shape)
      : config_(config),
        device_(open_device(config.device, {.arch = config.arch,
                                            .rank = world != nullptr ? world->local_rank() : 0,
                                            .memory = {.capacity_bytes = 0, .poison = true}})),
        ranks_(world != nullptr ? world->for_device(*device_) : nullptr),
        runtime_{.device = *device_, .behaviors = config.behaviors, .seed = 7},
        amax_group_(ranks_.get()) {
    if (shape != nullptr) {
      mesh_ = std::make_unique<Mesh>(*ranks_, *shape);
      runtime_.expert_group = mesh_->expert_group();
      runtime_.expert_part = {.part = world->rank() % shape->expert_parallel, .parts = shape->expert_parallel};
    }
    model_ = std::make_unique<Model>(runtime_, make_recipe(config.recipe),
                                     ModelOptions{.layer = config.layer,
                                                  .layers = config.layers,
                                                  .config = config.config,
                                                  .checkpoint_every = config.checkpoint ? 1 : 0,
                                                  .eight_bit_weights = config.eight_bit_weights,
                                                  .deferred_init = shape != nullptr && config.deferred_init,
                                                  .initial_in = config.initial_in,
                                                  .vocabulary = config.vocabulary,
                                                  .tied_head = config.tied_head,
                                                  .learned_positions = !config.config.form.rope});
    if (shape == nullptr) return;
    sharding_ = std::make_unique<Sharding>(runtime_, *model_, *mesh_,
                                           ShardingOptions{.reshard_after_forward = config.reshard,
                                                           .gather_ahead = config.gather_ahead,
                                                           .reduce_dtype = config.reduce_dtype});
  }

  RunConfig config_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<ProcessGroup> ranks_;
  Runtime runtime_;
  ProcessGroup* amax_group_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<Sharding> sharding_;
};

/// Runs `rank_function` on in-process ranks. The timeout only ends a test that has failed.
inline void on_ranks(int ranks, const RankFunction& rank_function, bool moves_data = true) {
  run_ranks("in_process", {.ranks = ranks, .timeout = std::chrono::seconds(60), .moves_data = moves_data},
            rank_function);
}

}  // namespace fp8lab::fsdp_test
