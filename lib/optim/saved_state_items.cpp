#include "optim/saved_state_items.h"

#include <fmt/core.h>

#include <algorithm>

#include "fsdp/row_split.h"
#include "optim/shards.h"

namespace fp8lab {
namespace {

using Kind = SavedItem::Kind;

/// Adds those tensors that exist.
class Collector {
 public:
  explicit Collector(std::vector<SavedItem>& items) : items_(items) {}

  void of(std::string_view owner, std::size_t parameter) {
    owner_ = owner;
    parameter_ = parameter;
    replicated_ = false;
  }
  /// Describes what is added next as tensors of their own.
  void replicate() { replicated_ = true; }
  void add(std::string_view what, Kind kind, const Tensor& tensor) {
    if (tensor)
      items_.push_back({.name = fmt::format("{}: {}", owner_, what),
                        .kind = kind,
                        .parameter = parameter_,
                        .tensor = tensor,
                        .replicated = replicated_});
  }
  void add_dequantized() {
    items_.push_back(
        {.name = fmt::format("{}: value", owner_), .kind = Kind::kDequantized, .parameter = parameter_, .tensor = {}});
  }
  void add_orientation(std::string_view what, Kind kind, const QuantizedOrientation& orientation) {
    add(fmt::format("{} data", what), kind, orientation.data);
    add(fmt::format("{} scale_inv", what), kind, orientation.scale_inv);
  }
  void add_moment(std::string_view what, const Tensor& elements, const Tensor& scale) {
    add(what, scale ? Kind::kMoment : Kind::kRows, elements);
    if (elements) items_.back().scale = scale;
    add(fmt::format("{} scale", what), Kind::kScale, scale);
  }

 private:
  std::vector<SavedItem>& items_;
  std::string owner_;
  std::size_t parameter_ = SavedItem::kNoParameter;
  bool replicated_ = false;
};

void add_recipe_state(Collector& collector, std::string_view pass, std::span<RoleScales* const> all) {
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!all[i]->delayed()) continue;
    collector.of(fmt::format("{} scales {}", pass, i), SavedItem::kNoParameter);
    collector.add("amax history", Kind::kRecipe, all[i]->delayed()->history());
    collector.add("scale", Kind::kRecipe, all[i]->delayed()->scales());
  }
}

}  // namespace

std::vector<SavedItem> saved_items(const TrainingState& state, const Behaviors& behaviors) {
  std::vector<SavedItem> items;
  Collector collector(items);
  if (state.optimizer != nullptr && !std::ranges::equal(state.optimizer->parameters(), state.parameters))
    fail("saved state: the optimizer is over other parameters than those given; give the list it was made with");
  for (std::size_t i = 0; i < state.parameters.size(); ++i) {
    const Parameter& shard = local_shard(*state.parameters[i]);
    collector.of(state.parameters[i]->name, i);
    collector.add("value", Kind::kRows, shard.value);
    if (shard.in_eight_bits() && !behaviors.keep_type_in_moves) {
      // Reverted behaviour: a quantized tensor on its way to the host is dequantized, and a file holds what arrives.
      collector.add_dequantized();
    } else {
      collector.add_orientation("row-wise", Kind::kRowwise, shard.quantized.rowwise());
      collector.add_orientation("column-wise", Kind::kTransposed, shard.quantized.columnwise());
    }
    if (state.optimizer == nullptr) continue;
    // Reverted behaviour: the state of a sharded parameter lacks the description that the parameter has, of the rows
    // that it covers of which tensor.
    if (state.parameters[i]->local != nullptr && !behaviors.shard_saved_state) collector.replicate();
    const AdamState& adam = state.optimizer->state()[i];
    collector.add_moment("exp_avg", adam.exp_avg, adam.exp_avg_scale);
    collector.add_moment("exp_avg_sq", adam.exp_avg_sq, adam.exp_avg_sq_scale);
    collector.add("master", Kind::kRows, adam.master);
  }
  add_recipe_state(collector, "forward", state.forward_scales);
  add_recipe_state(collector, "backward", state.backward_scales);
  return items;
}

DType dtype_of(const SavedItem& item, const TrainingState& state) {
  return item.kind == Kind::kDequantized ? local_shard(*state.parameters[item.parameter]).spec.dtype
                                         : item.tensor.dtype();
}

