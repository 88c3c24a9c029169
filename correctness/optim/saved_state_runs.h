#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "autograd/functions.h"
#include "comm/process_groups.h"
#include "harness/temporary_directory.h"
#include "nn/model.h"
#include "optim/parameters.h"
#include "optim/saved_state.h"

/// What the tests of checkpoints train: a model on one rank, and shards on several.
namespace fp8lab::optim_test {

using sample::TemporaryDirectory;
inline std::filesystem::path path_of(const TemporaryDirectory& folder) { return folder.string(); }

/// A layer under a recipe with everything that its training depends on.
struct Training {
  std::unique_ptr<Device> device;
  Runtime runtime{.device = *device, .behaviors = {}, .seed = 5};
  LayerConfig config;
  Model model;
  Adam adam;
  std::int64_t step = 0;

  Training(const char* recipe, const AdamOptions& options, bool eight_bits = true, const char* layer = "layernorm_mlp",
           std::unique_ptr<Device> on = support::open_poisoned_device())
      : Training(make_recipe(recipe), options,
                 {.layer = layer, .layers = 2, .config = small_layer(recipe), .eight_bit_weights = eight_bits},
                 std::move(on)) {}
  Training(const Recipe& recipe, const AdamOptions& options, const ModelOptions& of_model,
           std::unique_ptr<Device> on = support::open_poisoned_device())
      : device(std::move(on)),
        config(of_model.config),
        model(runtime, recipe, of_model),
        adam(model.parameters(), options) {}

  TrainingState state() {
    return {.parameters = model.parameters(),
            .optimizer = &adam,
            .forward_scales = model.registry().forward_scales,
            .backward_scales = model.registry().backward_scales,
            .router_biases = model.registry().router_biases,
            .step = step};
  }
  std::vector<float> run(int steps) {
    const Shape shape{config.tokens(), config.hidden};
    std::vector<float> losses;
    for (int i = 0; i < steps; ++i, ++step) {
      const Tensor x = device->allocate({shape, DType::kBF16}, runtime.in_flight("x"));
      random_fill(*device, x, {.seed = 5, .stream = static_cast<std::uint64_t>(step)});
      const Variable loss = mse_loss(runtime, model.forward(runtime, {x, nullptr}), x);
      model.update_forward_scales(runtime);
      run_backward(runtime, loss);
      model.update_backward_scales(runtime);
      adam.step(runtime);
      model.update_router_biases(runtime);
      model.zero_grad();
      losses.push_back(device->read(loss.value).front());
    }
    return losses;
  }
  std::vector<std::vector<std::uint8_t>> weights() {
    std::vector<std::vector<std::uint8_t>> bytes;
    for (const Parameter* p : model.parameters())
      bytes.push_back(p->in_eight_bits() ? all_bytes(*device, p->quantized) : support::bytes_of(*device, p->value));
    return bytes;
  }
};

using Cut = std::vector<std::int64_t>;

/// One rank's part of a matrix, in eight bits or not, and of a vector that only the last rank has.
struct Rank {
  std::unique_ptr<Device> device = open_host();
  Runtime runtime{.device = *device, .behaviors = {}};
  std::int64_t first;
  std::int64_t rows;
  Sharded matrix;
  Sharded vector;
  std::vector<Parameter*> list = {&matrix.unsharded, &vector.unsharded};
  Adam adam;

  Rank(ProcessGroup& group, const char* recipe, const Cut& cut, const AdamOptions& options)
      : first(cut[static_cast<std::size_t>(group.rank())]),
        rows(cut[static_cast<std::size_t>(group.rank()) + 1] - first),
        matrix(*device, {.shape = {rows, 128}, .recipe = recipe, .first_row = first, .group = &group}, {384, 128}),
        vector(*device, {.name = "v", .shape = {group.rank() + 1 == group.size() ? 40 : 0}}, {40}),
        adam(list, options) {}

  TrainingState state(bool with_optimizer = true) {
    return {.parameters = list,
            .optimizer = with_optimizer ? &adam : nullptr,
            .forward_scales = {},
            .backward_scales = {},
            .router_biases = {},
            .step = 7};
  }
  void run(int from, int to) {
    for (int step = from; step <= to; ++step) {
      set_gradient(*device, *matrix.shard, step, first);
      set_gradient(*device, *vector.shard, step);
      adam.step(runtime);
    }
  }
};

struct Everything {
  std::vector<float> master;
  std::vector<float> exp_avg;
  std::vector<std::uint8_t> data;
  std::vector<float> vector;
};

/// Runs `work` on the ranks of `cut` and joins the ranks' parts at the end.
inline Everything on_ranks(const char* recipe, const Cut& cut, const AdamOptions& options,
                           const std::function<void(ProcessGroup&, Rank&)>& work) {
  std::vector<Everything> parts(cut.size() - 1);
  run_ranks("in_process", {.ranks = static_cast<int>(parts.size())}, [&](ProcessGroup& group) {
    Rank rank(group, recipe, cut, options);
    work(group, rank);
    Everything& own = parts[static_cast<std::size_t>(group.rank())];
    const AdamState& state = rank.adam.state().front();
    own.master = rank.device->read(state.master);
    own.exp_avg = rank.device->read(state.exp_avg);
    if (state.exp_avg_scale)
      for (float& x : own.exp_avg) x *= rank.device->read(state.exp_avg_scale).front();
    if (rank.matrix.shard->in_eight_bits())
      own.data = support::bytes_of(*rank.device, rank.matrix.shard->quantized.rowwise().data);
    own.vector = rank.device->read(rank.vector.shard->value);
  });
  Everything all;
  const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
  for (const Everything& part : parts) {
    append(all.master, part.master);
    append(all.exp_avg, part.exp_avg);
    append(all.data, part.data);
    append(all.vector, part.vector);
  }
  return all;
}

inline const Cut kOneRank = {0, 384}, kThree = {0, 128, 256, 384}, kUneven = {0, 256, 384},
                 kEmpty = {0, 0, 256, 256, 384};
inline const AdamOptions kOptions{.learning_rate = 1e-2, .master = MasterWeights::kF32};

}  // namespace fp8lab::optim_test
