#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autograd/runtime.h"
#include "fsdp/gathered_arrays.h"
#include "fsdp/mesh.h"
#include "fsdp/row_split.h"
#include "fsdp/sharding_hooks.h"

namespace fp8lab {

/// A parameter of which this rank keeps rows. Modules use the unsharded parameter, which has storage only between a
/// gather and the next reshard. The optimizer uses the shard, a parameter of its own, through `unsharded.local`.
///
/// An eight-bit parameter is gathered as its data. Block scales are gathered with it, without their padding. A
/// per-tensor scale is not gathered, because it is the same on every rank (see Quantizer::amax_group). If the shards
/// would cut blocks, the format refuses them: the parameter then stays in high precision, with its initial values as
/// long as it has them, and refusal() returns the reason.
///
/// A shard with fewer rows than rank 0's has storage for rank 0's number of rows, zeros after its own. So has each
/// gathered array. Only a gather reads the padding, and only storage behind the unsharded parameter receives it.
/// Gradients are reduced likewise.
///
/// What ranks of an expert-parallel group have of the experts' weights is a parameter of its own, sharded over the
/// ranks with the same part.
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
  /// The ranks that hold its shards.
  ProcessGroup& shards() const { return shards_; }
  const std::string& refusal() const { return refusal_; }

  /// Allocates the unsharded parameter, with the orientations `usage` if it is in eight bits, and appends the parts to
  /// gather. Allocates memory only through the device.
  void begin_gather(Runtime& runtime, Orientations usage, std::vector<GatherPart>& parts);
  void end_gather(Runtime& runtime);
  /// After all parameters' end_gather(): makes the column-wise orientation that products of this pass read, if it is
  /// the transpose of the row-wise one.
  void make_columnwise(Runtime& runtime);
  /// Frees the unsharded parameter.
  void reshard();
  /// The same after a pass of the module.
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
  /// State of the gather that runs.
  struct Gather {
    Orientations usage{};
    Tensor values;  ///< sent by a parameter that is gathered in high precision
  };
  /// State of the reduction that runs.
  struct Reduction {
    Tensor copy;  ///< what is sent, if it is not the gradient itself
    Tensor sums;  ///< the same number of rows on every rank
  };

  // The steps of the constructor.
  /// Puts a parameter whose format refuses the shards in high precision.
  void decide_format(Runtime& runtime);
  /// Makes the shard: initial values if initialisation was deferred, otherwise rows of the unsharded parameter.
  void build_shard(Runtime& runtime);
  /// Decides which arrays are gathered, and pads the shard's.
  void lay_out_gathers(Runtime& runtime);

  void cut_from_unsharded(Runtime& runtime);
  void take_initial_values();
  /// Throws if the shard lacks an orientation that its quantizer makes.
  void check_orientations() const;
  /// A holder's memory: Pool::kGathered if all ranks have equally many rows.
  void place(Runtime& runtime, HolderId holder) const;
  /// Gives the gathered arrays storage for the number of rows that rank 0's have, if theirs is shorter.
  void pad_shard(Runtime& runtime);

  Parameter& unsharded_;
  ProcessGroup& shards_;
  Parameter shard_;
  RowSplit split_;
  int rank_;
  DType reduce_dtype_;
  std::unique_ptr<ShardingHooks> hooks_;
  std::string refusal_;
  GatherLayout layout_;
  std::vector<std::int64_t> grad_offsets_;  ///< elements
  Gather gather_;
  Reduction reduction_;
};

}  // namespace fp8lab
