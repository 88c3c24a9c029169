#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <exception>

#include "core/check.h"
#include "fsdp/row_split.h"
#include "ops/quantize.h"
#include "optim/saved_state.h"
#include "optim/saved_state_items.h"
#include "optim/shards.h"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

int rank_of(const ProcessGroup* group) { return group == nullptr ? 0 : group->rank(); }

/// The number in "save-<n>.rank-...", or 0.
std::int64_t save_number_of(const std::string& name) {
  constexpr std::string_view kPrefix = "save-";
  if (name.rfind(kPrefix, 0) != 0) return 0;
  std::int64_t number = 0;
  std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), number);
  return number;
}

/// The files of saves in the folder, as far as it can be read.
std::vector<fs::path> files_of_saves(const fs::path& folder, std::error_code& error) {
  std::vector<fs::path> files;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error))
    if (save_number_of(entry->path().filename().string()) != 0) files.push_back(entry->path());
  return files;
}

/// A number that no file in the folder has, including files of saves that were killed.
std::int64_t next_save_number(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error || !fs::is_directory(folder))
    fail(fmt::format("saved state: {}: this folder cannot be made: {}", folder.string(), error.message()));
  std::int64_t last = 0;
  for (const fs::path& file : files_of_saves(folder, error))
    last = std::max(last, save_number_of(file.filename().string()));
  if (error) fail(fmt::format("saved state: {}: this folder cannot be read: {}", folder.string(), error.message()));
  return last + 1;
}

std::vector<std::byte> bytes_of(Runtime& runtime, const TrainingState& state, const SavedItem& item) {
  if (item.kind != SavedItem::Kind::kDequantized) return runtime.device.read_bytes(item.tensor);
  const Parameter& shard = local_shard(*state.parameters[item.parameter]);
  if (shape_of(shard).numel() == 0) return {};
  return runtime.device.read_bytes(
      dequantize(runtime.device, shard.quantized.rowwise_operand(), shard.spec.dtype, runtime.workspace(shard.name)));
}

std::vector<EntryToWrite> entries_of(Runtime& runtime, const TrainingState& state, const RowCuts& cuts, int rank) {
  const std::vector<SavedItem> items = saved_items(runtime, state);
  const std::vector<int> writers = writers_of_replicated(items, state, cuts);
  std::vector<EntryToWrite> entries;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const SavedItem& item = items[i];
    if (item.replicated && writers[i] != rank) continue;
    EntryToWrite& to_write = entries.emplace_back();
    to_write.entry.name = item.name;
    to_write.entry.dtype = dtype_of(item, state);
    to_write.entry.roles = item.roles;
    if (item.parameter != SavedItem::kNoParameter) {
      const std::int64_t rows = cuts.rows(item.parameter, rank);
      to_write.entry.global_rows = item.replicated ? rows : dim0(state.parameters[item.parameter]->entire_shape());
      to_write.entry.first_row = item.replicated ? 0 : cuts.first(item.parameter, rank);
      to_write.entry.rows = rows;
    }
    to_write.bytes = bytes_of(runtime, state, item);
  }
  return entries;
}

/// Gathers every rank's row to every rank.
std::vector<RankFileRow> gather_rows(ProcessGroup* group, std::int64_t save_number, const RankFileRow& own) {
  if (group == nullptr) return {own};
  const std::int64_t sent[2] = {own.bytes, static_cast<std::int64_t>(own.header_sum)};
  std::vector<std::int64_t> all(2 * static_cast<std::size_t>(group->size()));
  std::vector<std::int64_t> offsets;
  for (int rank = 0; rank <= group->size(); ++rank) offsets.push_back(rank * static_cast<std::int64_t>(sizeof sent));
  const GatherPart part{.from = reinterpret_cast<const std::byte*>(sent),
                        .to = reinterpret_cast<std::byte*>(all.data()),
                        .offsets_bytes = offsets};
  group->all_gather({&part, 1}, "files of the save");
  std::vector<RankFileRow> rows;
  for (int rank = 0; rank < group->size(); ++rank)
    rows.push_back({.name = rank_file_name(save_number, rank),
                    .bytes = all[2 * static_cast<std::size_t>(rank)],
                    .header_sum = static_cast<std::uint64_t>(all[2 * static_cast<std::size_t>(rank) + 1])});
  return rows;
}

