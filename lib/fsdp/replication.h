#pragma once

#include <cstdint>
#include <vector>

#include "comm/process_group.h"
#include "nn/model.h"

namespace fp8lab {

/// Sizes from which a bucket takes no further gradient, as in DistributedDataParallel (bucket_cap_mb, and
/// _DEFAULT_FIRST_BUCKET_BYTES).
struct BucketSizes {
  std::int64_t first_bytes = std::int64_t{1} << 20;
  std::int64_t bytes = std::int64_t{25} << 20;
};

/// A model of which every rank has all parameters, as in PyTorch's DistributedDataParallel without
/// gradient_as_bucket_view: gradients are copied into buckets, each of which is one all-reduce, and copied back.
/// Buckets live as long as this object, next to the gradients. They are filled in the order in which backward ends: the
/// last layer's parameters first, the root's last.
///
/// Two things differ from PyTorch. It has one bucket for all gradients until its first backward has ended, and it
/// begins a reduction while backward computes.
class Replication {
 public:
  /// `model` and `ranks` must outlive this object.
  Replication(Runtime& runtime, Model& model, ProcessGroup& ranks, const BucketSizes& sizes = {});
  Replication(const Replication&) = delete;
  Replication& operator=(const Replication&) = delete;

  /// Averages all gradients over the ranks, which call it after the last backward of a step. Gradients are divided by
  /// the number of ranks before they are added up, as PyTorch does. Throws Error for a parameter without a gradient.
  void reduce_gradients(Runtime& runtime);

 private:
  struct Part {
    Parameter* parameter;
    std::int64_t begin;  ///< its first element in the bucket
  };
  struct Bucket {
    std::vector<Part> parts;
    Tensor values;  ///< [1, elements]
  };

  void reduce(Runtime& runtime, Bucket& bucket, std::size_t index);

  ProcessGroup& ranks_;
  std::vector<Bucket> buckets_;
};

}  // namespace fp8lab
