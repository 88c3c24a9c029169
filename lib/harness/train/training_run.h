#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "autograd/node.h"
#include "backend/device.h"
#include "comm/process_group.h"
#include "harness/cell/cell.h"
#include "harness/train/batches.h"
#include "harness/train/layer_taps.h"
#include "harness/train/step_records.h"
#include "harness/train/trained_model.h"

namespace fp8lab {

/// What one step of one rank read and made, on the host; lists are in the order of parameter_names().
struct StepValues {
  std::vector<std::vector<float>> weights;    ///< before the step, unsharded
  std::vector<std::vector<float>> gradients;  ///< all micro-batches; of a sharded parameter this rank's rows
  std::vector<std::vector<float>> updated;    ///< the weights after the step, unsharded
  std::vector<std::vector<float>> averages;   ///< after the step, as TrainedModel::averages()
  std::map<std::string, std::vector<float>> router_biases;  ///< after the step, by router
  // Of the present micro-batch.
  std::vector<float> x;
  std::vector<float> target;  ///< empty if the loss is the sum
  std::vector<float> output;
  float loss = 0.0f;
  std::vector<LayerValues> layers;
  /// Under delayed scaling what the micro-batch adds to amax histories, by owner ("layers[0].fc1 forward"), an amax a
  /// role.
  std::map<std::string, std::vector<float>> amaxes;
};

/// Sees what one rank of a run computes, while it runs, and may change it. Only of devices that compute values.
class StepWatch {
 public:
  virtual ~StepWatch() = default;
  /// Before the first forward of a step.
  virtual void begin_step(TrainedModel&, Device&, std::int64_t /*step*/) {}
  /// Before the forward of a micro-batch: its input, of that many sequences.
  virtual void saw_input(Device&, const Tensor& /*x*/, std::int64_t /*sequences*/) {}
  /// After the forward of a micro-batch.
  virtual void saw_output(Device&, const Tensor& /*output*/) {}
  /// After the last backward of a step. The optimizer reads the gradients that this leaves in the model.
  virtual void end_passes(TrainedModel&, Device&) {}
};

struct TrainingRunOptions {
  /// The ranks, as a process group for host memory; must outlive the run. Required if the cell is sharded or
  /// replicated; otherwise it only determines this rank's GPU.
  ProcessGroup* world = nullptr;
  bool record_timeline = false;  ///< the ledger records the events of setup; for steps see kTimelineSteps
  bool planted = false;          ///< a control cell: one byte lives as long as the run, see also plant_in_step()
  /// Records the casts of forward and backward, in the last step and some before it, if the device computes.
  CastWatch* casts = nullptr;
  std::int64_t cast_steps = 1;  ///< how many steps, evenly spaced from the first to the last; 1: the last
  /// Get the values after every micro-batch's backward, and after every step; both or neither. Empty: they are not
  /// read. Ranks call them together.
  std::function<void(const StepValues&)> saw_micro_batch = {};
  std::function<void(const StepValues&)> saw_step = {};
  /// Gets the output and the target of every batch of a validation.
  std::function<void(const std::vector<float>& output, const std::vector<float>& target)> saw_validation = {};
  SawLayer saw_layer = {};     ///< with `saw_step` only: gets the values of layers in the order of execution
  StepWatch* watch = nullptr;  ///< must outlive the run
  std::int64_t joined = 1;     ///< see Batches
  /// The micro-batches over which a step's loss is the mean; 0: all of them. Their gradients are added up.
  std::int64_t mean_over = 0;
};

/// One rank's training loop of a cell, as users of the libraries write it. A step is: make the input; forward and loss;
/// backward; optimizer step; free the gradients; free the input. The output and the loss are variables of the loop, so
/// a step's output and loss, and with them its autograd nodes, live until the next forward replaces them; but not
/// logits, which the loop hands over to the loss. The ledger is marked
/// at end_of_forward, end_of_backward and end_of_step of every step. Ranks share the model; each has tokens of its own.
///
/// A validation is forward passes without gradients, before the first step and after others, by the cell. It leaves
/// no trace but in the amaxes that delayed scaling records.
///
/// With several micro-batches the first three are repeated, each time over other tokens, and the input of one is freed
/// before the next is made. Their losses, and so their gradients, are averaged, but added up for the sum. Under
/// sharding every backward reduces its gradients to shards, which are added up. Delayed scaling updates its scales
/// after every forward and every backward.
class TrainingRun {
 public:
  /// Collective: every rank of the world makes the same runs in the same order. Throws Error if the mesh does not fit
  /// the ranks.
  TrainingRun(const CellConfig& cell, const Behaviors& behaviors, const Recipe& recipe,
              const TrainingRunOptions& options = {});

  /// Trains all steps.
  void train();
  /// Trains all steps and, if values are kept, reads the weights before and after. Reading them allocates device memory
  /// if parameters are sharded or in eight bits.
  void run();

