#include "fixes/fixes.h"

#include <array>

#include "core/row_by_name.h"

namespace fp8lab {
namespace {

constexpr std::array kFixes = {
    // #2772 (2.15) fixed the restore. By the code, FusedAttention has the leak of 2.0 to 2.7: it retains what it cast
    // itself under delayed scaling. #2012 saves Q, K and V as tensors, which have no shells.
    Fix{.name = "release_attention_tensors",
        .upstream = {{"TransformerEngine#1935", "TransformerEngine#2012", "TransformerEngine#2772"},
                     "789c6ca63",
                     "2.8"},
        .symptom = "FP8 fused attention keeps Q, K and V of every layer alive after backward, until the loss "
                   "is freed",
        .decision = "the shells of attention's saved storage move out of the context when backward restores them",
        .revert = [](Behaviors& b) { b.attention_shells = ShellPolicy::kRestoreAndKeep; }},
    Fix{.name = "release_fuser_tensors",
        .upstream = {{"TransformerEngine#2750"}, "c021e7e35", "2.14"},
        .symptom = "the op fuser keeps the quantized weight copies of every fused layer alive after backward",
        .decision = "the shells of a fused chain's saved storage move out of the context when backward restores them",
        .revert = [](Behaviors& b) { b.fuser_shells = ShellPolicy::kRestoreAndKeep; }},
    Fix{.name = "release_grouped_tensors",
        .upstream = {{"TransformerEngine#2772"}, "15760a5dd", "2.15"},
        .symptom = "GroupedLinear keeps the quantized weight copies of all experts alive after backward, and the "
                   "scales of their inputs",
        .decision = "the shells of GroupedLinear's saved storage move out of the context when backward restores them",
        .revert = [](Behaviors& b) { b.grouped_shells = ShellPolicy::kRestoreAndKeep; }},
    // A defect of 2.0, which left the buffers in the shells: it retained the same bytes after backward, but had no
    // shells to restore.
    Fix{.name = "release_module_tensors",
        .upstream = {{"TransformerEngine#1500"}, "d3efaebb6", "2.1"},
        .symptom = "Linear, LayerNormLinear and LayerNormMLP keep their quantized weight copies alive after backward",
        .decision = "the shells of a module's saved storage move out of the context when backward restores them",
        .revert = [](Behaviors& b) { b.module_shells = ShellPolicy::kRestoreAndKeep; }},
    // Made by #1500, undone by #1548 before a release, and made again by #1686. Reverted it is 2.0; 2.1 to 2.3 kept the
    // buffers in the shells too, but dropped the shells in backward.
    Fix{.name = "empty_module_shells",
        .upstream = {{"TransformerEngine#1500", "TransformerEngine#1548", "TransformerEngine#1686"},
                     "2f61c4019",
                     "2.4"},
        .symptom = "quantized copies of weights stay on the device from forward on, so recomputation and offload free "
                   "no memory",
        .decision = "a shell releases its buffers when they are saved for backward",
        .revert = [](Behaviors& b) { b.module_shells = ShellPolicy::kKeepFromForward; }},
    Fix{.name = "split_in_eight_bits",
        .upstream = {{"TransformerEngine#2245"}, "29537c96d", "2.10"},
        .symptom = "shards of an initialised MXFP8 model are in high precision: twice the bytes gathered, and weights "
                   "quantized again in every layer",
        .decision = "a split of an MXFP8 tensor splits its data and scales",
        .revert = [](Behaviors& b) { b.split_in_eight_bits = false; }},
    // #2245 made the view of MXFP8 tensors (2.10), #2698 the view of blocks (2.14). #3008 reports what it keeps alive.
    // Main had both as of d0067d0da.
    Fix{.name = "flatten_without_copy",
        .upstream = {{"TransformerEngine#2245", "TransformerEngine#2698", "TransformerEngine#3008"}, "", ""},
        .symptom = "FSDP2 keeps a flat view of every shard; for MXFP8 and 128 x 128 blocks it is a dequantized copy "
                   "that nothing reads, so these weights need twice the memory of BF16",
        .decision = "no dequantized copy of a sharded weight in blocks is kept",
        .revert = [](Behaviors& b) { b.flatten_without_copy = false; }},
    Fix{.name = "drop_transpose_in_make_like",
        .upstream = {{"TransformerEngine#2245"}, "29537c96d", "2.10"},
        .symptom = "every shard keeps the transpose of the entire weight alive",
        .decision = "a split of a weight under one scale splits its transpose too",
        .revert = [](Behaviors& b) { b.drop_transpose_in_make_like = false; }},
    Fix{.name = "own_scale_in_new_zeros",
        .upstream = {{"TransformerEngine#2245"}, "29537c96d", "2.10"},
        .symptom = "writing to zeros that were made like a weight rescales the weight",
        .decision = "zeros that are made like a matrix with one scale have a copy of this scale",
        .revert = [](Behaviors& b) { b.own_scale_in_new_zeros = false; }},
    Fix{.name = "copy_bytes_between_shards",
        .upstream = {{"TransformerEngine#2245", "TransformerEngine#2369"}, "29537c96d", "2.10"},
        .symptom = "copying MXFP8 weights changes their data and scales",
        .decision = "a copy moves bytes if the source has every orientation that the destination has",
        .revert = [](Behaviors& b) { b.copy_bytes_between_shards = false; }},
    Fix{.name = "view_aligned_slices",
        .upstream = {{"TransformerEngine#2245"}, "29537c96d", "2.10"},
        .symptom = "a slice of an MXFP8 weight is in high precision even if it covers all rows, and it is gathered in "
                   "high precision",
        .decision = "a slice that covers all rows is a view",
        .revert = [](Behaviors& b) { b.view_aligned_slices = false; }},
    Fix{.name = "gather_eight_bits",
        .upstream = {{"TransformerEngine#2245"}, "29537c96d", "2.10"},
        .symptom =
            "FP8 weights are gathered in high precision, with BF16's traffic, and every layer quantizes them again",
        .decision = "shards travel as data and scales, and modules multiply the gathered data",
        .revert = [](Behaviors& b) { b.gather_eight_bits = false; }},
    Fix{.name = "share_amax_over_shards",
        .upstream = {{"TransformerEngine#2245"}, "29537c96d", "2.10"},
        .symptom =
            "under current scaling ranks silently hold different weights: each reads all shards by its own scale",
        .decision = "the amax of a shard is the largest over the ranks that share its tensor",
        .revert = [](Behaviors& b) { b.share_amax_over_shards = false; },
        .counterfactual = true},
    Fix{.name = "choose_usage_by_pass",
        .upstream = {{"TransformerEngine#2245"}, "29537c96d", "2.10"},
        .symptom =
            "MXFP8 weights are gathered in both orientations in forward, and again in backward; on hopper forward "
            "leaves transposes of others",
        .decision = "a gather provides the orientation that its pass reads; both only if the next pass does "
                    "not gather again",
        .revert = [](Behaviors& b) { b.choose_usage_by_pass = false; },
        .counterfactual = true},
    Fix{.name = "validate_usage_by_pass",
        .upstream = {{"TransformerEngine#2245"}, "29537c96d", "2.10"},
        .symptom = "forward requires column-wise weights: on hopper every layer makes a transpose, which its reshard "
                   "does not free; under MXFP8 it ends in an error",
        .decision = "forward requires only the row-wise orientation, backward only the column-wise one",
        .revert = [](Behaviors& b) { b.validate_usage_by_pass = false; },
        .counterfactual = true},
    Fix{.name = "use_weight_quantizer",
        .upstream = {{"TransformerEngine#2245"}, "29537c96d", "2.10"},
        .symptom = "forward requires the orientations of the module's quantizer, which ignores the gather, so an FP8 "
                   "weight needs column-wise data too",
        .decision = "a weight in eight bits has a quantizer of its own",
        .revert = [](Behaviors& b) { b.use_weight_quantizer = false; },
        .counterfactual = true},
    Fix{.name = "keep_fp8_init_metadata",
        .upstream = {{"TransformerEngine#2245"}, "29537c96d", "2.10"},
        .symptom = "deferred initialisation of a sharded FP8 model silently leaves its weights in high precision",
        .decision = "a parameter that sharding registers again keeps the metadata with which it is made in eight bits",
        .revert = [](Behaviors& b) { b.keep_fp8_init_metadata = false; }},
    Fix{.name = "strip_scale_padding",
        .upstream = {{"TransformerEngine#2245"}, "29537c96d", "2.10"},
        .symptom = "the scales of MXFP8 shards travel with their padding, and land at rows of other ranks",
        .decision = "scales travel without the padding of dim 0, and are padded again after the gather",
        .revert = [](Behaviors& b) { b.strip_scale_padding = false; },
        .counterfactual = true},
    Fix{.name = "nearest_sharding_state",
        .upstream = {{"TransformerEngine#2245"}, "29537c96d", "2.10"},
        .symptom = "gather hooks read from the root whether a layer reshards, and gather both orientations "
                   "twice",
        .decision = "a gather hook reads the state of the nearest wrapped module around its parameter",
        .revert = [](Behaviors& b) { b.nearest_sharding_state = false; },
        .counterfactual = true},
    Fix{.name = "reuse_quantizer_at_gather",
        .upstream = {{"TransformerEngine#2370"}, "d52ed471b", "2.11"},
        .symptom = "every gather copies the quantizer of every FP8 weight before the layer's first kernel, and the "
                   "first one twice",
        .decision = "a gather passes two flags of its tensor; the quantizer is copied once, at the first "
                    "gather",
        .revert = [](Behaviors& b) { b.reuse_quantizer_at_gather = false; }},
    Fix{.name = "gather_blocks_row_wise",
        .upstream = {{"TransformerEngine#2789"}, "4bf1c1c7f", "2.15"},
        .symptom =
            "weights in 128 x 128 blocks are gathered in both orientations in forward and again in backward, and "
            "forward's transposes of all layers stay alive until backward",
        .decision = "blocks travel row-wise; the column-wise orientation, which is their transpose, is made after the "
                    "gather",
        .revert = [](Behaviors& b) { b.gather_blocks_row_wise = false; }},
    Fix{.name = "write_back_list_updates",
        .upstream = {{"TransformerEngine#2245"}, "29537c96d", "2.10"},
        .symptom = "under a framework's multi-tensor optimizer FP8 weights never change, and no error shows "
                   "it",
        .decision = "the result of a list operation on a quantized tensor is cast back into it",
        .revert = [](Behaviors& b) { b.write_back_list_updates = false; }},
    // #2370 ended this crash. Training by FusedAdam over FSDP2 works since #2698 (2.14), and with MXFP8 since #2753.
    Fix{.name = "unwrap_shards_in_adam",
        .upstream = {{"TransformerEngine#2370", "TransformerEngine#2698"}, "d52ed471b", "2.11"},
        .symptom = "fused Adam crashes on sharded FP8 weights",
        .decision = "Adam examines the local shard, not the wrapper around it",
        .revert = [](Behaviors& b) { b.unwrap_shards_in_adam = false; }},
    Fix{.name = "shard_optimizer_state",
        .upstream = {{"TransformerEngine#1762", "TransformerEngine#2424", "TransformerEngine#2535"},
                     "fe8fad59c",
                     "2.12"},
        .symptom = "fused Adam makes the state of a sharded parameter at the shape of the unsharded one: N times the "
                   "memory over N ranks, and an error if it copies master weights",
        .decision = "Adam's state has the shape of the local shard",
        .revert = [](Behaviors& b) { b.shard_optimizer_state = false; }},
    Fix{.name = "fuse_moment_casts",
        .upstream = {{"TransformerEngine#2632"}, "459e7cf49", "2.13"},
        .symptom = "moments in BF16 are expanded to FP32 copies for all parameters at once in every step",
        .decision = "Adam's kernel reads BF16 moments and rounds them as it writes them",
        .revert = [](Behaviors& b) { b.fuse_moment_casts = false; }},
    Fix{.name = "skip_empty_tensors",
        .upstream = {{"TransformerEngine#3202", "TransformerEngine#3207", "TransformerEngine#3212"},
                     "868d8d921",
                     "2.18"},
        .symptom = "fused Adam silently loses the updates of a rank whose shard of the last parameter is empty",
        .decision = "a list of tensors has no empty ones when its kernel is launched",
        .revert = [](Behaviors& b) { b.skip_empty_tensors = false; }},
    // On the branch of 2.19, which had no tag as of 2026-08-22. The groups that were empty upstream are Megatron's, on
    // ranks without a parameter of the group; FSDP2 lists a parameter of which a rank has no rows, and its step was
    // counted. The model follows frameworks that leave such shards out.
    Fix{.name = "count_empty_steps",
        .upstream = {{"TransformerEngine#1986", "TransformerEngine#3318"}, "734ce31e9", "2.19"},
        .symptom = "training resumes with the wrong bias correction if the saved step comes from a rank on which the "
                   "parameter group was empty",
        .decision = "Adam counts the steps of a parameter group that is empty on this rank",
        .revert = [](Behaviors& b) { b.count_empty_steps = false; }},
    // The sources of 2.20.2 divide the lists.
    Fix{.name = "divide_adam_lists",
        .upstream = {{"TransformerEngine#2189", "TransformerEngine#3418"}, "", "2.20"},
        .symptom =
            "fused Adam ends with an error on models of many tensors, such as 512 experts in each of ten layers, "
            "because the launcher runs out of tensor handles",
        .decision = "the launcher gets lists of tensors in parts of a bounded length",
        .revert = [](Behaviors& b) { b.divide_adam_lists = false; }},
    Fix{.name = "count_in_64_bits",
        .upstream = {{"TransformerEngine#2918", "TransformerEngine#3136"}, "5d1dddfe2", "2.17"},
        .symptom =
            "clipping a gradient of more than 2^31 elements, such as an embedding's, is an illegal memory access, "
            "and without clipping Adam never updates this parameter",
        .decision = "list kernels count the elements of a tensor in 64 bits",
        .revert = [](Behaviors& b) { b.count_in_64_bits = false; }},
    Fix{.name = "cast_blocks_in_adam",
        .upstream = {{"TransformerEngine#2753"}, "fcceeb961", "2.14"},
        .symptom = "fused Adam crashes on weights in MXFP8 and in 128 x 128 blocks, sharded or not",
        .decision = "Adam updates the master of a weight of any quantized type, which is then cast to that type",
        .revert = [](Behaviors& b) { b.cast_blocks_in_adam = false; }},
    Fix{.name = "measure_scale_in_adam",
        .upstream = {{"TransformerEngine#2816"}, "a5164fe1f", "2.16"},
        .symptom = "under current scaling fused Adam casts FP8 weights with the scale of their initial values, so that "
                   "weights that grow are clipped",
        .decision = "weights under current scaling are measured after Adam's update and cast with that scale",
        .revert = [](Behaviors& b) { b.measure_scale_in_adam = false; }},
    // In 2.10 and 2.11 the state was plain at the unsharded shape, before and after them a DTensor. #2698 made it plain
    // at the shape of the shard; its first release, 2.14, has #2795 too.
    Fix{.name = "shard_saved_state",
        .upstream = {{"TransformerEngine#2795"}, "5abadf4ee", "2.14"},
        .symptom = "a checkpoint keeps one rank's shard of Adam's moments and masters, and every rank resumes with "
                   "this shard: silently wrong weights, or an error if shards differ in size",
        .decision = "Adam's state of a sharded parameter is described as shards, like the parameter itself",
        .revert = [](Behaviors& b) { b.shard_saved_state = false; },
        .counterfactual = true},
    // #2951 reported the crash.
    Fix{.name = "keep_type_in_moves",
        .upstream = {{"TransformerEngine#2951", "TransformerEngine#2974"}, "9af70a8bb", "2.16"},
        .symptom =
            "a checkpoint stores FP8 weights dequantized, and training resumes with weights that are quantized again; "
            "sharded MXFP8 weights cannot be loaded",
        .decision =
            "a quantized tensor that moves between host and device stays quantized, and has a storage with an address",
        .revert = [](Behaviors& b) { b.keep_type_in_moves = false; }},
    Fix{.name = "requantize_in_backward",
        .upstream = {{"TransformerEngine#2681", "TransformerEngine#2717", "TransformerEngine#2805"},
                     "0a088c1d5",
                     "2.16"},
        .symptom = "every sharded layer saves an FP8 copy of its gathered 16-bit weight for backward, so a rank ends "
                   "forward with the entire model in eight bits",
        .decision = "forward quantizes a sharded weight for its own product, and backward quantizes it again",
        .revert = [](Behaviors& b) { b.requantize_in_backward = false; }},
    Fix{.name = "clear_gathered_transposes",
        .upstream = {{"TransformerEngine#2681", "TransformerEngine#2717", "TransformerEngine#2805"},
                     "0a088c1d5",
                     "2.16"},
        .symptom = "transposes that gathers make of FP8 weights stay after backward, and without reshard after forward "
                   "the next backward reads them instead of the transposes of the new weights",
        .decision = "the transpose of a gathered weight is freed once backward has read it",
        .revert = [](Behaviors& b) { b.clear_gathered_transposes = false; }},
    // #2044 fixed the same in fusible operations, in which no quantizer got the new history.
    Fix{.name = "rebind_amax_on_resize",
        .upstream = {{"TransformerEngine#1814", "TransformerEngine#2044"}, "d5d783337", "2.5"},
        .symptom =
            "FP8 weights of a model that was built with amax histories of another length keep the scale of their "
            "initial values, so that weights that grow are clipped",
        .decision = "when a history is resized, the weight's quantizer gets the live row of the new history",
        .revert = [](Behaviors& b) { b.rebind_amax_on_resize = false; }},
    Fix{.name = "reset_incomplete_workspaces",
        .upstream = {{"TransformerEngine#1593"}, "abbdd769a", "2.2"},
        .symptom = "validation caches MXFP8 copies of 16-bit weights without column-wise data, and the first training "
                   "step after it ends in an error",
        .decision = "a cached copy that lacks an orientation is dropped, and the weight is quantized again",
        .revert = [](Behaviors& b) { b.reset_incomplete_workspaces = false; }},
    // #3246 fixed MXFP8's kernels, #3271 the kernel of Blackwell for one scale; both are first in 2.19.
    Fix{.name = "skip_cached_casts",
        .upstream = {{"TransformerEngine#3246", "TransformerEngine#3271"}, "ea41e0837", "2.19"},
        .symptom =
            "in CUDA graphs every micro-batch casts the cached copies of weights again: always under MXFP8, and on "
            "blackwell also under one scale for a tensor",
        .decision = "kernels that cast read the flag of an unchanged weight, and skip",
        .revert = [](Behaviors& b) { b.skip_cached_casts = false; }},
    Fix{.name = "skip_casts_of_experts",
        .upstream = {{"TransformerEngine#3051", "TransformerEngine#3052", "TransformerEngine#3065"},
                     "1ea48eb75",
                     "2.17"},
        .symptom = "in CUDA graphs GroupedLinear casts the cached copies of all experts' weights again in every "
                   "micro-batch; under delayed scaling each time with another scale",
        .decision = "GroupedLinear passes the flag of unchanged weights to its casts",
        .revert = [](Behaviors& b) { b.skip_casts_of_experts = false; }},
    // torchtitan's rows had room for eight more for each expert; Megatron-LM padded what a batch needed, to 16.
    Fix{.name = "pad_only_eight_bits",
        .upstream = {{"torchtitan#2225", "torchtitan#2774", "Megatron-LM#4038"}, "", ""},
        .symptom = "in BF16 the tokens of each expert are padded with rows that no product needs, so that every matrix "
                   "of a mixture is larger",
        .decision = "the tokens of experts are padded only if the recipe casts them to eight bits",
        .revert = [](Behaviors& b) { b.pad_only_eight_bits = false; }},
    Fix{.name = "pad_groups_to_blocks",
        .upstream = {{"torchtitan#2262", "ao#3636", "TransformerEngine#2966"}, "", ""},
        .symptom = "training a mixture in FP8 ends with an error in the first batch in which the tokens of an expert "
                   "are no multiple of a block: 44 under MXFP8, whose blocks have 32. On device meta tokens are even, "
                   "and often a multiple",
        .decision = "the tokens of each expert are padded with zeros to the rows that products in eight bits accept",
        .revert = [](Behaviors& b) { b.pad_groups_to_blocks = false; }},
    // 2.14 (#2559) to 2.17.
    Fix{.name = "differentiate_quantized_inputs",
        .upstream = {{"TransformerEngine#3172"}, "e201f228e", "2.18"},
        .symptom = "a linear layer whose input comes in FP8 returns no gradient for it, so the layers before it never "
                   "learn, and no error shows it",
        .decision = "a quantized tensor reads from the graph whether it needs a gradient",
        .revert = [](Behaviors& b) { b.differentiate_quantized_inputs = false; }},
    // #3284 (2.19) decides inside the region; #3394 (2.20) also covers modules in evaluation mode.
    Fix{.name = "stash_inner_scales",
        .upstream = {{"TransformerEngine#3284", "TransformerEngine#3394"}, "731f242a6", "2.19"},
        .symptom = "recomputation under delayed scaling ends with an error if layers choose their recipe inside the "
                   "checkpointed region, or are in evaluation mode",
        .decision = "layers stash their scales in every checkpointed region, whatever surrounds it",
        .revert = [](Behaviors& b) { b.stash_inner_scales = false; }},
    Fix{.name = "keep_fusion_plans",
        .upstream = {{"TransformerEngine#3410"}, "", "2.20"},
        .symptom = "under full recomputation the op fuser builds the plan of every fused chain again in each pass",
        .decision = "the op fuser keeps a plan for passes with a backward and one for passes without",
        .revert = [](Behaviors& b) { b.keep_fusion_plans = false; }},
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
