#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/runtime.h"
#include "tensor/quantized_tensor.h"

namespace fp8lab {

class Node;

/// A value and the node that made it; the node, and through it the entire graph behind it, lives as long as a Variable
/// does.
struct Variable {
  Tensor value;
  std::shared_ptr<Node> producer;  ///< null: nothing behind it needs a gradient
};

/// What an operation saved, given back to its backward. Entries come in the order of saving. Quantized entries are
/// references to wherever the shell policy put them: into this object, which dies with the backward call, or into the
/// node's context, which does not.
class Restored {
 public:
  const Tensor& tensor(std::size_t entry) const { return entries_.at(entry).tensor; }
  QuantizedTensor& quantized(std::size_t entry) { return *entries_.at(entry).quantized; }
  /// Frees a quantized entry wherever it lies; does nothing for a plain one, which other owners may share.
  void clear_quantized(std::size_t entry) {
    if (entries_.at(entry).quantized) entries_.at(entry).quantized->clear();
  }
  /// False for what save_nothing() entered.
  bool has(std::size_t entry) const { return entries_.at(entry).tensor || entries_.at(entry).quantized != nullptr; }
  std::size_t size() const { return entries_.size(); }

 private:
  friend class Node;
  struct Entry {
    Tensor tensor;
    QuantizedTensor* quantized = nullptr;
  };
  std::vector<Entry> entries_;
  std::vector<std::unique_ptr<QuantizedTensor>> moved_out_;
};

/// One operation that ran forward. It owns engine slots, emptied by the engine once the node has run, and a context
/// (the shells of quantized storage), which dies with the node. Nodes live while the loss does.
class Node : public std::enable_shared_from_this<Node> {
 public:
  /// Owned by a shared_ptr from birth; saving comes after construction. `policy` governs the shells of what
  /// save_split() saves.
  Node(Runtime& runtime, std::string name, std::vector<std::shared_ptr<Node>> inputs,
       ShellPolicy policy = ShellPolicy::kMoveOut);
  virtual ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  const std::string& name() const { return name_; }
  const std::vector<std::shared_ptr<Node>>& inputs() const { return inputs_; }

  /// The gradients of the inputs, one per entry of inputs(); parameters take theirs directly. Absent where there is no
  /// producer to receive one.
  virtual std::vector<Tensor> backward(Tensor grad_output) = 0;

  /// Empties the engine slots; the engine calls this after backward().
  void release_slots();
  /// A recomputed tensor for slot `slot`.
  void refill_slot(std::size_t slot, const Tensor& tensor);

 protected:
  Runtime& runtime() { return runtime_; }
  Device& device() { return runtime_.device; }

  /// A plain tensor: it lies in an engine slot.
  void save(std::string_view what, const Tensor& tensor);
  /// Quantized and known to the engine as one tensor: all of it lies in slots.
  void save_quantized(std::string_view what, const QuantizedTensor& tensor);
  /// Quantized storage that the engine does not know: buffers lie in slots, the shell in the context.
  void save_split(std::string_view what, QuantizedTensor tensor);
  /// An entry without anything, in place of what backward finds elsewhere.
  void save_nothing();

  /// How many entries are saved so far.
  std::size_t entries() const { return entries_.size(); }

  /// Gives back everything saved, recomputing a checkpointed region first. Once per backward.
  Restored restore();

 private:
  friend class CheckpointFrame;
  struct Slot {
    Tensor tensor;
    HolderId holder = 0;
    std::shared_ptr<CheckpointFrame> frame;  // who can make the tensor again; null where it is kept
  };
  struct Entry {
    bool absent = false;
    bool quantized = false;
    bool in_context = false;
    std::size_t first_slot = 0;
    std::size_t slots = 0;
    std::unique_ptr<QuantizedTensor>
        shell;  // in_context: part of the context; otherwise the slots' own bookkeeping, always empty
    HolderId context_holder = 0;
  };

  void add_slot(std::string_view what, const Tensor& tensor);

  Runtime& runtime_;
  std::string name_;
  std::vector<std::shared_ptr<Node>> inputs_;
  ShellPolicy policy_;
  std::vector<Slot> slots_;
  std::vector<Entry> entries_;
  bool restored_ = false;
};

/// Runs backward from `root`, a loss (its gradient is one), each node after all of its consumers, and frees each node's
/// slots once it has run.
void run_backward(Runtime& runtime, const Variable& root);
/// The same from any tensor, given its gradient.
void run_backward(Runtime& runtime, const Variable& root, Tensor gradient);

}  // namespace fp8lab
