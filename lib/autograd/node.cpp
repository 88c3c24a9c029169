#include "autograd/node.h"

#include <fmt/core.h>

#include <unordered_map>
#include <utility>

#include "autograd/activation_checkpoint.h"
#include "core/check.h"
#include "ops/elementwise.h"

namespace fp8lab {

Node::Node(Runtime& runtime, std::string name, std::vector<std::shared_ptr<Node>> inputs, ShellPolicy policy)
    : runtime_(runtime), name_(std::move(name)), inputs_(std::move(inputs)), policy_(policy) {}

// Nodes hold their inputs, so a deep graph would be destroyed recursively, with up to three stack frames per node.
// Nodes that only this one keeps alive are destroyed in a loop instead.
Node::~Node() {
  std::vector<std::shared_ptr<Node>> dying = std::move(inputs_);
  while (!dying.empty()) {
    const std::shared_ptr<Node> node = std::move(dying.back());
    dying.pop_back();
    if (!node || node.use_count() > 1) continue;
    for (std::shared_ptr<Node>& input : node->inputs_) dying.push_back(std::move(input));
    node->inputs_.clear();
  }
}

void Node::add_slot(std::string_view what, const Tensor& tensor) {
  if (slots_.empty()) slots_.reserve(8);  // enough for most nodes
  Slot& slot = slots_.emplace_back();
  slot.holder = device().holder(HolderKind::kSavedSlot, name_, what);
  switch (runtime_.mode) {
    case Runtime::Mode::kPlain: slot.tensor = tensor.held_by(slot.holder); break;
    case Runtime::Mode::kRecording: slot.frame = runtime_.frame->record(*this, slots_.size() - 1); break;
    case Runtime::Mode::kRecomputing: runtime_.frame->replay(tensor); break;
    case Runtime::Mode::kEvaluating:
    case Runtime::Mode::kFrozen: break;
  }
}

void Node::save(std::string_view what, const Tensor& tensor) {
  Entry& entry = entries_.emplace_back();
  entry.first_slot = slots_.size();
  entry.slots = 1;
  add_slot(what, tensor);
}

void Node::save_quantized(std::string_view what, const QuantizedTensor& tensor) {
  Entry& entry = entries_.emplace_back();
  entry.quantized = true;
  entry.first_slot = slots_.size();
  entry.shell = std::make_unique<QuantizedTensor>(tensor);
  for (const Tensor& buffer : entry.shell->take_buffers()) add_slot(what, buffer);
  entry.slots = slots_.size() - entry.first_slot;
}

void Node::save_split(std::string_view what, QuantizedTensor tensor) {
  if (!runtime_.differentiates()) return;
  Entry& entry = entries_.emplace_back();
  entry.quantized = true;
  entry.in_context = true;
  entry.first_slot = slots_.size();
  entry.context_holder = device().holder(HolderKind::kContext, name_, what);
  entry.shell = std::make_unique<QuantizedTensor>(std::move(tensor));
  const bool keeps_buffers = policy_ == ShellPolicy::kKeepFromForward;
  if (keeps_buffers) entry.shell->rename(entry.context_holder);
  for (const Tensor& buffer : keeps_buffers ? entry.shell->share_buffers() : entry.shell->take_buffers())
    add_slot(what, buffer);
  entry.slots = slots_.size() - entry.first_slot;
}

void Node::save_nothing() { entries_.emplace_back().absent = true; }

Restored Node::restore() {
  if (restored_) fail(fmt::format("{}: its saved tensors were restored twice", name_));
  restored_ = true;
  for (const Slot& slot : slots_)
    if (slot.frame && !slot.tensor) slot.frame->recompute(runtime_);

  Restored restored;
  const HolderId local = runtime_.workspace(name_);
  for (Entry& entry : entries_) {
    Restored::Entry& given = restored.entries_.emplace_back();
    if (entry.absent) continue;
    if (!entry.quantized) {
      given.tensor = slots_[entry.first_slot].tensor.held_by(local);
      continue;
    }
    const bool leaves_context = !entry.in_context || policy_ == ShellPolicy::kMoveOut;
    const HolderId holder = leaves_context ? local : entry.context_holder;
    std::vector<Tensor> buffers;
    for (std::size_t i = 0; i < entry.slots; ++i)
      buffers.push_back(slots_[entry.first_slot + i].tensor.held_by(holder));
    entry.shell->put_buffers(std::move(buffers));
    given.quantized = entry.shell.get();
    if (leaves_context) restored.moved_out_.push_back(std::move(entry.shell));
  }
  return restored;
}

std::vector<Tensor> Node::backward(Tensor) { fail(fmt::format("{}: it has no backward", name_)); }

std::vector<Gradient> Node::backward_of(Gradient grad_output) {
  if (grad_output.is_quantized()) fail(fmt::format("{}: its gradient is quantized, and it takes none", name_));
  std::vector<Gradient> gradients;
  for (Tensor& gradient : backward(std::move(grad_output.plain))) gradients.push_back({.plain = std::move(gradient)});
  return gradients;
}

void Node::release_slots() { slots_.clear(); }

void Node::refill_slot(std::size_t slot, const Tensor& tensor) {
  if (slot < slots_.size()) slots_[slot].tensor = tensor.held_by(slots_[slot].holder);
}

void run_backward(Runtime& runtime, const Variable& root) {
  Tensor one = runtime.device.allocate({Shape{1, 1}, DType::kF32}, runtime.in_flight("loss"));
  fill(runtime.device, one, 1.0f);
  run_backward(runtime, root, std::move(one));
}

void run_backward(Runtime& runtime, const Variable& root, Tensor gradient) {
  check(root.producer != nullptr, "backward: nothing behind the root needs a gradient");
  if (gradient.numel() != root.value.numel())
    fail(fmt::format("backward: a gradient of {} for a root of {}", to_string(gradient.shape()),
                     to_string(root.value.shape())));

  // Number of consumers that each reachable node still waits for.
  std::unordered_map<Node*, int> waiting;
  std::vector<Node*> found{root.producer.get()};
  waiting[root.producer.get()] = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    for (const auto& input : found[i]->inputs()) {
      if (!input) continue;
      if (waiting.emplace(input.get(), 0).second) found.push_back(input.get());
      ++waiting[input.get()];
    }
  }

  Device& device = runtime.device;
  std::unordered_map<Node*, Gradient> gradients;
  gradients[root.producer.get()].plain = std::move(gradient);

  std::vector<Node*> ready{root.producer.get()};
  while (!ready.empty()) {
    Node* node = ready.back();
    ready.pop_back();
    Gradient output_gradient = std::move(gradients[node]);
    gradients.erase(node);
    std::vector<Gradient> input_gradients = node->backward_of(std::move(output_gradient));
    node->release_slots();
    for (std::size_t i = 0; i < node->inputs().size(); ++i) {
      Node* input = node->inputs()[i].get();
      if (!input) continue;
      Gradient& sum = gradients[input];
      if (!sum.plain && sum.quantized.empty()) {
        sum = std::move(input_gradients[i]);
      } else {
        check(!sum.is_quantized() && !input_gradients[i].is_quantized(),
              "backward: a quantized gradient contains only one consumer's part");
        // The sum is a tensor of its own, because another branch may share the gradient.
        sum.plain = add(device, sum.plain, input_gradients[i].plain, runtime.in_flight(input->name()));
      }
      if (--waiting[input] == 0) ready.push_back(input);
    }
  }
}

}  // namespace fp8lab
