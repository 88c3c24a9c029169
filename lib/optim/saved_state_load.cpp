#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <optional>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "core/check.h"
#include "core/float8.h"
#include "core/moment_scale.h"
#include "ops/rewrite.h"
#include "optim/master_forms.h"
#include "optim/saved_state.h"
#include "optim/saved_state_entries.h"
#include "optim/saved_state_items.h"
#include "optim/shards.h"

namespace fp8lab {
namespace {

using Bytes = std::vector<std::byte>;
using Kind = SavedItem::Kind;

template <class T>
Bytes bytes_from(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}
template <class T>
std::vector<T> values_from(const Bytes& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

/// Loads in two steps: stage() reads and checks everything, before apply() writes anything.
class Loader {
 public:
  Loader(const Runtime& runtime, const std::filesystem::path& folder, const TrainingState& state, const RowCuts& cuts,
         int rank)
      : items_(saved_items(runtime, state)),
        state_(state),
        cuts_(cuts),
        rank_(rank),
        manifest_(read_manifest(folder)),
        saved_(folder, manifest_, state, cuts, rank) {}

  void stage() {
    if (state_.optimizer != nullptr && !manifest_.group_steps.empty() &&
        manifest_.group_steps.size() != std::tuple_size_v<Adam::GroupSteps>)
      fail(fmt::format(
          "saved state: its manifest counts the steps of {} parameter groups, and this program has {}; load "
          "it with the program that saved it",
          manifest_.group_steps.size(), std::tuple_size_v<Adam::GroupSteps>));
    refuse_unknown_entries();
    std::size_t begin = 0;
    for (std::size_t end = 0; end < items_.size(); begin = end) {
      while (end < items_.size() && items_[end].parameter == items_[begin].parameter) ++end;
      const std::span<const SavedItem> own = std::span(items_).subspan(begin, end - begin);
      if (own.front().parameter == SavedItem::kNoParameter)
        for (const SavedItem& item : own) stage_recipe(item);
      else
        stage_parameter(own);
    }
  }

  std::int64_t apply(Runtime& runtime) {
    // Before the scales of the recipe are loaded, as modules read those after their parameters.
    for (const auto& [parameter, values] : dequantized_) quantize_anew(runtime, parameter, values);
    for (const auto& [tensor, bytes] : staged_) runtime.device.write_bytes(tensor, bytes);
    for (Parameter* parameter : state_.parameters) local_shard(*parameter).initial.reset();
    quantize_in_place(runtime.device, rewrites_);
    if (state_.optimizer != nullptr) restore_steps(*state_.optimizer);
    return manifest_.step;
  }

 private:
  void restore_steps(Adam& optimizer) const {
    Adam::GroupSteps steps;
    if (manifest_.group_steps.size() == steps.size())
      std::ranges::copy(manifest_.group_steps, steps.begin());
    else
      steps.fill(manifest_.optimizer_steps);
    optimizer.set_group_steps(steps);
  }

  /// What the model lacks would be lost, and is a sign of another model.
  void refuse_unknown_entries() const {
    std::unordered_set<std::string_view> parameters, recipe;
    for (const Parameter* parameter : state_.parameters) parameters.insert(parameter->name);
    for (const SavedItem& item : items_)
      if (item.kind == Kind::kRecipe) recipe.insert(item.name);
    for (const RankFile& file : saved_.files())
      for (const SavedEntry& entry : file.entries()) {
        const std::string_view name = entry.name;
        if (!entry.roles.empty()) {
          if (!recipe.contains(name))
            file.refuse(name,
                        "the model has no such scales or biases; load it into the model and recipe that were saved");
        } else if (!parameters.contains(name.substr(0, name.rfind(": ")))) {
          file.refuse(name, "the model has no such parameter; load it into the model that was saved");
        }
      }
  }

  /// Without a saved master, training would go on from the rounded value. An f32 value is its own master.
  void refuse_unknown_master(std::size_t parameter) const {
    const Tensor& value = local_shard(*state_.parameters[parameter]).value;
    if (state_.optimizer == nullptr || state_.optimizer->state()[parameter].master) return;
    if (value && value.dtype() == DType::kF32) return;
    const std::string name = saved_.request_for(parameter, "master").name;
    for (const RankFile& file : saved_.files())
      if (file.find(name) != nullptr)
        file.refuse(name, "this optimizer keeps no such master; load it with the optimizer options that were saved");
  }

  void stage_parameter(std::span<const SavedItem> items) {
    refuse_unknown_master(items.front().parameter);
    if (stored_in_other_form(items.front())) {
      stage_from_master(items);
      return;
    }
    const RankFile* const as_before = saved_.own_file(saved_.request_for(items.front()));
    bool rebuild = false;
    for (const SavedItem& item : items) {
      const bool eight_bits = item.kind == Kind::kRowwise || item.kind == Kind::kTransposed;
      // If the architecture that saved had no use for this orientation, it is not in the files.
      if (item.kind == Kind::kTransposed && saved_.files().front().find(item.name) == nullptr) rebuild = true;
      if (item.replicated) {
        stage_replicated(item);
      } else if (item.kind == Kind::kDequantized) {
        stage_dequantized(item);
      } else if (eight_bits && (rebuild || as_before == nullptr)) {
        rebuild = true;
      } else if (as_before != nullptr) {
        const SavedEntry& entry = saved_.own_entry(*as_before, saved_.request_for(item));
        saved_.check_bytes(*as_before, item.name, entry.bytes, item.tensor.bytes());
        staged_.emplace_back(item.tensor, as_before->read(entry));
      } else {
        stage_rows(item);
      }
    }
    if (rebuild) cast_again(items.front());
  }

  /// Reverted behaviour: shard_saved_state. Stages a tensor that one rank wrote for all.
  void stage_replicated(const SavedItem& item) {
    const auto has_it = [&](const RankFile& file) { return file.find(item.name) != nullptr; };
    const auto file = std::find_if(saved_.files().begin(), saved_.files().end(), has_it);
    if (file == saved_.files().end()) saved_.entry_in(saved_.files().front(), saved_.request_for(item));  // throws
    const SavedEntry& entry = *file->find(item.name);
    const std::int64_t rows = cuts_.rows(item.parameter, rank_);
    if (entry.global_rows != rows)
      file->refuse(item.name, fmt::format("its size does not match: {} rows were saved, and it has {} here, because it "
                                          "is no shard of a larger tensor in the file; load it on ranks whose shards "
                                          "all have the saved size",
                                          entry.global_rows, rows));
    if (entry.dtype != item.tensor.dtype()) saved_.entry_in(*file, saved_.request_for(item));  // throws
    saved_.check_bytes(*file, item.name, entry.bytes, item.tensor.bytes());
    staged_.emplace_back(item.tensor, file->read(entry));
  }

  /// Reverted behaviour: keep_type_in_moves. Stages the values of a weight that is quantized again.
  void stage_dequantized(const SavedItem& item) {
    const Parameter& unsharded = *state_.parameters[item.parameter];
    Bytes values = saved_.rows_of(saved_.request_for(item));
    // After a load, sharding compares the address of a shard's storage with the address of the flat shard that it
    // keeps, unless the flat shard is quantized (per-tensor scales) or empty. Quantized tensors have buffers and no
    // storage of their own. Tensors with 128 x 128 blocks present a buffer in its place; tensors with 1 x 32 blocks do
    // not.
    if (unsharded.local != nullptr && !values.empty() &&
        !unsharded.local->quantizer->format.columnwise_stored_transposed())
      saved_.files().front().refuse(
          item.name,
          "sharding needs the address of its storage after a load, and a quantized tensor with 1 "
          "x 32 blocks has none; load it into an unsharded model, or into weights in 16 bits");
    dequantized_.emplace_back(item.parameter, std::move(values));
  }
  void quantize_anew(Runtime& runtime, std::size_t parameter, const Bytes& values) const {
    Parameter& shard = local_shard(*state_.parameters[parameter]);
    const Tensor value = runtime.device.allocate({shape_of(shard), shard.spec.dtype}, runtime.workspace(shard.name));
    runtime.device.write_bytes(value, values);
    const Rewrite rewrite{.value = value, .to = &shard.quantized, .quantizer = shard.quantizer.get()};
    quantize_in_place(runtime.device, {&rewrite, 1});
  }

  /// Stages a tensor whose rows are cut again. Scales of moments are staged with their moments.
  void stage_rows(const SavedItem& item) {
    if (item.replicated) return stage_replicated(item);
    if (item.kind == Kind::kRows) staged_.emplace_back(item.tensor, saved_.rows_of(saved_.request_for(item)));
    if (item.kind == Kind::kMoment) stage_moment(item);
  }

  /// True if a weight is in eight bits in the files and not in the model, or the other way round, because of another
  /// cut: Sharding keeps no FP8 weight if the cut would split its blocks.
  bool stored_in_other_form(const SavedItem& first) const {
    const RankFile& file = saved_.files().front();
    if (file.find(first.name) != nullptr) return false;
    EntryRequest other = saved_.request_for(first.parameter, first.kind == Kind::kRowwise ? "value" : "row-wise data");
    const SavedEntry* entry = file.find(other.name);
    if (entry == nullptr) return false;
    other.dtype = entry->dtype;
    return saved_.own_file(other) == nullptr;
  }

  /// Stages a weight from its master. Both forms are roundings of the master, which both have, and which can be cut.
  void stage_from_master(std::span<const SavedItem> items) {
    const SavedItem& first = items.front();
    const std::vector<float> values = saved_masters(first);
    const Tensor *value = nullptr, *master = nullptr;
    for (const SavedItem& item : items) {
      if (item.name.ends_with(": value"))
        value = &item.tensor;
      else if (item.name.ends_with(": master"))
        master = &item.tensor;
      else
        stage_rows(item);
    }
    if (value != nullptr && master != nullptr && master->dtype() == DType::kI16) {
      Parts16 parts = parts16_of(values);
      staged_.emplace_back(*value, std::move(parts.high));
      staged_.emplace_back(*master, std::move(parts.low));
      return;
    }
    if (value != nullptr) staged_.emplace_back(*value, rounded(value->dtype(), values));
    if (master != nullptr) staged_.emplace_back(*master, bytes_from(values));
    if (value == nullptr) cast_again(first);
  }

  /// This rank's rows of the values that Adam updates, in whichever form the files have them.
  std::vector<float> saved_masters(const SavedItem& first) const {
    const RankFile& file = saved_.files().front();
    const EntryRequest value =
        saved_.request_for(first.parameter, "value", local_shard(*state_.parameters[first.parameter]).spec.dtype);
    const EntryRequest master = saved_.request_for(first.parameter, "master"),
                       rest = saved_.request_for(first.parameter, "master", DType::kI16);
    const bool has_value = file.find(value.name) != nullptr;
    if (has_value) saved_.entry_in(file, value);  // throws if it has another type
    if (const SavedEntry* entry = file.find(master.name))
      return entry->dtype == DType::kI16 ? from_parts16(saved_.rows_of(value), saved_.rows_of(rest))
                                         : values_from<float>(saved_.rows_of(master));
    if (has_value && value.dtype == DType::kF32) return values_from<float>(saved_.rows_of(value));
    file.refuse(first.name,
                "one of the two cuts splits its blocks, so it is kept in eight bits only under the other cut, and has "
                "to be made from its master, which was not saved; load it on the number of ranks on which it was "
                "saved, or save "
                "the optimizer with it");
  }

  void cast_again(const SavedItem& item) {
    Parameter& shard = local_shard(*state_.parameters[item.parameter]);
    const Tensor master = state_.optimizer == nullptr ? Tensor() : state_.optimizer->state()[item.parameter].master;
    if (!master)
      saved_.files().front().refuse(item.name,
                                    "it was cut into other rows, and a new cut in eight bits is cast from the master, "
                                    "which this optimizer lacks; load it on the number of ranks on which it was saved");
    rewrites_.push_back(
        {.value = master, .to = &shard.quantized, .quantizer = shard.quantizer.get(), .nominal = shard.spec.dtype});
  }

  /// Converts the elements of several shards, each in units of its own scale, to units of one scale.
  void stage_moment(const SavedItem& item) {
    const DType dtype = item.tensor.dtype();
    std::vector<float> values;
    float absmax = 0.0f;
    saved_.for_rows(saved_.request_for(item), [&](const RankFile& file, std::span<const std::byte> part) {
      const SavedEntry* entry = file.find(item.name + " scale");
      if (entry == nullptr || entry->bytes != sizeof(float))
        file.refuse(item.name, "its scale is absent; the file is damaged");
      const float scale = values_from<float>(file.read(*entry)).front();
      const auto width = size_bytes(dtype);
      for (std::size_t i = 0; i < part.size(); i += width) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, part.data() + i, width);
        const float element = dtype == DType::kF16 ? f16_to_f32({bits}) : e4m3_to_f32(static_cast<std::uint8_t>(bits));
        values.push_back(element * scale);
        const float magnitude = std::fabs(values.back());
        if (magnitude <= kFloatMax && magnitude > absmax) absmax = magnitude;
      }
    });
    const float scale = moment_scale(absmax, dtype);
    Bytes bytes;
    for (const float value : values) {
      const std::uint16_t bits = dtype == DType::kF16 ? f32_to_f16(value / scale).bits : f32_to_e4m3(value / scale);
      const auto* first = reinterpret_cast<const std::byte*>(&bits);
      bytes.insert(bytes.end(), first, first + size_bytes(dtype));
    }
    staged_.emplace_back(item.tensor, std::move(bytes));
    staged_.emplace_back(item.scale, bytes_from(std::vector<float>{scale}));
  }

