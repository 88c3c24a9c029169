#pragma once

// Decisions that a fix may change, as plain data. Defaults are the fixed behaviour; lib/fixes reverts them one by one.
namespace fp8lab {

/// What becomes of the shell of a quantized tensor that an operation saves for its backward. The shell's buffers lie in
/// the engine's slots, which are freed once the node has run; the shell lies in the operation's context, which lives
/// as long as the node, and a node lives as long as the loss does.
enum class ShellPolicy {
  /// Restored buffers leave the context together with their shell: nothing outlives the node's backward.
  kMoveOut,
  /// Backward writes the buffers back into the shell and leaves the shell in the context (TransformerEngine#1935, #2750).
  kRestoreAndKeep,
  /// The shell never lets go of its buffers, from forward on (TransformerEngine before #1500).
  kKeepFromForward,
};

struct Behaviors {
  ShellPolicy attention_shells = ShellPolicy::kMoveOut;
  ShellPolicy fuser_shells = ShellPolicy::kMoveOut;
  /// Linear, LayerNormLinear and LayerNormMLP.
  ShellPolicy module_shells = ShellPolicy::kMoveOut;
};

}  // namespace fp8lab
