#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "autograd/node.h"

namespace fp8lab {

/// One checkpointed region, non-reentrant. The nodes of its first forward survive without their saved tensors. In
/// backward, the first of them that needs a saved tensor runs the region's forward again; the tensors that this forward
/// saves are handed to the nodes of the first one, in order, and its own graph is dropped. The region's input lives as
/// long as any of its nodes still has slots.
///
/// Scales from an amax history have changed by the time of recomputation. So the first forward stashes its scales, and
/// the second one uses them in order. Layers choose their recipe inside the region. Hazard: at the region's entry it is
/// unknown whether they will quantize. Rule: scales are stashed as each layer begins.
class CheckpointFrame : public std::enable_shared_from_this<CheckpointFrame> {
 public:
  using Forward = std::function<Variable(const Variable&)>;

  CheckpointFrame(Runtime& runtime, std::string name, Forward forward, const Variable& input);

  Variable run(const Variable& input) const { return forward_(input); }

  /// While recording: registers the next slot, whose tensor is not kept.
  std::shared_ptr<CheckpointFrame> record(Node& node, std::size_t slot);
  /// While recomputing: hands the next slot's tensor to the node that waits for it.
  void replay(const Tensor& tensor);

  /// While recording: whether scales are stashed.
  bool stashes_scales() const { return stashes_scales_; }
  void stash(Tensor scales) { stash_.push_back(std::move(scales)); }
  const Tensor& next_stashed();
  HolderId stash_holder() const { return stash_holder_; }

  void recompute(Runtime& runtime);

 private:
  struct Waiting {
    std::weak_ptr<Node> node;
    std::size_t slot = 0;
  };

  std::string name_;
  Forward forward_;
  Variable input_;
  HolderId stash_holder_ = 0;
  bool stashes_scales_;
  std::vector<Waiting> waiting_;
  std::vector<Tensor> stash_;
  std::size_t next_slot_ = 0;
  std::size_t next_stash_ = 0;
};

/// Runs `forward` on `input` as a checkpointed region.
Variable checkpoint(Runtime& runtime, std::string name, CheckpointFrame::Forward forward, const Variable& input);

}  // namespace fp8lab
