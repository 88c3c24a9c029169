#pragma once

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "autograd/functions.h"
#include "backend/device.h"
#include "comm/process_groups.h"
#include "fsdp/sharding.h"
#include "ops/elementwise.h"
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
  explicit ModelRun(const RunConfig& config) : ModelRun(config, nullptr, {}) {}
  ModelRun(const RunConfig& config, ProcessGroup& world, const MeshShape& shape) : ModelRun(config, &world, shape) {}

  Device& device() { return *device_; }
  Runtime& runtime() { return runtime_; }
  Model& model() { return *model_; }
  Sharding& sharding() { return *sharding_; }

  /// Forward and backward of the mean square of the output; returns the loss. `row_offset` picks the data.
  float step(std::int64_t row_offset = 0) {
    runtime_.row_offset = row_offset;
    const Shape shape{config_.config.seq * config_.config.batch, config_.config.hidden};
    const Tensor x = device_->allocate({shape, DType::kBF16}, device_->holder(HolderKind::kInput, "", "x"));
    const Tensor target = device_->allocate({shape, DType::kBF16}, device_->holder(HolderKind::kInput, "", "target"));
    const auto stream = static_cast<std::uint64_t>(runtime_.step);
    random_fill(*device_, x, {.seed = 3, .stream = 1 + stream, .row_offset = row_offset});
    random_fill(*device_, target, {.seed = 3, .stream = 1000 + stream, .row_offset = row_offset});
    device_->ledger().set_phase(PhaseKind::kForward, static_cast<int>(runtime_.step));
    const Variable loss = mse_loss(runtime_, model_->forward(runtime_, {x, nullptr}), target);
    model_->update_forward_scales(runtime_, amax_group_);
    device_->ledger().set_phase(PhaseKind::kBackward, static_cast<int>(runtime_.step));
    run_backward(runtime_, loss);
    model_->update_backward_scales(runtime_, amax_group_);
    ++runtime_.step;
    return device_->computes() ? device_->read(loss.value).front() : 0.0f;
  }

 private:
  ModelRun(const RunConfig& config, ProcessGroup* world, const MeshShape& shape)
      : config_(config),
        device_(open_device(config.device, {.arch = config.arch,
                                            .rank = world != nullptr ? world->local_rank() : 0,
                                            .memory = {.capacity_bytes = 0, .poison = true}})),
        ranks_(world != nullptr ? world->on(*device_) : nullptr),
        runtime_{.device = *device_, .behaviors = config.behaviors, .seed = 7},
        amax_group_(ranks_.get()) {
    model_ = std::make_unique<Model>(runtime_, make_recipe(config.recipe),
                                     ModelOptions{.layer = config.layer,
                                                  .layers = config.layers,
                                                  .config = config.config,
                                                  .checkpoint_layers = config.checkpoint,
                                                  .eight_bit_weights = config.eight_bit_weights,
                                                  .deferred_init = world != nullptr && config.deferred_init});
    if (world == nullptr) return;
    mesh_ = std::make_unique<Mesh>(*ranks_, shape);
    sharding_ = std::make_unique<Sharding>(runtime_, *model_, *mesh_,
                                           ShardingOptions{.reshard_after_forward = config.reshard,
                                                           .gather_ahead = config.gather_ahead,
                                                           .checkpoint_layers = config.checkpoint});
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
