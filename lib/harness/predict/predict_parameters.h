#pragma once

#include "harness/predict/predict_sizes.h"

// The bytes that a rank keeps and gathers of a parameter, for the closed forms of predict.h.
namespace fp8lab::closed_form {

/// The all-gather of one parameter or of several. `payload` and `scales` are the bytes that travel, over all ranks.
struct Gather {
  Bytes payload = 0;
  Bytes scales = 0;
  Bytes own = 0;                   ///< the part of both that this rank has
  Bytes unsharded_parameters = 0;  ///< allocated by the gather; includes padding of scales
  Bytes decoded = 0;               ///< during the gather: eight-bit shards decoded, or reordered, to be gathered
  Schedule transposed{};           ///< after the gather: transposes that products of the pass read

  Gather& operator+=(const Gather& other);
  Bytes of_others() const { return payload + scales - own; }
  Schedule begin() const { return allocate(unsharded_parameters + decoded, Owner::kGathered); }
  /// The rest of the schedule, from the end of the collective on. `dropped`: what an earlier pass made and left.
  Schedule finish(Bytes dropped = 0) const {
    return release(decoded + dropped, Owner::kGathered) + owned_by(Owner::kGathered, transposed);
  }
};

/// One parameter of a cell. If nothing is sharded, the shard is the full parameter and nothing is gathered.
struct ParameterNumbers {
  Bytes unsharded = 0;  ///< the full parameter in the nominal type; also the bytes of its gradient
  Bytes padded = 0;     ///< the shards of all ranks in the nominal type, each padded to the rows of rank 0's
  Bytes shard = 0;      ///< the rows of this rank in the nominal type
  std::int64_t shard_elems = 0;
  bool is_vector = false;
  bool frozen = false;            ///< it has no gradient and no state of an optimizer
  bool to_be_fp8 = false;         ///< the cell keeps FP8 weights, and this is one, unless sharding refuses it
  bool eight_bits = false;        ///< the shard is stored in eight bits
  bool of_part = false;           ///< ShardingNumbers::of_part
  Bytes host_made = 0;            ///< kept in host memory when the parameter is made, before or without sharding
  Bytes host_kept = 0;            ///< kept of the shard
  bool computes_as_kept = false;  ///< products read the stored or gathered data itself; else they cast a copy
  Bytes kept = 0;                 ///< stored from step to step
  Bytes transpose = 0;            ///< the transpose that products need and that is not gathered
  bool transposes_early = false;  ///< the gather of forward makes `transpose`, and backward finds it
  Gather forward, backward;       ///< backward is empty unless unsharded parameters are freed after forward
  Bytes state_before = 0;         ///< scales and histories that the module makes before this parameter
  Bytes biases_before = 0;        ///< biases of a router's choice that the module makes before this parameter

  Bytes average = 0;   ///< the exponential average of the parameter, if the cell keeps one
  bool stops = false;  ///< training stops with an error because of this parameter: there are no figures

  /// `initialized`: until the stored values are there. `made_unsharded`: an earlier stage, over all parameters, that
  /// makes unsharded parameters; empty if shards are made at once.
  Schedule initialized, made_unsharded;
};

/// Adds a parameter of a group to the group's sums.
void add_gradient(const ParameterNumbers& parameter, GradientBytes& sums);

/// A bias, or a parameter vector of a norm.
ParameterNumbers vector_parameter(const CellNumbers& cell, std::int64_t elems);
/// A matrix [rows, cols] that is never in eight bits: an embedding table, or the head of a language model.
ParameterNumbers table_parameter(const CellNumbers& cell, std::int64_t rows, std::int64_t cols);
/// The weight [out, in] of a matrix product.
ParameterNumbers weight_parameter(const CellNumbers& cell, std::int64_t out, std::int64_t in);

}  // namespace fp8lab::closed_form
