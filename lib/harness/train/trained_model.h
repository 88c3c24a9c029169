#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/replication.h"
#include "fsdp/sharding.h"
#include "harness/cell/cell.h"
#include "harness/train/element_range.h"
#include "nn/model.h"
#include "optim/adam.h"
#include "optim/foreach_optimizers.h"
#include "optim/saved_state.h"
#include "optim/weight_average.h"

namespace fp8lab {

/// One rank's model of a cell with what trains it: mesh, sharding or replication, optimizer and average of the weights.
/// Lists of values are in the order of parameter_names().
class TrainedModel {
 public:
  /// Collective. `ranks`: the process group for memory of the device, null without ranks. All arguments but
  /// `recipe` must outlive this object. Throws Error if the cell's mesh does not fit the ranks.
  TrainedModel(const CellConfig& cell, Runtime& runtime, const Recipe& recipe, ProcessGroup* ranks);

  Model& model() { return *model_; }
  /// Collective, after the last backward of a step: averages the gradients of a replicated model over its ranks.
  void reduce_gradients();
  /// The optimizer's step, the step of the average of the weights, and of the biases of routers. Collective.
  void update();

  /// Collective. Writes this rank's part of the training state into files of `folder`, if the device computes.
  void save(const std::filesystem::path& folder);
  /// Collective. Builds model, sharding and optimizer again and, if the device computes, loads what save() wrote. Sets
  /// the runtime's step to the saved one.
  void restore(const std::filesystem::path& folder);

  /// Null without ranks.
  const Mesh* mesh() const { return mesh_.get(); }
  /// All collectives so far over all groups of the mesh.
  Traffic traffic() const;
  /// One line for each parameter that is not sharded as the cell requires.
  std::vector<std::string> warnings() const;

  /// Calls `visit` with every parameter, of experts with this rank's part. Collective: parameters are gathered as for
  /// `pass` and stay gathered until this returns.
  void visit_parameters(const std::function<void(const Parameter&)>& visit, Pass pass);
  std::vector<std::string> parameter_names() const;
  /// The elements of each parameter that this rank keeps.
  std::vector<ElementRange> own_elements() const;
  /// The unsharded parameters as this rank sees them, with the experts of all ranks; FP8 weights are dequantized with
  /// this rank's scales. Collective.
  std::vector<std::vector<float>> weights();
  /// Writes unsharded values into this rank's parameters, which are in 16 or 32 bits.
  void write_weights(const std::vector<std::vector<float>>& values);
  /// Gradients; for a sharded parameter, the gradients of this rank's rows.
  std::vector<std::vector<float>> gradients() const;
  /// The averages of the weights, of this rank's rows; empty lists for weights in eight bits, nothing without averages.
  std::vector<std::vector<float>> averages() const;
  /// The biases by which routers choose, by the name of the router.
  std::map<std::string, std::vector<float>> router_biases() const;
  /// Writes biases of router_biases() of a model with the same routers.
  void write_router_biases(const std::map<std::string, std::vector<float>>& values);
  /// Adds the amaxes that a pass recorded and no update has moved into the histories yet.
  void add_amaxes(const std::vector<RoleScales*>& scales, std::map<std::string, std::vector<float>>& amaxes) const;
  /// The amaxes of earlier passes and the scales of delayed scaling, by owner: "layers[0].fc1 forward". Equal on all
  /// ranks of a run.
  std::map<std::string, std::vector<float>> scales() const;

 private:
  void build();
  std::filesystem::path folder_of_replica(const std::filesystem::path& folder) const;
  TrainingState state() const;
  ProcessGroup* shards() const { return sharding_ ? &mesh_->shard_group() : nullptr; }

  const CellConfig& cell_;
  Runtime& runtime_;
  Recipe recipe_;
  std::unique_ptr<Mesh> mesh_;
  // build() makes these; restore() makes them again.
  std::unique_ptr<Model> model_;
  std::unique_ptr<Sharding> sharding_;  // or replication_, if there is a mesh
  std::unique_ptr<Replication> replication_;
  // The cell's optimizer. The pointer of any optimizer that the cell does not have is null.
  std::unique_ptr<Adam> adam_;
  std::unique_ptr<ForeachAdam> foreach_adam_;
  std::unique_ptr<Sgd> sgd_;
  std::function<void(Runtime&)> optimizer_step_;
  std::unique_ptr<WeightAverage> average_;
};

}  // namespace fp8lab
