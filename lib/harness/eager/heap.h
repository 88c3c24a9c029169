#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

// The live memory of a program that allocates and frees blocks one after the other.
namespace fp8lab::eager {

using Bytes = std::int64_t;

/// What a block is for.
enum class Owner {
  kParameters,
  kOptimizer,
  kGradients,
  kInputs,
  kSaved,
  kLogits,
  kUnsharded,
  kGathers,
  kReductions,
  kTemporaries,
  kLibraries
};
inline constexpr std::array<std::string_view, 11> kOwnerNames{"parameters",
                                                              "the optimizer's state",
                                                              "gradients",
                                                              "inputs",
                                                              "activations saved for backward",
                                                              "logits, log-probabilities and their gradients",
                                                              "unsharded parameters",
                                                              "FSDP2's all-gather buffers",
                                                              "FSDP2's reduce-scatter buffers",
                                                              "temporaries",
                                                              "workspace of cuBLAS"};
using ByOwner = std::array<Bytes, kOwnerNames.size()>;

/// The phases of a training step that have peaks of their own.
enum class Phase { kSetup, kForward, kBackward, kOptimizer };
inline constexpr std::array<std::string_view, 4> kPhaseNames{"setup", "forward", "backward", "optimizer"};

/// A live block; 0 is none.
using Block = std::size_t;

/// Counts live bytes. Blocks are rounded up to a multiple of `grain`.
class Heap {
 public:
  explicit Heap(Bytes grain) : grain_(grain) {}

  /// Returns 0 for no bytes, which free() ignores.
  Block allocate(Bytes bytes, Owner owner);
  /// Frees the block, and sets it to 0.
  void free(Block& block);
  void enter(Phase phase);

  Bytes live() const { return live_; }
  const ByOwner& by_owner() const { return by_owner_; }
  Bytes peak(Phase phase) const { return peaks_[static_cast<std::size_t>(phase)].bytes; }
  const ByOwner& at_peak(Phase phase) const { return peaks_[static_cast<std::size_t>(phase)].by_owner; }

 private:
  struct Peak {
    Bytes bytes = 0;
    ByOwner by_owner{};
  };
  struct Entry {
    Bytes bytes;
    Owner owner;
  };

  void consider_peak();

  Bytes grain_, live_ = 0;
  Phase phase_ = Phase::kSetup;
  ByOwner by_owner_{};
  std::array<Peak, kPhaseNames.size()> peaks_{};
  std::vector<Entry> entries_;
  std::vector<Block> unused_;
};

}  // namespace fp8lab::eager
