#pragma once

#include <memory>
#include <vector>

#include "autograd/node.h"
#include "backend/device.h"
#include "harness/cell.h"
#include "nn/model.h"
#include "optim/adam.h"

namespace fp8lab {

/// Wall time of one step's phases, the device synchronised at each border.
struct StepTimes {
  double forward_ms = 0.0;
  double backward_ms = 0.0;
  double optimizer_ms = 0.0;
  double step_ms = 0.0;
};

/// The training loop of a cell, as the source documents' users write it. Per step: a fresh input; forward and loss; backward; optimizer step, gradients
/// dropped, input dropped. Output and loss are variables of the loop, so the previous step's live until the next
/// forward replaces them: this is what keeps its nodes alive. The ledger is marked at end_of_forward, end_of_backward and
/// end_of_step of every step.
class TrainingRun {
 public:
  TrainingRun(const CellConfig& cell, const Behaviors& behaviors, const Recipe& recipe);

  void run();

  Device& device() { return *device_; }
  const std::vector<float>& losses() const { return losses_; }  ///< empty where the device computes nothing
  const std::vector<StepTimes>& times() const { return times_; }

  /// The last step's output, gradients by parameter (kept only if asked for) and the final parameters, on the host.
  struct Values {
    std::vector<float> output;
    std::vector<std::vector<float>> gradients;
    std::vector<std::vector<float>> initial_weights;
    std::vector<std::vector<float>> weights;
  };
  void keep_values(bool on) { keep_values_ = on; }
  const Values& values() const { return values_; }

 private:
  void step();
  Tensor make_input(std::string_view name, float scale);
  std::vector<std::vector<float>> read_parameters(bool gradients);

  const CellConfig& cell_;
  std::unique_ptr<Device> device_;
  Runtime runtime_;
  Model model_;
  std::unique_ptr<Adam> optimizer_;
  Variable output_;
  Variable loss_;
  std::vector<float> losses_;
  std::vector<StepTimes> times_;
  bool keep_values_ = false;
  Values values_;
};

/// The layer configuration that a cell's model describes; defaults filled in.
LayerConfig layer_config(const ModelConfig& model, bool fp8_attention);

}  // namespace fp8lab