/// The optimizer's steps. All ranks have them, so the rank whose file is smallest provides them;
/// torch.distributed.checkpoint, too, has values that every rank has a copy of written by the rank with least to write.
Adam::GroupSteps steps_of_lightest(ProcessGroup* group, const std::vector<RankFileRow>& files, Adam::GroupSteps own) {
  if (group == nullptr) return own;
  const auto lightest = std::ranges::min_element(files, {}, &RankFileRow::bytes) - files.begin();
  const BroadcastPart part{.data = reinterpret_cast<std::byte*>(own.data()), .bytes = sizeof own};
  group->broadcast(static_cast<int>(lightest), {&part, 1}, "steps of the optimizer");
  return own;
}

/// True if the manifest names this save. It may do so although writing it failed: its rename can succeed and the fsync
/// after it fail.
bool is_in_place(const fs::path& folder, std::int64_t save_number) {
  try {
    return read_manifest(folder).save_number == save_number;
  } catch (const Error&) {
    return false;
  }
}

/// Removes files of saves that the present manifest does not name.
void remove_others(const fs::path& folder, std::int64_t save_number) {
  std::error_code ignored;
  for (const fs::path& file : files_of_saves(folder, ignored))
    if (save_number_of(file.filename().string()) != save_number) fs::remove(file, ignored);
}

/// Makes the optimizer's state for a save before the first step, and drops it afterwards.
class StateForSaving {
 public:
  StateForSaving(Runtime& runtime, Adam* optimizer)
      : optimizer_(optimizer), made_(optimizer && optimizer->state().empty()) {
    if (optimizer_ == nullptr) return;
    try {
      optimizer_->make_state(runtime);
    } catch (...) {  // the memory may end in the middle
      drop();
      throw;
    }
  }
  ~StateForSaving() { drop(); }
  StateForSaving(const StateForSaving&) = delete;
  StateForSaving& operator=(const StateForSaving&) = delete;

 private:
  void drop() {
    if (made_) optimizer_->drop_state();
  }

  Adam* optimizer_;
  bool made_;
};

}  // namespace

void save_training_state(Runtime& runtime, const fs::path& folder, const TrainingState& state,
                         ProcessGroup* shard_group) {
  ProcessGroup* const group = on_host(shard_group);
  const int rank = rank_of(group);
  const RowCuts cuts(state, group);
  std::int64_t save_number = 0;
  std::exception_ptr problem = problem_of([&] {
    if (rank == 0) save_number = next_save_number(folder);
  });
  fail_on_every_rank(group, problem, "make the folder of saved state");
  if (group != nullptr) {
    const BroadcastPart part{.data = reinterpret_cast<std::byte*>(&save_number), .bytes = sizeof save_number};
    group->broadcast(0, {&part, 1}, "number of the save");
  }

  const std::string name = rank_file_name(save_number, rank);
  RankFileRow own;
  const auto agree_or_remove = [&](const std::exception_ptr& why, std::string_view doing) {
    try {
      fail_on_every_rank(group, why, doing);
    } catch (...) {
      std::error_code ignored;
      if (!is_in_place(folder, save_number)) fs::remove(folder / name, ignored);
      throw;
    }
  };
  problem = problem_of([&] {
    const StateForSaving made(runtime, state.optimizer);
    std::vector<EntryToWrite> entries = entries_of(runtime, state, cuts, rank);
    own = write_rank_file(folder, name, entries);
  });
  agree_or_remove(problem, "write its part of the saved state");

  Manifest manifest{.save_number = save_number,
                    .step = state.step,
                    .optimizer_steps = state.optimizer == nullptr ? 0 : state.optimizer->steps(),
                    .group_steps = {},
                    .files = gather_rows(group, save_number, own)};
  if (state.optimizer != nullptr) {
    const Adam::GroupSteps steps = steps_of_lightest(group, manifest.files, state.optimizer->group_steps());
    manifest.group_steps.assign(steps.begin(), steps.end());
  }
  problem = problem_of([&] {
    if (rank == 0) write_manifest(folder, manifest);
  });
  agree_or_remove(problem, "write the manifest of the saved state");
  if (rank == 0) remove_others(folder, save_number);
}

}  // namespace fp8lab
