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

/// What one rank's forward and backward run in. Passed explicitly: nothing in lib/ depends on hidden state.
struct Runtime {
  Device& device;
  Behaviors behaviors;
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  std::int64_t row_offset =
      0;  ///< global index of this rank's first token: data and dropout masks come from global rows
  HostCounters host{};

  /// Forward inside a checkpointed region: the first time activations are left out and scales stashed (recording), the
  /// second time they are made again for the nodes of the first (recomputing).
  enum class Mode { kPlain, kRecording, kRecomputing };
  Mode mode = Mode::kPlain;
  CheckpointFrame* frame = nullptr;  ///< of the region being run, null in plain mode

  HolderId in_flight(std::string_view owner) { return device.holder(HolderKind::kInFlight, owner); }
  HolderId workspace(std::string_view owner) { return device.holder(HolderKind::kWorkspace, owner); }
};

/// How a parameter's elements begin: from (seed, parameter name, global index), so that a shard equals its slice of the
/// unsharded.
enum class Init {
  kNormal,  ///< mean 0, standard deviation 0.02
  kZeros,
  kOnes,
};

/// Where initial values come from: enough to make them again.
struct InitialValues {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;    ///< of the unsharded parameter's name
  std::int64_t first_row = 0;  ///< in the unsharded parameter
};

/// A trainable tensor, in high precision or in eight bits. Where training is sharded, modules compute with the
/// unsharded parameter, which is there between a gather and the next reshard only, and `local` is what this rank keeps:
/// a parameter of its own, which the optimizer updates.
struct Parameter {
  std::string name;
  TensorSpec spec;  ///< nominal: of the unsharded parameter, in the type that gradients and products have
  Init init = Init::kZeros;
  std::optional<InitialValues> initial;  ///< as long as it holds them, or what was cast from them
  Tensor value;                          ///< high precision; absent where `quantizer` is there
  QuantizedTensor quantized;             ///< eight bits
  std::unique_ptr<Quantizer> quantizer;  ///< how `quantized` is rewritten; null for a parameter in high precision
  Tensor grad;                           ///< of the nominal type; absent until backward first reaches it
  HolderId holder = 0;
  HolderId grad_holder = 0;
  Parameter* local = nullptr;  ///< owned by who shards; null where the unsharded parameter stays here

  bool in_eight_bits() const { return quantizer != nullptr; }
  /// Takes `gradient` over, or adds it to what is there.
  void accumulate(Device& device, Tensor gradient);
};

}  // namespace fp8lab
