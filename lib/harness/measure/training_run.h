#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "autograd/node.h"
#include "backend/device.h"
#include "fsdp/sharding.h"
#include "harness/cell/cell.h"
#include "harness/measure/scores.h"
#include "nn/model.h"
#include "optim/adam.h"
#include "optim/weight_average.h"

namespace fp8lab {

/// The wall time of the phases of one step; the device is synchronised at the end of each phase.
struct StepTimes {
  double forward_ms = 0.0;
  double backward_ms = 0.0;
  double optimizer_ms = 0.0;
  double step_ms = 0.0;
};

// A scenario may ask for a million steps, so records by step are bounded; only losses, four bytes each, are kept of
// every step.

/// A timeline holds this many of the first steps and this many of the last steps.
inline constexpr std::int64_t kTimelineSteps = 8;
/// Times are measured in the first step and in at most this many of the others, evenly spaced.
inline constexpr std::int64_t kTimedSteps = 1024;

/// What one step of a run that is not sharded read and made, on the host; lists are in the order of parameter_names().
struct StepValues {
  std::vector<float> x;
  std::vector<float> target;                ///< empty where the loss is the sum
  std::vector<std::vector<float>> weights;  ///< before the step
  std::vector<float> output;
  float loss = 0.0f;
  std::vector<std::vector<float>> gradients;
  std::vector<std::vector<float>> updated;  ///< the weights after the step
};

struct TrainingRunOptions {
  /// The ranks, as a process group for host memory; must outlive the run. Required where the cell is sharded; otherwise
  /// it only determines this rank's GPU.
  ProcessGroup* world = nullptr;
  bool record_timeline = false;  ///< the ledger records its events: those of setup, and of steps see kTimelineSteps
  bool planted = false;          ///< a control cell: one byte lives as long as the run, see also plant_in_step()
  CastWatch* casts = nullptr;    ///< records the casts of the last step's forward and backward
  /// Gets the values of every step, of its last micro-batch; empty: they are not read.
  std::function<void(const StepValues&)> saw_step = {};
};

/// One rank's training loop of a cell, as users of the libraries write it. A step is: make the input; forward and loss;
/// backward; optimizer step; free the gradients; free the input. The output and the loss are variables of the loop, so
/// those of a step, and with them its autograd nodes, live until the next forward replaces them. The ledger is marked
/// at end_of_forward, end_of_backward and end_of_step of every step. Ranks share the model; each has tokens of its own.
///
/// With several micro-batches the first three are repeated, each time over other tokens, and the input of one is freed
/// before the next is made. Their losses, and so their gradients, are added up and not averaged. Under sharding every
/// backward reduces its gradients to shards, which are added up. Delayed scaling updates its scales after every forward
/// and every backward.
class TrainingRun {
 public:
  /// Collective: every rank of the world makes the same runs in the same order. Throws Error if the mesh does not fit
  /// the ranks.
  TrainingRun(const CellConfig& cell, const Behaviors& behaviors, const Recipe& recipe,
              const TrainingRunOptions& options = {});

  /// Trains all steps.
  void train();
  /// Trains all steps and, if values are kept, reads the weights before and after. Reading them allocates device memory
  /// where parameters are sharded or in eight bits.
  void run();

  const CellConfig& cell() const { return cell_; }
  Device& device() { return *device_; }
  /// The loss of this rank's tokens by step, added up over its micro-batches; empty where the device computes nothing.
  const std::vector<float>& losses() const { return losses_; }
  /// The times of the first step, then of the other timed steps (kTimedSteps).
  const std::vector<StepTimes>& times() const { return times_; }
  /// The last step's collectives over all groups; null where nothing is sharded.
  const Traffic* last_step_traffic() const { return sharding_ ? &last_step_traffic_ : nullptr; }
  /// Makes train() measure the pre-forward host work of every layer; call it before training.
  void measure_host_work();
  /// The samples of every layer in every timed step but the first.
  std::vector<PreForwardSample> host_work() const;
  /// One line each for ranks that share GPUs, and for parameters that are not sharded as the cell asks.
  std::vector<std::string> warnings() const;

  /// Calls `visit` with every parameter, in the order of the model. Collective: parameters are gathered as for `pass`
  /// and stay gathered until this returns.
  void visit_parameters(const std::function<void(const Parameter&)>& visit, Pass pass = Pass::kForward);
  /// Names in the order of weights() and of Values::gradients.
  std::vector<std::string> parameter_names() const;
  /// The elements of each parameter that this rank keeps, in the same order.
  std::vector<ElementRange> own_elements() const;
  /// The unsharded parameters as this rank sees them; weights in eight bits are dequantized with this rank's scales.
  std::vector<std::vector<float>> weights();

  /// Values on the host, if keep_values() asked for them: the output of the last micro-batch; the gradients of the last
  /// step, by parameter (of a sharded parameter this rank's rows); and the weights that run() adds.
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
  void validate();
  void step();
  /// Forward and backward of micro-batch `index` of the step.
  void pass_micro_batch(std::int64_t index, StepTimes& times);
  /// A control cell's changes to a step: one collective, and 5 % of the step's time.
  void plant_in_step(StepTimes& times);
  Tensor make_input(std::string_view name, float scale);
  std::vector<std::vector<float>> read_gradients();
  Traffic traffic() const;
  void record_shared_gpus(ProcessGroup& world);

  const CellConfig& cell_;
  std::unique_ptr<Device> device_;
  ProcessGroup* host_world_;             ///< TrainingRunOptions::world where the cell is sharded, else null
  std::unique_ptr<ProcessGroup> ranks_;  ///< the process group for device memory; null where nothing is sharded
  Runtime runtime_;
  Recipe recipe_;
  ProcessGroup* world_;         ///< ranks_.get()
  std::int64_t first_row_ = 0;  ///< global index of this rank's first token of a step
  std::unique_ptr<Mesh> mesh_;
  // build() makes these; resume() makes them anew.
  std::unique_ptr<Model> model_;
  std::unique_ptr<Sharding> sharding_;
  std::unique_ptr<Adam> adam_;  ///< null where the cell has another optimizer or none
  std::function<void(Runtime&)> optimizer_step_;
  std::unique_ptr<WeightAverage> average_;
  Tensor input_;
  Tensor target_;
  Variable output_;
  Variable loss_;
  std::vector<float> losses_;
  std::vector<StepTimes> times_;
  Traffic last_step_traffic_;
  std::vector<std::string> shared_gpus_;
  std::vector<PreForwardSample> host_work_;
  std::size_t host_work_of_first_step_ = 0;
  CastWatch* casts_;
  std::function<void(const StepValues&)> saw_step_;
  StepValues step_values_;  ///< of the present step, if saw_step_ wants them
  bool record_timeline_;
  bool planted_;
  Tensor planted_byte_;
  bool measure_host_work_ = false;
  bool keep_values_ = false;
  Values values_;
};

/// The layer configuration of a cell's model, with defaults filled in.
LayerConfig layer_config(const ModelConfig& model, bool fp8_attention);

}  // namespace fp8lab
