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
/// A region may keep the results of matrix products and of attention (selective recomputation). The second forward then
/// takes these results and computes everything else again: see KeptResult.
///
/// Scales from an amax history have changed by the time of recomputation. So the first forward stashes its scales, and
/// the second one uses them in order. Layers choose their recipe inside the region. Hazard: at the region's entry it is
/// unknown whether they will quantize. Rule: scales are stashed as each layer begins.
enum class KeptProducts {
  kNone,         ///< and nothing of attention either
  kAll,          ///< and the results of attention
  kEverySecond,  ///< the first, the third ... of a region, and the results of attention
};

class CheckpointFrame : public std::enable_shared_from_this<CheckpointFrame> {
 public:
  using Forward = std::function<Variable(const Variable&)>;

  CheckpointFrame(Runtime& runtime, std::string name, Forward forward, const Variable& input,
                  KeptProducts keeps = KeptProducts::kNone);

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
  friend class KeptResult;
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
  KeptProducts keeps_;
  HolderId kept_holder_ = 0;
  std::vector<Tensor> kept_;  // the second forward takes them out
  std::size_t products_ = 0;  // run by the current forward so far
  std::size_t next_kept_ = 0;
  std::size_t next_slot_ = 0;
  std::size_t next_stash_ = 0;
};

/// The result of an operation that a selectively recomputed region may keep. An operation makes one of these in each
/// forward, before it computes. It takes its tensors from there if they are found; otherwise it computes them, and
/// passes each to keep(), which does nothing unless the region's first forward runs and keeps this operation's result.
class KeptResult {
 public:
  enum class Of { kProduct, kAttention };
  KeptResult(const Runtime& runtime, Of operation);

  /// True in a second forward, if the first one kept the result.
  bool found() const { return found_; }
  /// The next tensor that was kept, with `holder` in place of the region.
  Tensor take(HolderId holder);
  void keep(const Tensor& tensor);

 private:
  CheckpointFrame* frame_ = nullptr;  // null: nothing is kept
  bool found_ = false;
};

/// Runs `forward` on `input` as a checkpointed region.
Variable checkpoint(Runtime& runtime, std::string name, CheckpointFrame::Forward forward, const Variable& input,
                    KeptProducts keeps = KeptProducts::kNone);

}  // namespace fp8lab
