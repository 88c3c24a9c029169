#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "autograd/node.h"
#include "backend/device.h"
#include "fsdp/sharding.h"
#include "harness/cell/cell.h"
#include "nn/model.h"
#include "optim/adam.h"
#include "optim/weight_average.h"

namespace fp8lab {

/// Wall time of one step's phases, the device synchronised at each border.
struct StepTimes {
  double forward_ms = 0.0;
  double backward_ms = 0.0;
  double optimizer_ms = 0.0;
  double step_ms = 0.0;
};

/// What is kept by step has a bound, because a scenario may ask for a million steps. Of longer runs a timeline holds so
/// many of the first steps and as many of the last, ...
inline constexpr std::int64_t kTimelineSteps = 8;
/// ... and clocks are read in the first step and, evenly spaced, in so many of the others. A loss is four bytes, and
/// kept of every step.
inline constexpr std::int64_t kTimedSteps = 1024;

struct TrainingRunOptions {
  /// Of host memory; needed where the cell is sharded, outlives the run and otherwise only picks this rank's GPU.
  ProcessGroup* world = nullptr;
  bool record_timeline = false;  ///< the ledger keeps its events, setup's too; of steps see kTimelineSteps
  CastWatch* casts = nullptr;    ///< records the casts of the last step's forward and backward
};

/// One rank's training loop of a cell, as the source documents' users write it. Per step: a fresh input; forward and
/// loss; backward; optimizer step, gradients dropped, input dropped. Output and loss are variables of the loop, so the
/// previous step's live until the next forward replaces them: this is what keeps its nodes alive. The ledger is marked
/// at end_of_forward, end_of_backward and end_of_step of every step. Ranks share the model and have tokens of their
/// own.
class TrainingRun {
 public:
  /// Every rank of a world makes the same runs in the same order. Throws Error where the mesh does not fit.
  TrainingRun(const CellConfig& cell, const Behaviors& behaviors, const Recipe& recipe,
              const TrainingRunOptions& options = {});

  /// All steps.
  void train();
  /// All steps; where values are kept, with the weights before and after. Reading those takes device memory where
  /// parameters are sharded or in eight bits.
  void run();

  const CellConfig& cell() const { return cell_; }
  Device& device() { return *device_; }
  /// Of this rank's tokens; empty where the device computes nothing.
  const std::vector<float>& losses() const { return losses_; }
  /// The first step's, then the other timed steps' (kTimedSteps).
  const std::vector<StepTimes>& times() const { return times_; }
  /// The last step's collectives over all groups; null where nothing is sharded.
  const Traffic* last_step_traffic() const { return sharding_ ? &last_step_traffic_ : nullptr; }
  /// Of every layer and every timed step but the first, if they were asked for before training.
  void measure_host_work();
  std::vector<PreForwardSample> host_work() const;
  /// Ranks that share GPUs, and why parameters are not sharded as the cell asks, a line each.
  std::vector<std::string> warnings() const;

  /// Calls `visit` with every parameter as `pass` finds it, in the order of the model: gathered for as long as the call
  /// takes.
  void visit_parameters(const std::function<void(const Parameter&)>& visit, Pass pass = Pass::kForward);
  /// In the order of weights() and of gradients.
  std::vector<std::string> parameter_names() const;
  /// The parameters' values as this rank sees them, eight bits decoded with the scales that it has.
  std::vector<std::vector<float>> weights();

  /// On the host, kept only if asked for: the last step's output and gradients by parameter (of a sharded one this
  /// rank's rows), and what run() adds.
  struct Values {
    std::vector<float> output;
    std::vector<std::vector<float>> gradients;
    std::vector<std::vector<float>> initial_weights;
    std::vector<std::vector<float>> weights;
  };
  void keep_values(bool on) { keep_values_ = on; }
  const Values& values() const { return values_; }

 private:
  bool keeps() const { return keep_values_ && device_->computes(); }
  void build();
  void resume();
  bool is_timed(std::int64_t step) const;
  void choose_what_is_kept(std::int64_t step);
  void step();
  Tensor make_input(std::string_view name, float scale);
  std::vector<std::vector<float>> read_gradients();
  Traffic traffic() const;
  void record_shared_gpus(ProcessGroup& world);

  const CellConfig& cell_;
  std::unique_ptr<Device> device_;
  ProcessGroup* host_world_;             ///< TrainingRunOptions::world where the cell is sharded, else null
  std::unique_ptr<ProcessGroup> ranks_;  ///< on the device; null where nothing is sharded
  Runtime runtime_;
  Recipe recipe_;
  ProcessGroup* world_;  ///< ranks_
  std::unique_ptr<Mesh> mesh_;
  // What build() makes, and resume() makes anew.
  std::unique_ptr<Model> model_;
  std::unique_ptr<Sharding> sharding_;
  std::unique_ptr<Adam> adam_;  ///< null where the cell has another optimizer or none
  std::function<void(Runtime&)> optimizer_step_;
  std::unique_ptr<WeightAverage> average_;
  Variable output_;
  Variable loss_;
  std::vector<float> losses_;
  std::vector<StepTimes> times_;
  Traffic last_step_traffic_;
  std::vector<std::string> shared_gpus_;
  std::vector<PreForwardSample> host_work_;
  std::size_t host_work_of_first_step_ = 0;
  CastWatch* casts_;
  bool record_timeline_;
  bool measure_host_work_ = false;
  bool keep_values_ = false;
  Values values_;
};

/// The layer configuration that a cell's model describes; defaults filled in.
LayerConfig layer_config(const ModelConfig& model, bool fp8_attention);

}  // namespace fp8lab
