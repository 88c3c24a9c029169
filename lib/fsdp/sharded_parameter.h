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

/// A parameter of which this rank keeps rows. Modules see the unsharded parameter, which has storage between a gather
/// and the next reshard only; the optimizer sees the shard, a parameter of its own, through `unsharded.local`.
///
/// An eight-bit parameter travels as its data. Scales of blocks go with them, without their padding; the scale of a
/// full tensor stays at home, being the same on every rank (see Quantizer::amax_group). Formats that refuse a shard
/// (blocks would be cut) leave the parameter in high precision, with its initial values as long as it holds them;
/// refusal() says why.
///
/// Where all ranks have equally many rows, shard and full lie in Pool::kGathered, others in memory like any other.
class ShardedParameter {
 public:
  /// Takes `unsharded` over: initialises the shard if that was deferred, otherwise cuts it out of the unsharded
  /// parameter, which then goes.
  ShardedParameter(Runtime& runtime, Parameter& unsharded, Mesh& mesh);
  ShardedParameter(const ShardedParameter&) = delete;
  ShardedParameter& operator=(const ShardedParameter&) = delete;

  Parameter& unsharded() { return unsharded_; }
  Parameter& shard() { return shard_; }
  const std::string& refusal() const { return refusal_; }

  /// Makes room for the unsharded parameter, `usage` being the orientations wanted of an eight-bit one, and adds what
  /// has to be gathered. Allocates through the device alone.
  void begin_gather(Runtime& runtime, Orientations usage, std::vector<GatherPart>& parts);
  void end_gather(Runtime& runtime);
  /// The entire goes.
  void reshard();

  /// Makes room for the shard's gradient and adds what has to be reduced.
  void begin_reduce(Runtime& runtime, std::vector<ScatterPart>& parts);
  /// Takes the sums over, averaged over `ranks`; the unsharded parameter's gradient goes.
  void end_reduce(Runtime& runtime, int ranks);
  /// The reduced shard, for a further reduction over replicas.
  ReducePart reduced() const;

 private:
  /// What a rank says of the tensor that its bytes will be part of.
  struct Metadata {
    std::unique_ptr<Quantizer> quantizer;
    Orientations usage;
  };

  void make_shard(Runtime& runtime);
  void cut_from_unsharded(Runtime& runtime);
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

  GatheredArray values_;                           ///< of a parameter that travels in high precision
  std::optional<GatheredOrientation> rowwise_;     ///< of one that travels in eight bits
  std::optional<GatheredOrientation> columnwise_;  ///< where it is no transpose of the other
  std::vector<std::int64_t> grad_offsets_;         ///< elements
  Tensor dequantized_;                             ///< alive during a gather on the generic path
  Tensor reduced_;
  Metadata metadata_;
};

}  // namespace fp8lab