  /// On the saved number of ranks, each loads its own state. On another number of ranks, all load the state on which
  /// the files agree.
  void stage_recipe(const SavedItem& item) {
    const bool as_many = static_cast<int>(saved_.files().size()) == cuts_.ranks();
    const RankFile& first = as_many ? saved_.files()[static_cast<std::size_t>(rank_)] : saved_.files().front();
    const auto read = [&](const RankFile& file) {
      const SavedEntry& entry = saved_.entry_in(file, saved_.request_for(item));
      if (entry.roles != item.roles)
        file.refuse(item.name, fmt::format("its scales are for {}, the model's for {}; load it into the model and "
                                           "recipe that were saved",
                                           entry.roles, item.roles));
      saved_.check_bytes(file, item.name, entry.bytes, item.tensor.bytes());
      return values_from<float>(file.read(entry));
    };
    std::vector<float> values = read(first);
    if (!as_many) {
      const std::size_t live = item.tensor.shape().rank() == 2 ? static_cast<std::size_t>(item.tensor.cols()) : 0;
      for (const RankFile& file : saved_.files()) {
        const std::vector<float> others = read(file);
        for (std::size_t i = 0; i < values.size(); ++i) {
          if (i < live)
            values[i] = std::isnan(others[i]) || others[i] > values[i] ? others[i] : values[i];
          else if (float_bits(others[i]) != float_bits(values[i]))
            file.refuse(item.name,
                        "it differs from another rank's, so other ranks cannot share it; load it on the number of "
                        "ranks on which it was saved, or train with amaxes reduced over the ranks");
        }
      }
    }
    staged_.emplace_back(item.tensor, bytes_from(values));
  }

