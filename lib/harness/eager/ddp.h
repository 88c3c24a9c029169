#pragma once

#include <span>
#include <vector>

#include "harness/eager/heap.h"

// The buckets in which DistributedDataParallel reduces gradients, as torch/nn/parallel/distributed.py and reducer.cpp
// of PyTorch 2.15 have them by default. They live next to the gradients (gradient_as_bucket_view is false).
namespace fp8lab::eager {

class Buckets {
 public:
  /// `gradients`: bytes of each parameter's gradient, in the order in which backward makes them. `over_nccl`: NCCL's
  /// process group reduces them.
  Buckets(Heap& heap, std::vector<Bytes> gradients, bool over_nccl)
      : heap_(heap), gradients_(std::move(gradients)), over_nccl_(over_nccl) {}

  /// Begins the forward of a micro-batch. The constructor of DistributedDataParallel makes one bucket for all
  /// gradients. The first forward after the first step makes others in its place: at least 1 MiB, then at least 25 MiB
  /// each. NCCL's process group holds what it has reduced until a later collective finds that its watchdog, a thread
  /// that polls every 100 ms, has seen the end (ProcessGroupNCCL::workEnqueue). If the GPU is behind, this is the first
  /// reduction of the second step, and until then both sets of buckets are there.
  void before_forward(bool is_after_first_step);
  /// A bucket's gradients are there, so its reduction begins.
  void reduce() { heap_.free(held_by_nccl_); }
  /// True if the first reduction follows the gradient that backward makes first.
  bool is_first_gradient_reduced_alone() const { return gradients_.front() >= kFirstBucket; }

 private:
  static constexpr Bytes kFirstBucket = Bytes{1} << 20;

  void make(std::span<const Bytes> limits);

  Heap& heap_;
  std::vector<Bytes> gradients_;
  bool over_nccl_;
  Block held_by_nccl_ = 0;
  std::vector<Block> blocks_;
  bool is_rebuilt_ = false;
};

}  // namespace fp8lab::eager
