#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "harness/eager/ddp.h"
#include "harness/eager/fsdp2.h"
#include "harness/eager/program.h"

namespace fp8lab::eager {

/// A program that trains: its setup, its optimizer and its steps (program.cpp), the passes of a micro-batch
/// (passes.cpp), and its loss (loss.cpp).
class Training {
 public:
  /// `most_passes`: of memory_of(); `ring_rank`: of Numbers.
  Training(const CellConfig& cell, Program program, Operators operators, std::int64_t most_passes, Bytes ring_rank,
           const Engine& engine = {});

  Memory run();

 private:
  bool has_embedding() const { return n_.vocabulary > 0; }
  /// The last norm and the head are a group of FSDP2.
  bool has_group_of_head() const { return n_.sharded && first_ != nullptr; }
  void make_modules();
  std::vector<Bytes> gradients_in_backward() const;
  /// True if no gradient passes the last norm: all layers are frozen.
  bool ends_at_norm() const { return n_.frozen > 0 && n_.frozen == n_.layers; }
  /// Groups of modules in the order in which the program makes them; of a module the group of experts last.
  std::vector<Group*> in_order();
  /// Elements that this rank holds of each parameter, or of each that takes a gradient.
  std::vector<Bytes> elements(bool only_trained);
  void make_rotary_table();
  /// A tensor of `bytes` an element for each parameter that takes a gradient.
  std::vector<Block> list_of(Bytes bytes, Owner owner);
  void free_list(std::vector<Block>& list);
  void make_optimizer_state();
  /// The same of Transformer Engine's FusedAdam, with its master weights.
  void make_state_of_engine();
  /// Bytes that the ranks that share a layer's experts send in a step: counts of rows, and rows to experts and back, in
  /// both passes.
  Bytes moved_tokens() const;
  /// Calls of attention in a step, in the forward pass and recomputed, and in the backward pass.
  Bytes attentions(bool in_backward) const;
  /// What ranks that have sequences between them gather and send: keys and values, and their gradients.
  void add_ring_traffic();
  /// What the collectives of the last step carried.
  void add_traffic();
  void pass(std::int64_t step, std::int64_t micro_batch, std::int64_t steps);
  void forward();
  void backward();
  /// Ends the backward that has reached a frozen layer.
  void end_backward_at_frozen();
  void loss_forward(Block output);
  Block loss_backward();
  /// Cross-entropy of the logits of `tokens` tokens: what its backward needs, and its backward.
  Block cross_entropy(Bytes tokens);
  Block cross_entropy_backward(Bytes tokens, Block log_probabilities);
  /// Head, loss and their backward for one part of the tokens after the other, which frees the last norm's output.
  /// Returns the gradient of that output.
  Block chunked_loss();
  Block norm_backward(Block of_normed);
  Block head_backward(Block of_logits);
  void embedding_backward(Block gradient);
  void update();
  /// The module whose backward follows the backward of `layer`, in the order in which forward ended.
  Module* before(Bytes layer);
  /// The module that is gathered while `layer` computes in forward. A program whose ranks have experts between them
  /// gathers ahead itself: it copies counts to the host, and FSDP2 would not begin its gathers meanwhile.
  Module* after(Bytes layer);
  void add_gradient(Parameter& parameter);
  void mark(const char* name) { memory_.figures[name] = heap_.live(); }

  const CellConfig& cell_;
  const Numbers n_;
  Heap heap_;
  std::int64_t passes_;  ///< micro-batches of a step that are followed; the rest repeats the last one of them
  Communication shared_;
  Engine engine_;
  std::vector<std::unique_ptr<TrainedLayer>> layers_;
  Parameter embedding_, head_, positions_;
  std::vector<Parameter> norm_;
  /// Modules of a torchtitan program: `first_` has the embedding, `last_` the norm and the head. The worker's root has
  /// all of them, in `last_`. A tied head is with the embedding.
  std::deque<Module> modules_;  ///< the layers
  std::deque<Module> ends_;
  Module* first_ = nullptr;
  Module* last_ = nullptr;
  std::optional<Buckets> buckets_;  ///< under DistributedDataParallel
  bool reduces_ = false;            ///< the last micro-batch of a step is in backward, which fills them

  Block tokens_ = 0, targets_ = 0, stream_ = 0, normed_ = 0, log_probabilities_ = 0, loss_ = 0, output_ = 0,
        weights_of_loss_ = 0, of_normed_ = 0;
  SavedNorm saved_;  ///< tensors of the last norm
  std::vector<Block> state_, masters_;
  Block of_tied_ = 0;  ///< the head's gradient of a tied weight, which waits for the embedding's before both are added
  Memory memory_;
};

}  // namespace fp8lab::eager
