#pragma once

#include <deque>
#include <vector>

#include "harness/eager/layer.h"

// FSDP2 (torch.distributed.fsdp.fully_shard) around groups of parameters, as _fsdp_param_group.py and
// _fsdp_collectives.py of PyTorch 2.15 have it. 2.11 allocates the same for modules with one group, and has no modules
// with two.
namespace fp8lab::eager {

/// Bytes of the full arrays that are all-gathered and reduce-scattered, padding included, and of the shards of
/// gradients that replicas all-reduce.
struct Moved {
  Bytes gathered = 0, reduced = 0, all_reduced = 0;
  Bytes received = 0, sent = 0;  ///< what other ranks have of the first two

  /// Adds `times` times the difference from `before`.
  void repeat_since(const Moved& before, Bytes times) {
    gathered += times * (gathered - before.gathered);
    reduced += times * (reduced - before.reduced);
    all_reduced += times * (all_reduced - before.all_reduced);
    received += times * (received - before.received);
    sent += times * (sent - before.sent);
  }
};

/// What all groups share.
struct Communication {
  Block gathered = 0;  ///< output of the last all-gather of forward, which lives until the next one is copied out
  /// Inputs of the last reduce-scatters, of one module, which live until the next module reduces.
  std::vector<Block> reduced;
  /// What replicas add up, in the type of the reduction, if no gradient holds it: it lives until backward has ended.
  std::vector<Block> all_reduced;
  Moved moved;  ///< in this step

  void free_reduced(Heap& heap);
  void free_all_reduced(Heap& heap);
  void finalize_backward(Heap& heap);
};

/// The parameters that are gathered and reduced together. Without FSDP2 it only holds them.
class Group {
 public:
  struct Options {
    bool reshards = true;  ///< free the unsharded parameters after forward
    Bytes shards = 1;
    bool is_last = true;  ///< the module's last group, whose backward ends first
  };
  Group(const Numbers& numbers, Heap& heap, Communication& shared, std::vector<Parameter*> parameters, Options options);

  void make();  ///< parameters, as the model is built

  void before_forward();
  void after_forward();
  /// Gathers the parameters, if they are not there, while the group before this one computes.
  void prefetch();
  void before_backward();
  void after_backward();
  /// A part of the loss has made the gradient of `parameter`, one of this group. FSDP2 adds up the parts in the type of
  /// the reduction.
  void add_part(Parameter& parameter);
  /// All parts are added up. `reduces`: the sum is reduced now, and after_backward() reduces the other gradients.
  void end_parts(Parameter& parameter, bool reduces);
  void reshard();

  /// The end of backward: frees what was gathered for a backward that did not come.
  void finalize_backward();

  /// Elements that a rank holds of each parameter, with padding; only of parameters that take a gradient, or of all.
  std::vector<Bytes> shard_elements(bool only_trained) const;
  void drop_gradients();
  Bytes shards() const { return options_.shards; }

 private:
  void copy_out(bool in_forward);
  /// Reduces the gradients of `parameters`. `sum` is what earlier micro-batches have reduced of them.
  void reduce(const std::vector<Parameter*>& parameters, std::vector<Block>& sum);
  Bytes shard_of(const Parameter& parameter) const;
  /// What a rank sends of a parameter.
  Bytes gathered_bytes(const Parameter& parameter) const;

  const Numbers& numbers_;
  Heap& heap_;
  Communication& shared_;
  std::vector<Parameter*> parameters_;
  Options options_;
  bool is_unsharded_ = false, is_pending_ = false;
  Block gathering_ = 0;  ///< output of this group's all-gather, until it is copied out
  std::vector<Block> shards_, gradients_;
  std::vector<Block> gradients_of_parts_;  ///< the gradient that a loss in parts has reduced
  Block added_up_ = 0;                     ///< the sum over parts so far, in the type of the reduction
};

/// The groups of a module that FSDP2 wraps: one for each mesh over which it shards parameters.
class Module {
 public:
  Module(const Numbers& numbers, Heap& heap, Communication& shared, const std::vector<Parameter*>& parameters,
         bool reshards);

  /// `next`: the module whose forward follows, if it is gathered ahead; or nullptr.
  void before_forward(Module* next);
  void after_forward();
  /// `next`: the module whose backward follows, which is gathered ahead; or nullptr.
  void before_backward(Module* next);
  void after_backward();
  void reshard();
  void finalize_backward();
  /// FSDP2 gathers ahead the group that ended last in forward, if the program does not say what it gathers ahead.
  void prefetch_last() { groups_.back().prefetch(); }

  std::deque<Group>& groups() { return groups_; }

 private:
  std::deque<Group> groups_;
};

}  // namespace fp8lab::eager
