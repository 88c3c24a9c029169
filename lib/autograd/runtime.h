#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "backend/device.h"
#include "behavior/behaviors.h"

namespace fp8lab {

class CheckpointFrame;

/// What one rank's forward and backward run in. Passed explicitly: nothing in lib/ depends on hidden state.
struct Runtime {
  Device& device;
  Behaviors behaviors;
  std::uint64_t seed = 0;
  std::int64_t step = 0;

  /// Forward inside a checkpointed region: the first time activations are left out and scales stashed (recording), the second time they are
  /// made again for the nodes of the first (recomputing).
  enum class Mode { kPlain, kRecording, kRecomputing };
  Mode mode = Mode::kPlain;
  CheckpointFrame* frame = nullptr;  ///< of the region being run, null in plain mode

  HolderId in_flight(std::string_view owner) { return device.holder(HolderKind::kInFlight, owner); }
  HolderId workspace(std::string_view owner) { return device.holder(HolderKind::kWorkspace, owner); }
};

/// A trainable tensor. `grad` is absent until backward first reaches it.
struct Parameter {
  std::string name;
  Tensor value;
  Tensor grad;
  HolderId grad_holder = 0;

  /// Takes `gradient` over, or adds it to what is there.
  void accumulate(Device& device, Tensor gradient);
};

}  // namespace fp8lab
