#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/runtime.h"
#include "tensor/quantized_tensor.h"

namespace fp8lab {

class Node;

/// A value and the node that produced it. A Variable keeps the node alive, and through it the entire graph behind the
/// node.
struct Variable {
  Tensor value;
  std::shared_ptr<Node> producer;  ///< null: nothing that it depends on needs a gradient
  QuantizedTensor quantized{};     ///< in place of `value`, if the next module accepts it
};

/// The gradient of a node's output: in high precision or, if the node accepts it, quantized.
struct Gradient {
  Tensor plain{};
  QuantizedTensor quantized{};

  bool is_quantized() const { return !plain && !quantized.empty(); }
};

/// The saved tensors of an operation, restored for its backward, in the order of saving. The place of a quantized entry
/// depends on the shell policy: in this object, which is destroyed with the backward call, or in the node's context,
/// which lives on.
class Restored {
 public:
  const Tensor& tensor(std::size_t entry) const { return entries_.at(entry).tensor; }
  QuantizedTensor& quantized(std::size_t entry) { return *entries_.at(entry).quantized; }
  /// Frees a quantized entry wherever it lies. Does nothing for a plain tensor, which other owners may share.
  void clear_quantized(std::size_t entry) {
    if (entries_.at(entry).quantized) entries_.at(entry).quantized->clear();
  }
  /// The same, but leaves a scale per tensor, which several quantized tensors may share.
  void clear_data(std::size_t entry) {
    if (entries_.at(entry).quantized) entries_.at(entry).quantized->clear_data();
  }
  /// False for an entry of save_nothing().
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

/// One operation that ran forward. It owns saved slots, which the engine empties once the node has run, and a context
/// (the shells of quantized storage), which is destroyed with the node. Nodes live as long as the loss.
class Node : public std::enable_shared_from_this<Node> {
 public:
  /// A node must be owned by a shared_ptr, and saving comes after construction. `policy` governs the shells of
  /// save_split().
  Node(Runtime& runtime, std::string name, std::vector<std::shared_ptr<Node>> inputs,
       ShellPolicy policy = ShellPolicy::kMoveOut);
  virtual ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  const std::string& name() const { return name_; }
  const std::vector<std::shared_ptr<Node>>& inputs() const { return inputs_; }

  /// Returns the gradients of the inputs, one per entry of inputs(). Gradients of parameters are accumulated directly.
  /// An entry may be empty if the input has no producer.
  virtual std::vector<Tensor> backward(Tensor grad_output);
  /// The same, of gradients that may be quantized. This is what the engine calls; a node overrides either of the two.
  virtual std::vector<Gradient> backward_of(Gradient grad_output);

  /// Empties the engine slots; the engine calls this after backward().
  void release_slots();
  /// Puts a recomputed tensor into slot `slot`.
  void refill_slot(std::size_t slot, const Tensor& tensor);

 protected:
  Runtime& runtime() { return runtime_; }
  Device& device() { return runtime_.device; }

  /// Saves a plain tensor in a slot.
  void save(std::string_view what, const Tensor& tensor);
  /// Saves a quantized tensor that is one tensor to the engine: all of it lies in slots.
  void save_quantized(std::string_view what, const QuantizedTensor& tensor);
  /// Saves quantized storage that the engine does not know: its buffers lie in slots, its shell in the context.
  void save_split(std::string_view what, QuantizedTensor tensor);
  /// Adds an empty entry, in place of a tensor that backward gets elsewhere.
  void save_nothing();

  /// Number of entries saved so far.
  std::size_t entries() const { return entries_.size(); }

  /// Returns everything saved, after recomputing a checkpointed region if there is one. Once per backward.
  Restored restore();

 private:
  friend class CheckpointFrame;
  struct Slot {
    Tensor tensor;
    HolderId holder = 0;
    std::shared_ptr<CheckpointFrame> frame;  // recomputes the tensor; null if the tensor is kept
  };
  struct Entry {
    bool absent = false;
    bool quantized = false;
    bool in_context = false;
    std::size_t first_slot = 0;
    std::size_t slots = 0;
    /// With in_context it is part of the context. Otherwise it is bookkeeping of the slots and always empty.
    std::unique_ptr<QuantizedTensor> shell;
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

/// Runs backward from `root`, a loss (its gradient is one). Each node runs after all of its consumers, and its slots
/// are freed once it has run.
void run_backward(Runtime& runtime, const Variable& root);
/// Runs backward from any tensor, given its gradient.
void run_backward(Runtime& runtime, const Variable& root, Tensor gradient);

}  // namespace fp8lab
