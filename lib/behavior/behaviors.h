#pragma once

// The decisions that a fix may revert, as plain data. The defaults are the fixed behaviour; lib/fixes reverts them one
// by one.
namespace fp8lab {

/// The place of the shell of a quantized tensor that an operation saves for its backward. The shell's buffers lie in
/// the engine's saved slots, which are freed once the node has run. The shell lies in the operation's context, which
/// lives as long as the node, and a node lives as long as the loss.
enum class ShellPolicy {
  /// Restored buffers leave the context together with their shell, so nothing outlives the node's backward.
  kMoveOut,
  /// Backward writes the buffers back into the shell and leaves the shell in the context (TransformerEngine#1935,
  /// #2750, #2772).
  kRestoreAndKeep,
  /// The shell keeps its buffers from forward on (TransformerEngine before #1500).
  kKeepFromForward,
};

struct Behaviors {
  ShellPolicy attention_shells = ShellPolicy::kMoveOut;
  ShellPolicy fuser_shells = ShellPolicy::kMoveOut;
  ShellPolicy grouped_shells = ShellPolicy::kMoveOut;
  /// Policy of Linear, LayerNormLinear and LayerNormMLP.
  ShellPolicy module_shells = ShellPolicy::kMoveOut;

  // Sharded FP8 weights (TransformerEngine#2245, #2370). False is the behaviour before the fix.
  bool gather_eight_bits = true;          ///< shards travel as quantized data, not as dequantized values
  bool share_amax_over_shards = true;     ///< current scaling: all shards of a tensor use their largest amax
  bool choose_usage_by_pass = true;       ///< forward gathers row-wise orientations, backward column-wise ones
  bool validate_usage_by_pass = true;     ///< forward requests only the row-wise orientation
  bool use_weight_quantizer = true;       ///< an FP8 weight's quantizer, not the module's, decides its orientations
  bool keep_fp8_init_metadata = true;     ///< sharding a deferred parameter keeps the metadata that makes it FP8
  bool strip_scale_padding = true;        ///< block scales travel without the padding of their arrays
  bool reuse_quantizer_at_gather = true;  ///< a gather passes two flags of its tensor, not a copy of its quantizer
  bool nearest_sharding_state = true;     ///< gather hooks ask the nearest wrapped module, not the root
  bool gather_blocks_row_wise = true;     ///< 128 x 128 blocks travel row-wise; the transpose is made locally (#2789)

  // Copies of FP8 weights between forward and backward (TransformerEngine#2805). False is the behaviour
  // before the fix.
  bool requantize_in_backward = true;     ///< sharded: forward saves no eight-bit copy of a weight, backward makes one
  bool clear_gathered_transposes = true;  ///< the transpose of a gathered weight is freed once backward has read it

  /// A cached copy of a weight that lacks an orientation is made again (TransformerEngine#1593). False is the behaviour
  /// before the fix.
  bool reset_incomplete_workspaces = true;

  // Casts of cached copies in later micro-batches of a step, in which the weight is the same. False is the behaviour
  // before the fix: the copy is cast again.
  bool skip_cached_casts = true;      ///< kernels of MXFP8, and Blackwell's under one scale, skip too (#3246, #3271)
  bool skip_casts_of_experts = true;  ///< GroupedLinear skips too (#3052, #3065)

  // The rows of each expert in a mixture. False is the behaviour before the fix.
  bool pad_only_eight_bits = true;   ///< in 16 bits they are not padded to a multiple of 8 (torchtitan#2774)
  bool pad_groups_to_blocks = true;  ///< in eight bits they are padded to what products accept (torchtitan#2262)

  /// A checkpointed region stashes the scales of layers that choose their recipe inside it (TransformerEngine#3284,
  /// #3394). False is the behaviour before the fix.
  bool stash_inner_scales = true;
  /// An input in eight bits needs a gradient if what made it does (TransformerEngine#3172). False is the behaviour
  /// before the fix: it needs none.
  bool differentiate_quantized_inputs = true;
  /// A fused chain keeps a plan for passes with a backward and one for passes without (TransformerEngine#3410). False
  /// is the behaviour before the fix: it keeps the last one.
  bool keep_fusion_plans = true;

  /// A weight's quantizer records into the amax history that a resize made (TransformerEngine#1814, #2044). False is
  /// the behaviour before the fix.
  bool rebind_amax_on_resize = true;

  // Tensor operations on quantized storage (ops/quantized_storage.h; TransformerEngine#2245). False is the behaviour
  // before the fix.
  bool split_in_eight_bits = true;  ///< an MXFP8 tensor is split as data and scales, not as dequantized values
  /// A tensor made like another does not keep the other's column-wise orientation, which covers all rows.
  bool drop_transpose_in_make_like = true;
  bool own_scale_in_new_zeros = true;     ///< zeros like a per-tensor matrix copy its scale instead of sharing it
  bool copy_bytes_between_shards = true;  ///< a copy moves bytes and does not go through high precision
  bool view_aligned_slices = true;        ///< a slice is a view if scales allow it, not a copy in high precision
  bool flatten_without_copy = true;       ///< a sharded tensor of blocks has no extra dequantized flat copy (#3008)

  // Optimizers (TransformerEngine#2245, #2370, #2698, and those named below). False is the behaviour before the fix.
  bool unwrap_shards_in_adam = true;    ///< Adam examines the local shard, not the wrapper around it
  bool shard_optimizer_state = true;    ///< Adam's state has the shape of the local shard (TransformerEngine#2424)
  bool fuse_moment_casts = true;        ///< Adam's kernel reads and writes BF16 moments (TransformerEngine#2632)
  bool write_back_list_updates = true;  ///< the result of a list operation on a quantized tensor is cast back into it
  bool measure_scale_in_adam = true;    ///< Adam measures current-scaled weights to cast them (TransformerEngine#2816)
  bool cast_blocks_in_adam = true;      ///< Adam accepts weights in blocks and MXFP8 (TransformerEngine#2753)
  bool skip_empty_tensors = true;       ///< list kernels are launched over lists without empty tensors (#3212)
  bool count_empty_steps = true;        ///< Adam counts steps of groups that are empty on this rank (#3318)
  bool divide_adam_lists = true;        ///< the launcher gets long lists of tensors in parts (#3418)
  bool count_in_64_bits = true;         ///< list kernels count a tensor's elements in 64 bits (#3136)

  // Saved training state of sharded models (TransformerEngine#2795, #2974). False is the behaviour before the fix.
  bool shard_saved_state = true;   ///< optimizer state is saved as shards, not as one rank's tensor
  bool keep_type_in_moves = true;  ///< a quantized weight that moves to the host or back stays quantized

  friend bool operator==(const Behaviors&, const Behaviors&) = default;
};

}  // namespace fp8lab
