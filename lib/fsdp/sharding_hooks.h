#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/runtime.h"
#include "fsdp/gathered_arrays.h"
#include "fsdp/state.h"

namespace fp8lab {

/// Points at which a reverted fix acts on a sharded parameter; the defaults are the fixed behaviour. Every
/// ShardedParameter has hooks of its own. `unsharded` is its unsharded parameter, whose shard is `unsharded.local` once
/// it is made.
class ShardingHooks {
 public:
  virtual ~ShardingHooks() = default;

  /// True if a gather provides only the orientation that its pass reads, because the module's next pass gathers again.
  virtual bool gathers_by_pass(const std::vector<ShardingState>& states, std::string_view module) const {
    return state_of(states, module).reshard_after_forward;
  }

  /// Why a parameter in eight bits is sharded in high precision; empty if it is not.
  virtual std::string refusal(Parameter& unsharded, const RowSplit& split) const;
  /// The ranks whose largest amax scales a shard's casts.
  virtual ProcessGroup* amax_group(ProcessGroup& shards) const { return &shards; }
  /// Once the shard is made; `layout` is how it will be gathered.
  virtual void after_shard(Runtime& /*runtime*/, const Parameter& /*unsharded*/, const RowSplit& /*split*/,
                           GatherLayout& /*layout*/) {}

  /// The values that a gather of `layout.values` sends, in storage of `bytes` bytes at least.
  virtual Tensor values_to_send(Runtime& /*runtime*/, const Parameter& shard, std::int64_t /*bytes*/) {
    return shard.value;
  }
  /// Once the parts of a parameter in eight bits are listed.
  virtual void begin_gather(Runtime& /*runtime*/, const Parameter& /*shard*/, GatherParts& /*parts*/) {}
  /// Once a parameter in eight bits is gathered; `usage` are the orientations that the pass reads.
  virtual void end_gather(Parameter& /*unsharded*/, Orientations& /*usage*/) {}
  /// Makes the column-wise orientation that products of the pass read as the transpose of the row-wise one.
  virtual void make_columnwise(Runtime& runtime, Parameter& unsharded) { unsharded.make_columnwise(runtime.device); }
  /// Before a module's unsharded parameters are freed after one of its passes.
  virtual void before_free(Parameter& /*unsharded*/) {}
  /// Once the unsharded parameter is freed, after a pass or otherwise.
  virtual void after_reshard(Parameter& /*unsharded*/) {}
};

std::unique_ptr<ShardingHooks> make_sharding_hooks(const Behaviors& behaviors);

/// True if the parameter has no values yet, so that its shard gets the initial ones.
inline bool is_deferred(const Parameter& parameter) { return !parameter.value && parameter.quantized.empty(); }
/// Copies are counted, because copying quantizers before every forward is one of the measured host costs.
std::unique_ptr<Quantizer> copy_quantizer(Runtime& runtime, const Quantizer& quantizer);

}  // namespace fp8lab
