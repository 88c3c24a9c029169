#pragma once

#include <string_view>
#include <vector>

#include "harness/predict/predict_parameters.h"

namespace fp8lab::closed_form {

/// What one node of the graph costs. Its input and its output are matrices that neighbours share: whether it needs
/// them in backward is stated here, their bytes are counted once, by the layer.
struct Node {
  Bytes out = 0;  ///< its result
  bool keeps_input = false;
  bool keeps_output = false;
  Bytes saved = 0;  ///< all else that lives from its forward to its backward

  std::vector<ParameterNumbers> parameters;  ///< in the order of construction
  Bytes recipe_state = 0;                    ///< scales and histories of what has no parameters, made first
  std::int64_t forward_amaxes = 0;           ///< that histories record in forward, one per tensor
  std::int64_t backward_amaxes = 0;
  Bytes stash = 0;       ///< scales that a checkpointed forward sets aside
  Bytes kept_stash = 0;  ///< of these, what a weight's quantizer holds on to until the next step's forward
  Bytes retained = 0;    ///< of `saved`, what its shells hold after backward
  Bytes unemptied = 0;   ///< the same under shells that never let go: alive even where nothing is to be saved

  /// From its input alive to `out` and `saved` alive; where layers are checkpointed, the second time.
  Schedule forward;
  /// The same in a checkpointed region's first forward, which leaves `out`, `stash` and `unemptied` alone.
  Schedule recorded;
  /// The same in later steps.
  Schedule recorded_again;
  /// From the gradient of `out` alive to the gradient of the input and of the parameters alive; `saved` lives on.
  Schedule backward;
  /// The same at the end of a branch whose residual needs the gradient of `out` too, so that it lives on.
  Schedule backward_beside_residual;
};

/// The nodes of the layer called `name`, in order. A transformer layer has two branches, every other layer one; each
/// branch of a transformer layer is added to its input.
struct Layer {
  std::vector<std::vector<Node>> branches;
  bool residual = false;
};
Layer make_layer(const Scenario& scenario, std::string_view name);

}  // namespace fp8lab::closed_form
