#pragma once

#include <string_view>
#include <vector>

#include "harness/predict/predict_parameters.h"

namespace fp8lab::closed_form {

/// The collectives of one kind in a pass, and the bytes that all ranks send in them.
struct Exchanges {
  std::int64_t calls = 0;
  Bytes bytes = 0;
  Bytes scales = 0;  ///< bytes among them that are counted apart

  Exchanges& operator+=(const Exchanges& other) {
    calls += other.calls;
    bytes += other.bytes;
    scales += other.scales;
    return *this;
  }
};

/// The bytes and schedules of one node of the autograd graph. Neighbouring nodes share their input and output matrices:
/// the node records whether backward needs them, and the layer counts their bytes once.
struct Node {
  Bytes out = 0;              ///< the output matrix
  bool keeps_input = false;   ///< backward reads the input
  bool keeps_output = false;  ///< backward reads the output
  Bytes kept = 0;             ///< what a recomputed layer keeps of its first forward, `out` included if it is kept
  bool keeps_result = false;  ///< `out` is part of `kept`
  Bytes saved = 0;            ///< everything else that lives from the node's forward to its backward

  std::vector<ParameterNumbers> parameters;  ///< in the order of construction
  Bytes recipe_state = 0;           ///< scales and histories of operands that are not parameters, made before those
  Bytes router_biases = 0;          ///< made before the parameters and kept as they are; counts are as large
  Bytes resized = 0;                ///< by which histories grow in the first forward
  std::int64_t forward_amaxes = 0;  ///< amaxes that histories record in forward, one per tensor
  std::int64_t backward_amaxes = 0;
  Exchanges forward_ring, backward_ring;
  Exchanges forward_to_experts, backward_to_experts;  ///< all-to-alls: to the ranks that have the experts, and back
  Exchanges forward_counts;                           ///< all-gathers of the tokens of each expert
  Bytes stash = 0;      ///< scales that a checkpointed forward stashes for its recomputation
  Bytes cached = 0;     ///< copies of weights that live from the first forward on
  Bytes retained = 0;   ///< the part of `saved` that shells hold after backward
  Bytes unemptied = 0;  ///< the part of `saved` in shells that are never emptied: alive even if nothing is saved

  /// From the input alive to `out` and `saved` alive. With activation checkpointing this is the recomputation, which
  /// finds `kept`.
  Schedule forward;
  /// The first forward of a checkpointed region in the first step: leaves only `out`, `kept`, `stash` and `unemptied`.
  Schedule recorded;
  /// The first forward of a checkpointed region in later steps.
  Schedule recorded_again;
  /// From the gradient of `out` alive to the gradients of the input and of the parameters alive. `saved` stays alive.
  Schedule backward;
  /// The same at the end of a branch whose residual also needs the gradient of `out`, which therefore stays alive.
  Schedule backward_beside_residual;
};

/// The nodes of a layer, in order. A transformer layer has two branches, and each is added to its input (a residual);
/// every other layer has one branch.
struct Layer {
  std::vector<std::vector<Node>> branches;
  bool residual = false;
};
/// The layer called `name` in the layer table.
Layer make_layer(const CellNumbers& cell, std::string_view name);

}  // namespace fp8lab::closed_form
