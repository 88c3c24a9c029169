#pragma once

#include "harness/predict/predict_sizes.h"

// What a rank keeps of a parameter, and what of it travels, for the closed forms of predict.h.
namespace fp8lab::closed_form {

/// The gather of a parameter, or of many: what travels, over all ranks, and what a rank has of it.
struct Gather {
  Bytes payload = 0;
  Bytes scales = 0;
  Bytes unsharded_parameters = 0;  ///< from then on, padding of scales included
  Bytes decoded = 0;               ///< meanwhile: the values of eight-bit shards that travel in high precision

  Gather& operator+=(const Gather& other);
  Schedule schedule() const { return allocate(unsharded_parameters + decoded) + release(decoded); }
};

/// One parameter under a scenario. Where nothing is sharded its shard is all of it and nothing is gathered.
struct ParameterNumbers {
  Bytes unsharded = 0;  ///< in the type that gradients have; its gradient's, too
  Bytes shard = 0;      ///< the same of this rank's rows
  std::int64_t shard_elems = 0;
  bool eight_bits = false;        ///< how the shard is kept
  bool computes_as_kept = false;  ///< products read it, or what was gathered of it; else they cast a copy
  Bytes kept = 0;                 ///< from step to step
  Bytes transpose = 0;            ///< that products need and no gather provides
  Gather forward, backward;       ///< the latter only where unsharded parameters go after forward
  Bytes state_before = 0;         ///< scales and histories that its module makes before it

  Bytes average = 0;   ///< of an average of it, where one is kept
  bool stops = false;  ///< training cannot go on with it: there are no figures

  /// Until its values are there. Shards may have a stage before that, of all parameters, in which unsharded parameters
  /// are made.
  Schedule initialized, made_unsharded;
};

/// A vector of a norm, or a bias.
ParameterNumbers vector_parameter(const Scenario& scenario, std::int64_t elems);
/// The weight [out, in] of a product.
ParameterNumbers weight_parameter(const Scenario& scenario, std::int64_t out, std::int64_t in);

}  // namespace fp8lab::closed_form
