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

struct GroupOptions {
  bool recomputes = false;  ///< the module runs its forward again in backward, which then needs both orientations
  std::optional<DType> reduce_dtype{};  ///< see ShardingOptions
};

/// The parameters of one wrapped module, which are communicated together: one all-gather before each of its passes, one
/// reduce-scatter after its backward, and with expert parallelism one more of each for the weights of experts. In
/// steady state none of them allocates on the heap.
class ParameterGroup {
 public:
  ParameterGroup(Runtime& runtime, std::string name, std::span<Parameter* const> parameters, Mesh& mesh,
                 const std::vector<ShardingState>& states, const GroupOptions& options);

  const std::string& name() const { return name_; }
  bool reshards_after_forward() const { return reshards_after_forward_; }
  /// Weights that stay in high precision, and why: "layers[0].qkv.weight: 72 rows cut blocks ...".
  std::vector<std::string> warnings() const;

  ~ParameterGroup();
  ParameterGroup(const ParameterGroup&) = delete;
  ParameterGroup& operator=(const ParameterGroup&) = delete;

  /// Sets the groups whose unsharded parameters each pass needs next; null for none. They are gathered during this
  /// module's work, as soon as its own parameters are gathered.
  void gather_ahead(ParameterGroup* next_forward, ParameterGroup* next_backward) {
    next_forward_ = next_forward;
    next_backward_ = next_backward;
  }

  /// Gathers the unsharded parameters, unless they are there.
  void unshard(Runtime& runtime, Pass pass);
  /// Frees the unsharded parameters.
  void reshard();
  /// As FSDP2 reshards after a pass: frees what the gather allocated, and no copy that was made of it.
  void free_gathered();
  /// Reduces the gradients to the shards, averaged over all ranks. Frozen parameters have none.
  void reduce_gradients(Runtime& runtime);

 private:
  /// The parameters that the same ranks shard, in the collective that runs.
  struct Communication {
    ProcessGroup* shards;
    std::vector<GatherPart> gathers;  // these vectors keep their memory between passes
    std::vector<ScatterPart> scatters;
  };
  Communication& communication_of(const ShardedParameter& parameter);

  Orientations usage(Pass pass) const;
  void begin_gather(Runtime& runtime, Pass pass, bool async);
  void end_gather(Runtime& runtime);
  void begin_ahead(Runtime& runtime, Pass pass);

  std::string name_;
  Mesh& mesh_;
  bool reshards_after_forward_;
  bool gathers_by_pass_;  ///< see ShardingHooks
  bool recomputes_;
  bool unsharded_ = false;
  ParameterGroup* next_forward_ = nullptr;
  ParameterGroup* next_backward_ = nullptr;
  std::optional<Pass> ahead_;  ///< pass for which a gather ahead is running
  std::vector<std::unique_ptr<ShardedParameter>> parameters_;
  std::vector<ShardedParameter*> trained_;     ///< elements of `parameters_` that are not frozen
  std::vector<Communication> communications_;  ///< the ranks that shard, then the ranks that shard experts
  std::vector<ReducePart> reduce_parts_;
};

}  // namespace fp8lab
