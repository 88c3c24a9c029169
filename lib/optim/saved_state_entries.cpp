#include "optim/saved_state_entries.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <utility>

#include "fsdp/row_split.h"

namespace fp8lab {

SavedEntries::SavedEntries(const std::filesystem::path& folder, const Manifest& manifest, const TrainingState& state,
                           const RowCuts& cuts, int rank)
    : state_(state), cuts_(cuts), rank_(rank) {
  for (const RankFileRow& row : manifest.files) files_.emplace_back(folder, row);
}

EntryRequest SavedEntries::request_for(const SavedItem& item) const {
  return {item.name, dtype_of(item, state_), item.parameter};
}

EntryRequest SavedEntries::request_for(std::size_t parameter, std::string_view what, DType dtype) const {
  return {fmt::format("{}: {}", state_.parameters[parameter]->name, what), dtype, parameter};
}

const SavedEntry& SavedEntries::entry_in(const RankFile& file, const EntryRequest& request) const {
  const SavedEntry* entry = file.find(request.name);
  if (entry == nullptr)
    file.refuse(request.name,
                "there is no such entry, but the model has such a tensor; load it into the model, recipe and optimizer "
                "options that were saved");
  if (entry->dtype != request.dtype)
    file.refuse(request.name, fmt::format("it is {}, the model has {}; load it into the model that was saved",
                                          name(entry->dtype), name(request.dtype)));
  if (request.parameter != SavedItem::kNoParameter) {
    const std::int64_t rows = dim0(state_.parameters[request.parameter]->entire_shape());
    if (entry->global_rows != rows)
      file.refuse(request.name,
                  fmt::format("its parameter has {} rows, the model's {}; load it into the model that was saved",
                              entry->global_rows, rows));
  }
  return *entry;
}

void SavedEntries::check_bytes(const RankFile& file, std::string_view entry, std::int64_t actual,
                               std::int64_t expected) {
  if (actual != expected)
    file.refuse(entry,
                fmt::format("{} B, and the model has {} B; load it into the model that was saved", actual, expected));
}

const RankFile* SavedEntries::own_file(const EntryRequest& request) const {
  const auto shard = [&](int rank) {
    return std::pair(cuts_.first(request.parameter, rank), cuts_.rows(request.parameter, rank));
  };
  std::map<std::pair<std::int64_t, std::int64_t>, const RankFile*> saved;  // by first row and rows
  for (const RankFile& file : files_) {
    const SavedEntry& entry = entry_in(file, request);
    saved.try_emplace({entry.first_row, entry.rows}, &file);
  }
  for (int rank = 0; rank < cuts_.ranks(); ++rank)
    if (!saved.contains(shard(rank))) return nullptr;
  return saved.at(shard(rank_));
}

const SavedEntry& SavedEntries::own_entry(const RankFile& file, const EntryRequest& request) const {
  const SavedEntry& entry = entry_in(file, request);
  if (entry.first_row != cuts_.first(request.parameter, rank_) || entry.rows != cuts_.rows(request.parameter, rank_))
    file.refuse(request.name, "it has other rows than the rest of its parameter; the file is damaged");
  return entry;
}

void SavedEntries::for_rows(const EntryRequest& request,
                            const std::function<void(const RankFile&, std::span<const std::byte>)>& use) const {
  std::int64_t next = cuts_.first(request.parameter, rank_);
  const std::int64_t end = next + cuts_.rows(request.parameter, rank_);
  const std::int64_t row_bytes = row_elems(state_.parameters[request.parameter]->spec.shape) *
                                 static_cast<std::int64_t>(size_bytes(request.dtype));
  const auto has_next = [&](const RankFile& file) {
    const SavedEntry& entry = entry_in(file, request);
    return entry.first_row <= next && next < entry.first_row + entry.rows;
  };
  auto file = files_.begin();
  while (next < end) {
    // Ranks have their rows in order, so what comes next is hardly ever before the file of the rows before.
    file = std::find_if(file, files_.end(), has_next);
    if (file == files_.end()) file = std::find_if(files_.begin(), files_.end(), has_next);
    if (file == files_.end()) files_.front().refuse(request.name, fmt::format("row {} is in no rank's file", next));
    const SavedEntry& entry = entry_in(*file, request);
    check_bytes(*file, request.name, entry.bytes, entry.rows * row_bytes);
    const std::vector<std::byte> bytes = file->read(entry);
    const std::int64_t stop = std::min(end, entry.first_row + entry.rows);
    use(*file, std::span(bytes).subspan(static_cast<std::size_t>((next - entry.first_row) * row_bytes),
                                        static_cast<std::size_t>((stop - next) * row_bytes)));
    next = stop;
  }
}

std::vector<std::byte> SavedEntries::rows_of(const EntryRequest& request) const {
  std::vector<std::byte> rows;
  for_rows(request, [&](const RankFile&, std::span<const std::byte> part) {
    rows.insert(rows.end(), part.begin(), part.end());
  });
  return rows;
}

}  // namespace fp8lab
