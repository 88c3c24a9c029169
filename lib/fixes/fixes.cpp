#include "fixes/fixes.h"

#include <array>

#include "core/row_by_name.h"

namespace fp8lab {
namespace {

constexpr std::string_view kAttentionReports[] = {"TransformerEngine#1935", "TransformerEngine#2772"};
constexpr std::string_view kFuserReports[] = {"TransformerEngine#2750"};
constexpr std::string_view kModuleReports[] = {"TransformerEngine#1500"};
constexpr std::string_view kShardedEightBits[] = {"TransformerEngine#2245"};
constexpr std::string_view kCopyReports[] = {"TransformerEngine#2245", "TransformerEngine#2369"};
constexpr std::string_view kShardedAdam[] = {"TransformerEngine#2370", "TransformerEngine#2698"};
constexpr std::string_view kGatherOverhead[] = {"TransformerEngine#2370"};

constexpr std::array kFixes = {
    Fix{.name = "release_attention_tensors",
        .upstream = kAttentionReports,
        .symptom = "FP8 fused attention keeps Q, K and V of every layer alive after backward, until the loss "
                   "is freed",
        .decision = "the shells of attention's saved storage move out of the context when backward restores them",
        .revert = [](Behaviors& b) { b.attention_shells = ShellPolicy::kRestoreAndKeep; }},
    Fix{.name = "release_fuser_tensors",
        .upstream = kFuserReports,
        .symptom = "the op fuser keeps the quantized weight copies of every fused layer alive after backward",
        .decision = "the shells of a fused chain's saved storage move out of the context when backward restores them",
        .revert = [](Behaviors& b) { b.fuser_shells = ShellPolicy::kRestoreAndKeep; }},
    Fix{.name = "release_module_tensors",
        .upstream = kModuleReports,
        .symptom = "Linear, LayerNormLinear and LayerNormMLP keep their quantized weight copies alive after backward",
        .decision = "the shells of a module's saved storage move out of the context when backward restores them",
        .revert = [](Behaviors& b) { b.module_shells = ShellPolicy::kRestoreAndKeep; }},
    Fix{.name = "empty_module_shells",
        .upstream = kModuleReports,
        .symptom = "quantized weight copies stay on the device from forward on, so recomputation and offload "
                   "free no memory",
        .decision = "a shell gives its buffers up when they are saved for backward",
        .revert = [](Behaviors& b) { b.module_shells = ShellPolicy::kKeepFromForward; }},
    Fix{.name = "split_both_orientations",
        .upstream = kShardedEightBits,
        .symptom = "sharding a quantized tensor fails if it has only a column-wise orientation, and drops "
                   "that orientation otherwise",
        .decision = "a split cuts the column-wise orientation as well as the row-wise one",
        .revert = [](Behaviors& b) { b.split_knows_columnwise = false; }},
    Fix{.name = "slice_transpose_in_make_like",
        .upstream = kShardedEightBits,
        .symptom = "every shard keeps the transpose of the entire weight alive",
        .decision = "a tensor made like another does not keep the other's column-wise orientation",
        .revert = [](Behaviors& b) { b.slice_transpose_in_make_like = false; }},
    Fix{.name = "own_scale_in_new_zeros",
        .upstream = kShardedEightBits,
        .symptom = "writing to zeros that were made like a weight rescales the weight",
        .decision = "zeros like a per-tensor matrix have a copy of its scale",
        .revert = [](Behaviors& b) { b.own_scale_in_new_zeros = false; }},
    Fix{.name = "copy_bytes_between_shards",
        .upstream = kCopyReports,
        .symptom = "copying MXFP8 weights changes their data and scales",
        .decision = "a copy moves bytes if the source has every orientation that the destination has",
        .revert = [](Behaviors& b) { b.copy_bytes_between_shards = false; }},
    Fix{.name = "view_aligned_slices",
        .upstream = kShardedEightBits,
        .symptom = "a slice of an eight-bit weight is in high precision even if it covers all rows, and so "
                   "are its gathers",
        .decision = "a slice is a view if its scales are contiguous in the weight's scales",
        .revert = [](Behaviors& b) { b.view_aligned_slices = false; }},
    Fix{.name = "keep_transpose_in_views",
        .upstream = kShardedEightBits,
        .symptom = "a weight viewed under another shape loses its transpose",
        .decision = "a view of the same rows and columns keeps the column-wise orientation",
        .revert = [](Behaviors& b) { b.keep_transpose_in_views = false; }},
    Fix{.name = "gather_eight_bits",
        .upstream = kShardedEightBits,
        .symptom = "FP8 weights are gathered in high precision and quantized again by every layer: more traffic and "
                   "memory than BF16",
        .decision = "shards travel as data and scales, and modules multiply the gathered data",
        .revert = [](Behaviors& b) { b.gather_eight_bits = false; }},
    Fix{.name = "share_amax_over_shards",
        .upstream = kShardedEightBits,
        .symptom =
            "under current scaling ranks silently hold different weights: each reads all shards by its own scale",
        .decision = "the amax of a shard is the largest over the ranks that share its tensor",
        .revert = [](Behaviors& b) { b.share_amax_over_shards = false; }},
    Fix{.name = "choose_usage_by_pass",
        .upstream = kShardedEightBits,
        .symptom = "MXFP8 gathers provide both orientations in forward and again in backward",
        .decision = "a gather provides the orientation that its pass reads; both only if the next pass does "
                    "not gather again",
        .revert = [](Behaviors& b) { b.choose_usage_by_pass = false; }},
    Fix{.name = "validate_usage_by_pass",
        .upstream = kShardedEightBits,
        .symptom = "forward asks for column-wise weights: a transpose of every layer on hopper, an error "
                   "under MXFP8",
        .decision = "forward asks for the row-wise orientation alone, backward for the column-wise one",
        .revert = [](Behaviors& b) { b.validate_usage_by_pass = false; }},
    Fix{.name = "keep_own_quantizer",
        .upstream = kShardedEightBits,
        .symptom = "after the first forward a weight is quantized by the module's quantizer, which reduces "
                   "no amax: ranks drift apart",
        .decision = "a weight in eight bits keeps the quantizer that it was made with",
        .revert = [](Behaviors& b) { b.keep_own_quantizer = false; }},
    Fix{.name = "initialize_local_shard",
        .upstream = kShardedEightBits,
        .symptom = "deferred initialisation makes every unsharded parameter on every rank before it is cut",
        .decision = "initialisation goes to the local shard, not to the wrapper around it",
        .revert = [](Behaviors& b) { b.initialize_local_shard = false; }},
    Fix{.name = "strip_scale_padding",
        .upstream = kShardedEightBits,
        .symptom = "the scales of MXFP8 shards travel with their padding, and land at rows of other ranks",
        .decision = "scales travel without the padding of dim 0, and are padded again after the gather",
        .revert = [](Behaviors& b) { b.strip_scale_padding = false; }},
    Fix{.name = "nearest_sharding_state",
        .upstream = kShardedEightBits,
        .symptom = "gather hooks read from the root whether a layer reshards, and gather both orientations "
                   "twice",
        .decision = "a gather hook reads the state of the nearest wrapped module around its parameter",
        .revert = [](Behaviors& b) { b.nearest_sharding_state = false; }},
    Fix{.name = "reuse_quantizer_at_gather",
        .upstream = kGatherOverhead,
        .symptom = "every gather copies the quantizer of every FP8 weight before the layer's first kernel, and the "
                   "first one twice",
        .decision = "a gather passes two flags of its tensor; the quantizer is copied once, at the first "
                    "gather",
        .revert = [](Behaviors& b) { b.reuse_quantizer_at_gather = false; }},
    Fix{.name = "write_back_list_updates",
        .upstream = kShardedEightBits,
        .symptom = "under a framework's multi-tensor optimizer FP8 weights never change, and no error shows "
                   "it",
        .decision = "the result of a list operation on a quantized tensor is cast back into it",
        .revert = [](Behaviors& b) { b.write_back_list_updates = false; }},
    Fix{.name = "unwrap_shards_in_adam",
        .upstream = kShardedAdam,
        .symptom = "fused Adam crashes on sharded FP8 weights",
        .decision = "Adam examines the local shard, not the wrapper around it",
        .revert = [](Behaviors& b) { b.unwrap_shards_in_adam = false; }},
};

}  // namespace

std::span<const Fix> fixes() { return kFixes; }

const Fix& fix(std::string_view name) { return row_by_name(kFixes, "fix", name); }

Behaviors behaviors_without(std::span<const std::string_view> names) {
  Behaviors behaviors;
  for (std::string_view name : names) fix(name).revert(behaviors);
  return behaviors;
}

}  // namespace fp8lab
