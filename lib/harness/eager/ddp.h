#pragma once

#include <span>
#include <vector>

#include "harness/eager/heap.h"

// The buckets in which DistributedDataParallel reduces gradients, as torch/nn/parallel/distributed.py and reducer.cpp
// of PyTorch 2.15 have them by default. They live next to the gradients (gradient_as_bucket_view is false).
namespace fp8lab::eager {

class Buckets {
 public:
  /// `gradients`: bytes of each parameter's gradient, in the order in which backward makes them.
  Buckets(Heap& heap, std::vector<Bytes> gradients) : heap_(heap), gradients_(std::move(gradients)) {}

  /// Begins the forward of a micro-batch. The constructor of DistributedDataParallel makes one bucket for all
  /// gradients. The first forward after the first step makes others in its place: at least 1 MiB, then at least 25 MiB
  /// each.
  void before_forward(bool is_after_first_step);

 private:
  void make(std::span<const Bytes> limits);

  Heap& heap_;
  std::vector<Bytes> gradients_;
  std::vector<Block> blocks_;
  bool is_rebuilt_ = false;
};

}  // namespace fp8lab::eager