  const std::vector<SavedItem> items_;
  const TrainingState& state_;
  const RowCuts& cuts_;
  int rank_;
  Manifest manifest_;
  SavedEntries saved_;
  std::vector<std::pair<Tensor, Bytes>> staged_;
  std::vector<Rewrite> rewrites_;
  std::vector<std::pair<std::size_t, Bytes>> dequantized_;  ///< parameters whose values are quantized again
};

}  // namespace

std::int64_t load_training_state(Runtime& runtime, const std::filesystem::path& folder, const TrainingState& state,
                                 ProcessGroup* shard_group) {
  ProcessGroup* const group = on_host(shard_group);
  const RowCuts cuts(state, group);
  const bool made = state.optimizer != nullptr && state.optimizer->state().empty();
  std::optional<Loader> loader;
  const std::exception_ptr problem = problem_of([&] {
    check(runtime.device.computes(), "saved state: this device computes nothing, so nothing can be loaded into it");
    if (state.optimizer != nullptr) state.optimizer->make_state(runtime);
    loader.emplace(runtime, folder, state, cuts, group == nullptr ? 0 : group->rank());
    loader->stage();
  });
  try {
    fail_on_every_rank(group, problem, "load its part of the saved state");
  } catch (...) {
    loader.reset();
    if (made) state.optimizer->drop_state();
    throw;
  }
  return loader->apply(runtime);
}

}  // namespace fp8lab
