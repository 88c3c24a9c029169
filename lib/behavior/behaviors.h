#pragma once

// Decisions that a fix may change, as plain data. Defaults are the fixed behaviour; lib/fixes reverts them one by one.
namespace fp8lab {

/// What becomes of the shell of a quantized tensor that an operation saves for its backward. The shell's buffers lie in
/// the engine's slots, which are freed once the node has run; the shell lies in the operation's context, which lives
/// as long as the node, and a node lives as long as the loss does.
enum class ShellPolicy {
  /// Restored buffers leave the context together with their shell: nothing outlives the node's backward.
  kMoveOut,
  /// Backward writes the buffers back into the shell and leaves the shell in the context (TransformerEngine#1935,
  /// #2750).
  kRestoreAndKeep,
  /// The shell never lets go of its buffers, from forward on (TransformerEngine before #1500).
  kKeepFromForward,
};

struct Behaviors {
  ShellPolicy attention_shells = ShellPolicy::kMoveOut;
  ShellPolicy fuser_shells = ShellPolicy::kMoveOut;
  /// Linear, LayerNormLinear and LayerNormMLP.
  ShellPolicy module_shells = ShellPolicy::kMoveOut;

  // Sharded weights in eight bits (TransformerEngine#2245, #2370). False is the behaviour before.
  bool gather_eight_bits = true;  ///< shards travel as quantized data, not as the high-precision values they stand for
  bool share_amax_over_shards = true;     ///< a measured tensor's shards have one scale: their largest amax
  bool choose_usage_by_pass = true;       ///< forward gathers row-wise orientations, backward column-wise ones
  bool validate_usage_by_pass = true;     ///< forward asks for the row-wise orientation alone
  bool keep_own_quantizer = true;         ///< a weight in eight bits keeps the quantizer it was made with
  bool initialize_local_shard = true;     ///< deferred initialisation makes the shard, not the unsharded parameter
  bool strip_scale_padding = true;        ///< scales of blocks travel without the padding of their arrays
  bool reuse_quantizer_at_gather = true;  ///< a gather says two flags of its tensor, not a copy of its quantizer
  bool nearest_sharding_state = true;     ///< gather hooks heed the nearest wrapped module, not the root

  // Tensor operations on quantized storage (ops/quantized_storage.h; TransformerEngine#2245). False is the behaviour
  // before.
  bool split_knows_columnwise = true;  ///< column-wise orientations are cut too, not row-wise ones alone
  bool slice_transpose_in_make_like =
      true;  ///< a shard is not given the column-wise orientation of the unsharded parameter it is made from
  bool own_scale_in_new_zeros = true;     ///< zeros like a per-tensor matrix have a copy of its scale, not the scale
  bool copy_bytes_between_shards = true;  ///< a copy does not go through high precision
  bool view_aligned_slices = true;        ///< nor does a slice, at least of the unsharded parameter
  bool keep_transpose_in_views = true;    ///< another shape does not cost the column-wise orientation

  // Optimizers over weights in eight bits (TransformerEngine#2245, #2370, #2698). False is the behaviour before.
  bool unwrap_shards_in_adam = true;    ///< Adam asks the local shard, not the wrapper around it, what it is
  bool write_back_list_updates = true;  ///< what a list operation computed for a quantized tensor is cast into it

  friend bool operator==(const Behaviors&, const Behaviors&) = default;
};

}  // namespace fp8lab
