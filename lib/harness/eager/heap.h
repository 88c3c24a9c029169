#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string_view>
#include <vector>

#include "memory/caching_allocator.h"

// The live memory of a program that allocates and frees blocks one after the other, and what an allocator reserves.
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
  kBuckets,
  kTemporaries,
  kLibraries
};
inline constexpr std::array<std::string_view, 12> kOwnerNames{"parameters",
                                                              "the optimizer's state",
                                                              "gradients",
                                                              "inputs",
                                                              "activations saved for backward",
                                                              "logits, log-probabilities and their gradients",
                                                              "unsharded parameters",
                                                              "FSDP2's all-gather buffers",
                                                              "FSDP2's reduce-scatter buffers",
                                                              "DistributedDataParallel's buckets",
                                                              "temporaries",
                                                              "workspace of cuBLAS"};
using ByOwner = std::array<Bytes, kOwnerNames.size()>;

/// The phases of a training step that have peaks of their own.
enum class Phase { kSetup, kForward, kBackward, kOptimizer };
inline constexpr std::array<std::string_view, 4> kPhaseNames{"setup", "forward", "backward", "optimizer"};

/// The CUDA stream on which a block is allocated. PyTorch's allocator reuses a block only on its own stream.
enum class Stream { kCompute, kGathers, kReductions };
inline constexpr std::size_t kStreams = 3;

/// A live block; 0 is none.
using Block = std::size_t;

/// Counts live bytes. With an allocator, PyTorch's for CUDA, a block is rounded up as memory_allocated() counts it, and
/// segments are reserved, for each stream its own. PyTorch's allocator has the sizes and the best fit of
/// memory/caching_allocator.h (c10/cuda/CUDACachingAllocator.cpp).
class Heap {
 public:
  explicit Heap(bool has_allocator);

  /// Returns 0 for no bytes, which free() ignores.
  Block allocate(Bytes bytes, Owner owner, Stream stream = Stream::kCompute);
  /// Frees the block, and sets it to 0.
  void free(Block& block);
  /// Frees what an operation of backward has read: the gradient that it got, and what its forward saved. Autograd
  /// releases saved tensors when the operation has returned. A recomputed one is freed before, when its last reader
  /// inside the operation ends.
  void free_read(Block& gradient, std::initializer_list<Block*> saved, bool recomputed);
  void enter(Phase phase);
  /// A product begins. With an allocator the first one of a thread allocates cuBLAS's workspace; autograd computes
  /// backward in a thread of its own.
  void begin_product() { begin_product(phase_ == Phase::kBackward); }
  void begin_product(bool in_backward);

  Bytes live() const { return live_; }
  /// Bytes of all segments; no segment is released. 0 without an allocator.
  Bytes reserved() const;
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
    CachingAllocator* allocator;  ///< null without one
    std::byte* address;
  };

  void consider_peak();

  std::vector<std::unique_ptr<CachingAllocator>> allocators_;  ///< by stream
  std::array<bool, 2> has_workspace_{};                        ///< the thread of forward, and the thread of backward
  Bytes live_ = 0;
  Phase phase_ = Phase::kSetup;
  ByOwner by_owner_{};
  std::array<Peak, kPhaseNames.size()> peaks_{};
  std::vector<Entry> entries_;
  std::vector<Block> unused_;
};

}  // namespace fp8lab::eager
