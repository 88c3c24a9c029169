#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/measure/scores.h"
#include "harness/train/training_run.h"

// The plain twin of a cell: the same training on one rank, in one forward and backward pass over the sequences of all
// ranks and micro-batches, without recomputation, cached or eight-bit weights, gathers ahead or a resume. What ranks,
// micro-batches and savings of memory or work do to a step shows as a difference from it, also if they do it to both
// arms of a comparison with BF16 alike.
namespace fp8lab {

struct PlainTwin {
  CellConfig cell;
  std::int64_t joined = 1;  ///< batches of the cell that are one batch of the twin
  /// The sums of the cell and of its twin are in another order, and under a scale per tensor over other values, so
  /// bits differ.
  bool splits = false;
  /// The cell over the same ranks and micro-batches, with everything else plain, whose bits are the cell's; nothing if
  /// that is the cell itself, or the twin.
  std::optional<CellConfig> same_split;
  /// The twin with all micro-batches that the cell adds up, if the noise of a sum does not show the noise of its
  /// parts: magnitudes vary over many binades, so that parts may cancel, and a scale per tensor differs from part to
  /// part.
  std::optional<CellConfig> parts;
  std::int64_t first = 0;  ///< the first step whose values have bounds; the twin starts with step 0
  std::int64_t steps = 0;  ///< how many of the cell's first steps it trains
  /// The twin's weights after its last step are the cell's: it trains all steps, and both have them in 16 or 32 bits.
  bool compares_weights = false;
};

/// Why the arm has no plain twin, or "". Known before anything runs.
std::string why_no_plain_twin(const CellConfig& cell, Arm arm);
/// The twin of a cell that has one.
PlainTwin plain_twin(const CellConfig& cell, Arm arm);

/// What a rank computed in one step, on the host.
struct RecordedStep {
  std::vector<std::uint64_t> inputs;  ///< a hash of each sequence of each micro-batch
  Lists outputs;                      ///< outputs of each micro-batch
  Lists gradients;                    ///< before the optimizer; of a sharded parameter this rank's rows
  // If asked for, before the step:
  Lists weights;                                            ///< unsharded
  std::map<std::string, std::vector<float>> router_biases;  ///< by router
};

/// Records the first steps of a run.
class StepRecorder : public StepWatch {
 public:
  explicit StepRecorder(std::int64_t steps) : most_(steps) {}

  void begin_step(TrainedModel& model, Device& device, std::int64_t step) override;
  void saw_input(Device& device, const Tensor& x, std::int64_t sequences) override;
  void saw_output(Device& device, const Tensor& output) override;
  void end_passes(TrainedModel& model, Device& device) override;

  const std::vector<RecordedStep>& steps() const { return steps_; }
  /// Changes the sign of an output and of a gradient of the first step; for plants_on().
  void plant();

 protected:
  RecordedStep& present() { return steps_.back(); }

 private:
  std::int64_t most_;
  bool recording_ = false;
  std::vector<RecordedStep> steps_;
};

/// Puts the metrics parity.twin_* of a finished run whose first steps `recorder` saw. `result` has the losses of all
/// ranks, and of validations. Collective over `world`, which is
/// null if nothing is sharded: the twin trains on rank 0. In every step it starts from what the cell's own gradients
/// make of the weights, so that differences do not add up over steps, and the optimizer is compared too. Faults are
/// named in the arm's notes, by tensor, rank, micro-batch and step.
void measure_plain_twin(const CellConfig& cell, Arm arm, TrainingRun& run, const StepRecorder& recorder,
                        const Lists& weights, ProcessGroup* world, ArmResult& result);

}  // namespace fp8lab
