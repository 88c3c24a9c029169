#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "autograd/host_counters.h"
#include "backend/device.h"
#include "behavior/behaviors.h"
#include "ops/quantize.h"
#include "tensor/quantized_tensor.h"

namespace fp8lab {

class CheckpointFrame;

/// Part `part` of a matrix that ranks have between them: one of `parts` runs of rows, all of one length.
struct RowPart {
  int part = 0;
  int parts = 1;
};

/// The state in which one rank's forward and backward run. Passed explicitly: nothing in lib/ depends on hidden state.
struct Runtime {
  Device& device;
  Behaviors behaviors;
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  /// Global index of this rank's first token. Data and dropout masks are functions of global rows.
  std::int64_t row_offset = 0;
  HostCounters host{};

  /// How forward runs inside a checkpointed region. The first time (recording) saved tensors are not kept and scales
  /// are stashed; the second time (recomputing) the tensors are computed again for the nodes of the first.
  /// Evaluating: there will be no backward, so nothing is saved, and casts make only row-wise orientations. Frozen: the
  /// same for layers of a training pass that take no gradient.
  enum class Mode { kPlain, kRecording, kRecomputing, kEvaluating, kFrozen };
  Mode mode = Mode::kPlain;
  CheckpointFrame* frame = nullptr;  ///< frame of the running region, null outside of regions
  /// Weights may have changed since the forward before: cached copies of them are cast again.
  bool first_micro_batch = true;
  /// Context parallelism: the ranks that split every sequence between them (autograd/sequence_split.h), as a group for
  /// memory of `device`; null: each rank has entire sequences.
  ProcessGroup* context_group = nullptr;
  /// Expert parallelism: the ranks that have a layer's experts between them, as a group for memory of `device`, and
  /// this rank's part of the experts; null: each rank computes with all experts.
  ProcessGroup* expert_group = nullptr;
  RowPart expert_part{};
  /// What the loss of a micro-batch counts in the loss of the step; losses that layers add themselves count as much.
  double loss_share = 1.0;

  /// False if no backward will follow this forward.
  bool differentiates() const { return mode != Mode::kEvaluating && mode != Mode::kFrozen; }
  /// Evaluating drops nothing.
  float dropout(float probability) const { return mode == Mode::kEvaluating ? 0.0f : probability; }
  HolderId in_flight(std::string_view owner) { return device.holder(HolderKind::kInFlight, owner); }
  HolderId workspace(std::string_view owner) { return device.holder(HolderKind::kWorkspace, owner); }
};

/// How a parameter's elements are initialised: from (seed, parameter name, global index), so that a shard equals its
/// slice of the unsharded parameter.
enum class Init {
  kNormal,  ///< mean 0, standard deviation Parameter::init_deviation
  kZeros,
  kOnes,
};

/// The place of the values from which a parameter in eight bits was cast, once the cast is done.
enum class InitialValuesIn {
  kSeed,  ///< nowhere: they are computed again
  kHost,  ///< in host memory (Transformer Engine's preserve_high_precision_init_val)
  kLost,  ///< only the eight bits are left
};

/// A parameter's initial values, or what is needed to compute them again.
struct InitialValues {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;    ///< random stream, derived from the unsharded parameter's name
  std::int64_t first_row = 0;  ///< in the unsharded parameter
  HostCopy kept;               ///< the values in the nominal type, if they are kept
};

/// A parameter, in high precision or in eight bits. If training is sharded, modules compute with the
/// unsharded parameter, which exists only between a gather and the next reshard. `local` is then this rank's shard: a
/// parameter of its own, which the optimizer updates.
struct Parameter {
  std::string name;
  TensorSpec spec;  ///< nominal: shape of the unsharded parameter, and the type of its gradients and products
  Init init = Init::kZeros;
  float init_deviation = 0.02f;
  InitialValuesIn initial_in = InitialValuesIn::kSeed;  ///< for a parameter in eight bits
  std::optional<InitialValues> initial;  ///< present while the parameter holds its initial values or their cast
  Tensor value;                          ///< high precision; absent if there is a `quantizer`
  QuantizedTensor quantized;             ///< eight bits
  bool made_columnwise = false;          ///< `quantized`'s column-wise orientation was made of rows after a gather
  std::unique_ptr<Quantizer> quantizer;  ///< quantizes updates of `quantized`; null for a parameter in high precision
  Tensor grad;                           ///< has the nominal type; absent until backward first produces one
  HolderId holder = 0;
  HolderId grad_holder = 0;
  std::int64_t first_row = 0;  ///< index of a shard's first row in the unsharded parameter of all parts
  /// Expert parallelism: `spec` and the unsharded parameter are this part of the rows of all experts.
  RowPart part{};
  bool frozen = false;         ///< it takes no gradient, and no optimizer updates it
  Parameter* local = nullptr;  ///< the shard, owned by the sharding; null if the parameter is not sharded

  bool in_eight_bits() const { return quantizer != nullptr; }
  /// The shape of all parts together.
  Shape entire_shape() const {
    Shape shape = spec.shape;
    if (part.parts > 1) shape.set(0, shape[0] * part.parts);
    return shape;
  }
  /// Makes the column-wise orientation of `quantized` as the transpose of the row-wise one.
  void make_columnwise(Device& device);
  void drop_columnwise();
  /// Takes `gradient` over, or adds it to the gradient that is there.
  void accumulate(Device& device, Tensor gradient);
};

}  // namespace fp8lab
