#include "optim/saved_state_items.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <set>

#include "comm/run.h"
#include "fsdp/row_split.h"
#include "optim/optim_hooks.h"
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
  }
  void add(std::string_view what, Kind kind, const Tensor& tensor) {
    if (tensor)
      items_.push_back(
          {.name = fmt::format("{}: {}", owner_, what), .kind = kind, .parameter = parameter_, .tensor = tensor});
  }
  void add_orientation(std::string_view what, Kind kind, const QuantizedOrientation& orientation) {
    add(fmt::format("{} data", what), kind, orientation.data);
    add(fmt::format("{} scale_inv", what), kind, orientation.scale_inv);
  }
  void add_recipe(std::string_view what, const Tensor& tensor, std::string roles) {
    add(what, Kind::kRecipe, tensor);
    items_.back().roles = std::move(roles);
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
};

/// The types that scales are for, in the order of the scales. Formats with a history differ in nothing else that a
/// scale depends on.
std::string roles_of(const RoleScales& scales) {
  std::string roles;
  for (const QuantFormat& format : scales.roles())
    if (format.amax_source == AmaxSource::kHistory)
      roles += fmt::format("{}{}", roles.empty() ? "" : ",", name(format.dtype));
  return roles;
}

/// Adds recipe state under the name that its module has in the ledger, which includes the pass. Positions in the lists
/// would not do: another model may have the same number of scales, of other layers.
void add_recipe_state(Collector& collector, const Ledger& ledger, const TrainingState& state) {
  std::set<std::string> names;
  for (const auto& all : {state.forward_scales, state.backward_scales})
    for (const RoleScales* scales : all) {
      if (!scales->delayed()) continue;
      const std::string& owner = ledger.holder(scales->delayed()->history().holder()).owner;
      if (!names.insert(owner).second)
        fail(fmt::format("saved state: two modules have scales called '{}'; give each a name of its own", owner));
      collector.of(owner, SavedItem::kNoParameter);
      collector.add_recipe("amax history", scales->delayed()->history(), roles_of(*scales));
      collector.add_recipe("scale", scales->delayed()->scales(), roles_of(*scales));
    }
}

/// Adds the biases of routers. Between steps no tokens are counted.
void add_router_biases(Collector& collector, const TrainingState& state) {
  for (const RouterBiases* biases : state.router_biases) {
    collector.of(biases->name(), SavedItem::kNoParameter);
    collector.add_recipe("biases", biases->values(), "choice");
  }
}

/// What a rank reports of its failure to the others.
struct FailureReport {
  bool out_of_memory = false;
  std::array<char, 4095> message{};  ///< ends with a zero
};

FailureReport report_of(const std::exception_ptr& problem) {
  Failure failure;
  try {
    std::rethrow_exception(problem);
  } catch (...) {
    failure = current_failure();
  }
  FailureReport report{.out_of_memory = failure.out_of_memory};
  constexpr std::string_view kCut = " ...";
  if (failure.reason.size() >= report.message.size())
    failure.reason.replace(report.message.size() - 1 - kCut.size(), std::string::npos, kCut);
  failure.reason.copy(report.message.data(), report.message.size() - 1);
  return report;
}

}  // namespace

std::vector<SavedItem> saved_items(const Runtime& runtime, const TrainingState& state) {
  std::vector<SavedItem> items;
  Collector collector(items);
  if (state.optimizer != nullptr && !std::ranges::equal(state.optimizer->parameters(), state.parameters))
    fail("saved state: the optimizer is over other parameters than those given; give the list it was made with");
  for (std::size_t i = 0; i < state.parameters.size(); ++i) {
    const Parameter& shard = local_shard(*state.parameters[i]);
    collector.of(state.parameters[i]->name, i);
    collector.add("value", Kind::kRows, shard.value);
    collector.add_orientation("row-wise", Kind::kRowwise, shard.quantized.rowwise());
    collector.add_orientation("column-wise", Kind::kTransposed, shard.quantized.columnwise());
    if (state.optimizer == nullptr) continue;
    const AdamState& adam = state.optimizer->state()[i];
    collector.add_moment("exp_avg", adam.exp_avg, adam.exp_avg_scale);
    collector.add_moment("exp_avg_sq", adam.exp_avg_sq, adam.exp_avg_sq_scale);
    collector.add("master", Kind::kRows, adam.master);
  }
  make_optim_hooks(runtime.behaviors)->after_listing(state, items);
  add_recipe_state(collector, runtime.device.ledger(), state);
  add_router_biases(collector, state);
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
    // Ranks that have the experts between them are neighbours.
    const std::int64_t of_part = dim0(unsharded.spec.shape);
    const int parts = unsharded.part.parts;
    std::int64_t next = 0;
    for (int part = 0; part < parts; ++part)
      for (int rank = part; rank < ranks_; rank += parts) {
        firsts_[index(p, rank)] = next;
        next += rows(p, rank);
      }
    if (next != parts * of_part)
      fail(
          fmt::format("saved state: the shards of '{}' have {} rows together, the unsharded parameter has {}; give the "
                      "group it is sharded over",
                      unsharded.name, next, parts * of_part));
  }
}

// If several ranks have tensors under one name, distributed checkpointing keeps the tensor of the rank that has the
// fewest bytes to write so far, the lowest of equals. It goes through the names as rank 0 lists them, the model before
// the optimizer. So rank 0's shards of the model count from the start, and shards of other ranks do not yet. A tensor
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

void fail_on_every_rank(ProcessGroup* group, const std::exception_ptr& problem, std::string_view doing) {
  if (group == nullptr) {
    if (problem) std::rethrow_exception(problem);
    return;
  }
  // The rank that failed, counted from 1: after the reduction the same number on every rank.
  float failed = problem ? static_cast<float>(group->rank() + 1) : 0.0f;
  const ReducePart number{.data = reinterpret_cast<std::byte*>(&failed), .elems = 1};
  group->all_reduce(ReduceOp::kMax, {&number, 1}, "saved state");
  if (failed > 0.0f) {
    const int root = static_cast<int>(failed) - 1;
    FailureReport report = problem ? report_of(problem) : FailureReport{};
    const BroadcastPart part{.data = reinterpret_cast<std::byte*>(&report), .bytes = sizeof report};
    group->broadcast(root, {&part, 1}, "failure of saved state");
    if (problem) std::rethrow_exception(problem);
    report.message.back() = '\0';  // it comes from another process
    const std::string message =
        fmt::format("saved state: rank {} could not {}: {}", group->world_rank(root), doing, report.message.data());
    if (report.out_of_memory) throw OutOfMemory(message);
    fail(message);
  }
}

}  // namespace fp8lab