RowCuts::RowCuts(const TrainingState& state, ProcessGroup* group)
    : parameters_(state.parameters.size()), ranks_(group == nullptr ? 1 : group->size()) {
  std::vector<std::int64_t> own;
  for (const Parameter* parameter : state.parameters) own.push_back(dim0(shape_of(local_shard(*parameter))));
  rows_ = own;
  if (group != nullptr) {
    check(group->moves_data(), "saved state: these ranks move no data, so there is nothing to save or load");
    rows_.resize(own.size() * static_cast<std::size_t>(ranks_));
    std::vector<std::int64_t> offsets;
    for (int rank = 0; rank <= ranks_; ++rank)
      offsets.push_back(rank * static_cast<std::int64_t>(own.size() * sizeof own[0]));
    const GatherPart part{.from = reinterpret_cast<const std::byte*>(own.data()),
                          .to = reinterpret_cast<std::byte*>(rows_.data()),
                          .offsets_bytes = offsets};
    group->all_gather({&part, 1}, "rows of shards");
  }
  firsts_.resize(rows_.size());
  for (std::size_t p = 0; p < parameters_; ++p) {
    const Parameter& unsharded = *state.parameters[p];
    if (unsharded.local == nullptr) continue;  // every rank has all of it, from row 0
    std::int64_t next = 0;
    for (int rank = 0; rank < ranks_; ++rank) {
      firsts_[index(p, rank)] = next;
      next += rows(p, rank);
    }
    if (next != dim0(unsharded.spec.shape))
      fail(
          fmt::format("saved state: the shards of '{}' have {} rows together, the unsharded parameter has {}; give the "
                      "group it is sharded over",
                      unsharded.name, next, dim0(unsharded.spec.shape)));
  }
}

// Of tensors that several ranks have under one name, distributed checkpointing keeps the one on the rank that has the
// fewest bytes to write so far, the lowest of equals. It goes through the names as rank 0 lists them, the model before
// the optimizer. So rank 0's shards of the model count from the start, and those of other ranks do not yet. A tensor
// counts with its size on the last rank that has it, and as one byte if it is empty there. Moments count in f32, as
// which they are listed.
std::vector<int> writers_of_replicated(const std::vector<SavedItem>& items, const TrainingState& state,
                                       const RowCuts& cuts) {
  const auto elems = [&](std::size_t parameter, int rank) {
    return cuts.rows(parameter, rank) * row_elems(state.parameters[parameter]->spec.shape);
  };
  std::vector<std::int64_t> bytes(static_cast<std::size_t>(cuts.ranks()));
  for (std::size_t i = 0; i < state.parameters.size(); ++i)
    bytes.front() += elems(i, 0) * static_cast<std::int64_t>(size_bytes(state.parameters[i]->spec.dtype));
  std::vector<int> writers(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    const SavedItem& item = items[i];
    if (!item.replicated) continue;
    if (item.kind == Kind::kScale) {  // belongs to the moment before it
      writers[i] = writers[i - 1];
      continue;
    }
    const auto fewest = std::min_element(bytes.begin(), bytes.end());
    writers[i] = static_cast<int>(fewest - bytes.begin());
    const std::int64_t width = item.tensor.dtype() == DType::kI16 ? 2 : 4;
    *fewest += std::max<std::int64_t>(1, elems(item.parameter, cuts.ranks() - 1) * width);
  }
  return writers;
}

void fail_on_every_rank(ProcessGroup* group, const std::string& problem, std::string_view doing) {
  float failed = 0.0f;  // the rank that failed, counted from 1
  if (group != nullptr) {
    failed = problem.empty() ? 0.0f : static_cast<float>(group->rank() + 1);
    const ReducePart part{.data = reinterpret_cast<std::byte*>(&failed), .elems = 1};
    group->all_reduce(ReduceOp::kMax, {&part, 1}, "saved state");
  }
  if (!problem.empty()) fail(problem);
  if (failed > 0.0f)
    fail(fmt::format("saved state: rank {} could not {}; its own error says why",
                     group->world_rank(static_cast<int>(failed) - 1), doing));
}

}  // namespace fp8lab
