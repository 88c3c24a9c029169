#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fsdp/mesh.h"
#include "fsdp/sharded_parameter.h"
#include "fsdp/state.h"

namespace fp8lab {

enum class Pass { kForward, kBackward };

/// The parameters of one wrapped module, which travel together: one all-gather before each of its passes, one
/// reduce-scatter after its backward. In steady state neither touches the heap.
class ParameterGroup {
 public:
  /// `states` outlives the group. `recomputes`: the module runs its forward again in backward.
  ParameterGroup(Runtime& runtime, std::string name, std::span<Parameter* const> parameters, Mesh& mesh,
                 const std::vector<ShardingState>& states, bool recomputes);

  const std::string& name() const { return name_; }
  bool reshards_after_forward() const { return own_state_->reshard_after_forward; }
  /// "layers[0].qkv.weight: 72 rows cut blocks ...": weights that stay in high precision.
  std::vector<std::string> warnings() const;

  ~ParameterGroup();
  ParameterGroup(const ParameterGroup&) = delete;
  ParameterGroup& operator=(const ParameterGroup&) = delete;

  /// Whose unsharded parameters each pass wants next, null for nobody's: they are gathered beside this module's work,
  /// as soon as its own are there.
  void gather_ahead(ParameterGroup* next_forward, ParameterGroup* next_backward) {
    next_forward_ = next_forward;
    next_backward_ = next_backward;
  }

  /// Makes the unsharded parameters; does nothing where they are there.
  void unshard(Runtime& runtime, Pass pass);
  void reshard();
  /// Leaves averaged gradients with the shards.
  void reduce_gradients(Runtime& runtime);

 private:
  Orientations usage(const Behaviors& behaviors, Pass pass) const;
  void begin_gather(Runtime& runtime, Pass pass, bool aside);
  void end_gather(Runtime& runtime);
  void begin_ahead(Runtime& runtime, Pass pass);

  std::string name_;
  Mesh& mesh_;
  const ShardingState* own_state_;   ///< of the module itself
  const ShardingState* hook_state_;  ///< as a gather hook finds it
  bool recomputes_;
  bool unsharded_ = false;
  ParameterGroup* next_forward_ = nullptr;
  ParameterGroup* next_backward_ = nullptr;
  std::optional<Pass> ahead_;  ///< the pass for which unsharded parameters are under way
  std::vector<std::unique_ptr<ShardedParameter>> parameters_;
  std::vector<GatherPart> gather_parts_;  // kept between passes
  std::vector<ScatterPart> scatter_parts_;
  std::vector<ReducePart> reduce_parts_;
};

}  // namespace fp8lab
