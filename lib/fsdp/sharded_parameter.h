#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autograd/runtime.h"
#include "fsdp/gathered_arrays.h"
#include "fsdp/mesh.h"
#include "fsdp/row_split.h"

namespace fp8lab {

/// A parameter of which this rank keeps rows. Modules use the unsharded parameter, which has storage only between a
/// gather and the next reshard. The optimizer uses the shard, a parameter of its own, through `unsharded.local`.
///
/// An eight-bit parameter is gathered as its data. Block scales are gathered with it, without their padding. A
/// per-tensor scale is not gathered, because it is the same on every rank (see Quantizer::amax_group). If the shards
/// would cut blocks, the format refuses them: the parameter then stays in high precision, with its initial values as
/// long as it has them, and refusal() says why.
///
/// A shard with fewer rows than rank 0's has storage for as many, zeros after its own, and so has each of its arrays
/// that is gathered. Only a gather reads the padding, and only storage behind the unsharded parameter receives it.
/// Gradients are reduced likewise.
///
/// If all ranks have equally many rows, the shard and the unsharded parameter lie in Pool::kGathered, otherwise in
/// ordinary memory.
class ShardedParameter {
 public:
  /// Takes `unsharded` over: initialises the shard if initialisation was deferred, otherwise cuts it out of the
  /// unsharded parameter, whose storage is then freed. `reduce_dtype`: the type in which gradients are reduced, the
  /// parameter's if left out.
  ShardedParameter(Runtime& runtime, Parameter& unsharded, Mesh& mesh, std::optional<DType> reduce_dtype = {});
  ShardedParameter(const ShardedParameter&) = delete;
  ShardedParameter& operator=(const ShardedParameter&) = delete;

  Parameter& unsharded() { return unsharded_; }
  Parameter& shard() { return shard_; }
  const std::string& refusal() const { return refusal_; }

  /// Allocates the unsharded parameter, with the orientations `usage` if it is in eight bits, and appends the parts to
  /// gather. Allocates memory only through the device.
  void begin_gather(Runtime& runtime, Orientations usage, std::vector<GatherPart>& parts);
  void end_gather(Runtime& runtime);
  /// After all parameters' end_gather(): makes the column-wise orientation that products of this pass read, if it is
  /// the transpose of the row-wise one or was gathered in another order.
  void make_columnwise(Runtime& runtime);
  /// Frees the unsharded parameter.
  void reshard();
  /// Frees what the gather allocated: the unsharded parameter, except for copies that were made of it. FSDP2 reshards
  /// so: it knows the outputs of the all-gather alone.
  void free_gathered();

  /// Copies the gradient, in the type of the reduction if that is another one, and with zeros for the rows that ranks
  /// lack.
  void copy_gradient(Runtime& runtime);
  /// Frees the gradient if copy_gradient() made a copy.
  void free_copied_gradient();
  /// Allocates the sums of the shard's gradient and appends the part to reduce.
  void begin_reduce(Runtime& runtime, std::vector<ScatterPart>& parts);
  /// Accumulates the sums, averaged over `ranks` and then rounded to the type of the parameter, into the shard's
  /// gradient; frees the unsharded gradient.
  void end_reduce(Runtime& runtime, int ranks);
  /// The reduced shard, for a further reduction over replicas.
  ReducePart reduced() const;

 private:
  /// What a gather hook passes on about the tensor it gathers.
  struct Metadata {
    std::unique_ptr<Quantizer> quantizer;
    Orientations usage;
  };

  void make_shard(Runtime& runtime);
  void cut_from_unsharded(Runtime& runtime);
  /// Gives the arrays that are gathered storage for as many rows as rank 0's have, if theirs is shorter.
  void pad_shard(Runtime& runtime);
  /// Makes what FSDP2 keeps beside a shard without reading it, if that has memory of its own.
  void flatten_shard(Runtime& runtime);
  /// Throws if the shard lacks an orientation that its quantizer makes.
  void check_orientations() const;
  Metadata describe(Runtime& runtime, Orientations usage) const;
  void rebuild(Runtime& runtime, Metadata metadata);
  void add_array(Runtime& runtime, const GatheredArray& array, const Tensor& from, Tensor& to,
                 std::vector<GatherPart>& parts) const;
  void add_orientation(Runtime& runtime, const GatheredOrientation& orientation, const QuantizedOrientation& from,
                       QuantizedOrientation& to, std::vector<GatherPart>& parts) const;

  Parameter& unsharded_;
  Parameter shard_;
  RowSplit split_;
  int rank_ = 0;
  std::string refusal_;

  GatheredArray values_;                             ///< of a parameter that is gathered in high precision
  std::optional<GatheredOrientation> rowwise_;       ///< of a parameter that is gathered in eight bits
  std::optional<GatheredOrientation> columnwise_;    ///< if it is not the transpose of the row-wise orientation
  std::optional<GatheredOrientation> untransposed_;  ///< column-wise blocks, gathered untransposed
  std::vector<std::int64_t> grad_offsets_;           ///< elements
  Tensor flattened_;                                 ///< lives as long as the shard
  Tensor dequantized_;                               ///< lives during a gather on the generic path
  QuantizedOrientation sent_untransposed_;           ///< lives during a gather of `untransposed_`
  QuantizedOrientation gathered_untransposed_;       ///< lives as long as the unsharded row-wise orientation
  DType reduce_dtype_;
  Tensor gradient_copy_;  ///< lives during a reduction of what is not the gradient itself
  Tensor reduced_;        ///< as many rows on every rank
  Metadata metadata_;
};

}  // namespace fp8lab