  const CellConfig& cell() const { return cell_; }
  Device& device() { return *device_; }
  /// The loss of all tokens of this rank by step, over its micro-batches; empty if the device computes nothing.
  const std::vector<float>& losses() const { return records_.losses(); }
  /// The losses of this rank's batches; empty if the device computes nothing.
  const std::vector<ValidationLoss>& validations() const { return records_.validations(); }
  /// The times of the first step, then of the other timed steps (kTimedSteps).
  const std::vector<StepTimes>& times() const { return records_.times(); }
  /// The last step's collectives over all groups; null without ranks.
  const Traffic* last_step_traffic() const { return trained_.mesh() != nullptr ? &last_step_traffic_ : nullptr; }
  /// The plans that fused chains made in the last step.
  std::int64_t last_step_fusion_plans() const { return records_.fusion_plans(); }
  /// Makes train() measure the pre-forward host work of every layer; call it before training.
  void measure_host_work() { records_.measure_host_work(); }
  /// The samples of every layer in every timed step but the first.
  std::vector<PreForwardSample> host_work() const { return records_.host_work(); }
  /// One line each for ranks that share GPUs, and for parameters that are not sharded as the cell requires.
  std::vector<std::string> warnings() const;

  /// Calls `visit` with every parameter, in the order of the model; of experts with this rank's part. Collective:
  /// parameters are gathered as for `pass` and stay gathered until this returns.
  void visit_parameters(const std::function<void(const Parameter&)>& visit, Pass pass = Pass::kForward) {
    trained_.visit_parameters(visit, pass);
  }
  /// Names in the order of weights() and of Values::gradients.
  std::vector<std::string> parameter_names() const { return trained_.parameter_names(); }
  /// The elements of each parameter that this rank keeps, in the same order.
  std::vector<ElementRange> own_elements() const { return trained_.own_elements(); }
  /// The unsharded parameters as this rank sees them; FP8 weights are dequantized with this rank's scales.
  /// Collective.
  std::vector<std::vector<float>> weights() { return trained_.weights(); }

  /// The output of the last micro-batch and the gradients of one more step's passes, after which nothing is updated.
  struct Passes {
    std::vector<float> output;
    std::vector<std::vector<float>> gradients;
  };
  /// The weights and the biases of routers with which a model computes.
  struct Weights {
    std::vector<std::vector<float>> values;  ///< unsharded
    std::map<std::string, std::vector<float>> router_biases;
  };
  /// After train(): makes these passes with the present weights, or with `weights`. Collective.
  Passes pass_once_more(const Weights* weights = nullptr);
  /// As TrainedModel::router_biases().
  std::map<std::string, std::vector<float>> router_biases() const { return trained_.router_biases(); }

  /// False if a validation changed an amax history or a scale; known if values are kept.
  bool validations_keep_scales() const { return validations_keep_scales_; }
  /// Bytes by which the allocator's reserved memory grew from the end of the second step to the end of the last;
  /// nothing for fewer than three steps.
  std::optional<std::int64_t> reserved_growth_bytes() const;

  /// As TrainedModel::scales().
  std::map<std::string, std::vector<float>> scales() const { return trained_.scales(); }

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
  Values take_values() { return std::move(values_); }

 private:
  bool keeps() const { return keep_values_ && device_->computes(); }
  /// All collectives so far over all groups; only of a cell with ranks.
  Traffic traffic() const;
  bool watches_casts(std::int64_t step) const;
  void resume();
  bool validates_after(std::int64_t steps) const;
  /// Measures the loss of the cell's batches for validation, after `steps` steps.
  void validate(std::int64_t steps);
  void step();
  /// Forward and backward of micro-batch `index` of the step.
  void pass_micro_batch(std::int64_t index, StepTimes& times);
  Variable loss_of(const Variable& output);
  /// A control cell's changes to a step: one collective, and 5 % of the step's time.
  void plant_in_step(StepTimes& times);

  const CellConfig& cell_;
  std::unique_ptr<Device> device_;
  ProcessGroup* host_world_;             ///< TrainingRunOptions::world if the cell has ranks, else null
  std::unique_ptr<ProcessGroup> world_;  ///< the same ranks for memory of the device; null without ranks
  /// The ranks that split this rank's sequences; null if none do.
  std::unique_ptr<ProcessGroup> context_group_;
  std::vector<std::string> shared_gpus_;
  Runtime runtime_;
  TrainedModel trained_;
  Batches batches_;
  StepRecords records_;
  Batch batch_;
  Variable output_;
  Variable loss_;
  Traffic last_step_traffic_;
  CastWatch* casts_;
  std::int64_t cast_steps_;
  std::function<void(const StepValues&)> saw_micro_batch_, saw_step_;
  std::function<void(const std::vector<float>&, const std::vector<float>&)> saw_validation_;
  SawLayer saw_layer_;
  StepWatch* watch_;        ///< null: no one watches
  StepValues step_values_;  ///< the present step's, if saw_step_ uses them
  bool planted_;
  float share_;  ///< what a micro-batch's loss counts in the loss of the step
  Tensor planted_byte_;
  bool keep_values_ = false;
  bool validations_keep_scales_ = true;
  std::int64_t reserved_after_second_ = 0, reserved_after_last_ = 0;
  Values values_;
};

}  // namespace fp8lab
