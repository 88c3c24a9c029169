#include "autograd/activation_checkpoint.h"

#include <fmt/core.h>

#include <utility>

#include "core/check.h"

namespace fp8lab {
namespace {

// Sets the runtime's mode for a scope.
class ModeScope {
 public:
  ModeScope(Runtime& runtime, Runtime::Mode mode, CheckpointFrame* frame)
      : runtime_(runtime), mode_(runtime.mode), frame_(runtime.frame) {
    runtime_.mode = mode;
    runtime_.frame = frame;
  }
  ~ModeScope() {
    runtime_.mode = mode_;
    runtime_.frame = frame_;
  }
  ModeScope(const ModeScope&) = delete;
  ModeScope& operator=(const ModeScope&) = delete;

 private:
  Runtime& runtime_;
  Runtime::Mode mode_;
  CheckpointFrame* frame_;
};

}  // namespace

CheckpointFrame::CheckpointFrame(Runtime& runtime, std::string name, Forward forward, const Variable& input,
                                 KeptProducts keeps)
    : name_(std::move(name)),
      forward_(std::move(forward)),
      // stash_inner_scales: the region decides by the recipe at its entry, and outside of its layers there is none.
      stashes_scales_(runtime.behaviors.stash_inner_scales),
      keeps_(keeps) {
  const std::string owner = "checkpoint " + name_;
  input_ = {input.value.held_by(runtime.device.holder(HolderKind::kSavedSlot, owner, "input")), input.producer};
  stash_holder_ = runtime.device.holder(HolderKind::kRecipeState, owner, "stashed scales");
  if (keeps != KeptProducts::kNone) kept_holder_ = runtime.device.holder(HolderKind::kSavedSlot, owner, "kept results");
}

std::shared_ptr<CheckpointFrame> CheckpointFrame::record(Node& node, std::size_t slot) {
  waiting_.push_back({node.weak_from_this(), slot});
  return shared_from_this();
}

void CheckpointFrame::replay(const Tensor& tensor) {
  if (next_slot_ >= waiting_.size())
    fail(fmt::format("checkpoint {}: the second forward saves more tensors than the first ({})", name_,
                     waiting_.size()));
  const Waiting& waiting = waiting_[next_slot_++];
  if (const auto node = waiting.node.lock()) node->refill_slot(waiting.slot, tensor);
}

const Tensor& CheckpointFrame::next_stashed() {
  if (next_stash_ >= stash_.size())
    fail(fmt::format("checkpoint {}: the second forward uses more scales than the first stashed ({})", name_,
                     stash_.size()));
  return stash_[next_stash_++];
}

void CheckpointFrame::recompute(Runtime& runtime) {
  check(runtime.mode == Runtime::Mode::kPlain, "checkpoint: regions do not nest");
  const ModeScope scope(runtime, Runtime::Mode::kRecomputing, this);
  next_slot_ = 0;
  next_stash_ = 0;
  next_kept_ = 0;
  products_ = 0;
  forward_(input_);  // its result and graph are dropped; what it saves reaches the first forward's nodes
  if (next_slot_ != waiting_.size())
    fail(fmt::format("checkpoint {}: the second forward saves {} tensors, the first saved {}", name_, next_slot_,
                     waiting_.size()));
}

KeptResult::KeptResult(const Runtime& runtime, Of operation) {
  const bool runs_in_region = runtime.mode == Runtime::Mode::kRecording || runtime.mode == Runtime::Mode::kRecomputing;
  if (!runs_in_region || runtime.frame->keeps_ == KeptProducts::kNone) return;
  const bool is_passed_over = operation == Of::kProduct && runtime.frame->products_++ % 2 == 1;
  if (is_passed_over && runtime.frame->keeps_ == KeptProducts::kEverySecond) return;
  frame_ = runtime.frame;
  found_ = runtime.mode == Runtime::Mode::kRecomputing;
}

void KeptResult::keep(const Tensor& tensor) {
  if (frame_ != nullptr && !found_) frame_->kept_.push_back(tensor.held_by(frame_->kept_holder_));
}

Tensor KeptResult::take(HolderId holder) {
  check(found_, "checkpoint: no result was kept");
  if (frame_->next_kept_ >= frame_->kept_.size())
    fail(fmt::format("checkpoint {}: the second forward takes more results than the first kept ({})", frame_->name_,
                     frame_->kept_.size()));
  Tensor taken = std::exchange(frame_->kept_[frame_->next_kept_++], {});
  taken.rename(holder);
  return taken;
}

Variable checkpoint(Runtime& runtime, std::string name, CheckpointFrame::Forward forward, const Variable& input,
                    KeptProducts keeps) {
  check(runtime.mode == Runtime::Mode::kPlain, "checkpoint: regions do not nest");
  const auto frame = std::make_shared<CheckpointFrame>(runtime, std::move(name), std::move(forward), input, keeps);
  const ModeScope scope(runtime, Runtime::Mode::kRecording, frame.get());
  return frame->run(input);
}

}  // namespace fp8lab
