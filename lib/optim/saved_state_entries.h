#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "optim/saved_state_format.h"
#include "optim/saved_state_items.h"

// The entries of all ranks' files of one saved state, checked against the model that needs them.
namespace fp8lab {

/// An entry that the model needs; `parameter` is kNoParameter for recipe state.
struct EntryRequest {
  std::string name;
  DType dtype = DType::kF32;
  std::size_t parameter = SavedItem::kNoParameter;
};

/// Finds and reads what one rank needs, however the rows were cut when they were saved. Every function throws Error,
/// which names file, entry and remedy, if the files do not fit the model.
class SavedEntries {
 public:
  /// Opens the manifest's files. `state` and `cuts` are the model's present ones, and must outlive this object.
  SavedEntries(const std::filesystem::path& folder, const Manifest& manifest, const TrainingState& state,
               const RowCuts& cuts, int rank);

  const std::vector<RankFile>& files() const { return files_; }

  EntryRequest request_for(const SavedItem& item) const;
  EntryRequest request_for(std::size_t parameter, std::string_view what, DType dtype = DType::kF32) const;

  /// The entry in `file`, of the type and the number of unsharded rows that the model has.
  const SavedEntry& entry_in(const RankFile& file, const EntryRequest& request) const;
  static void check_bytes(const RankFile& file, std::string_view entry, std::int64_t actual, std::int64_t expected);

  /// The file that has this rank's shard as one entry, if every rank's shard is an entry of one file; otherwise null,
  /// on every rank alike, so that collective calls may depend on it. Reads every file's entry: once per parameter.
  const RankFile* own_file(const EntryRequest& request) const;
  /// The entry of this rank's shard in the own_file() of its parameter.
  const SavedEntry& own_entry(const RankFile& file, const EntryRequest& request) const;

  /// Calls use(file, bytes) for the part of this rank's rows that each file has, in the order of rows.
  void for_rows(const EntryRequest& request,
                const std::function<void(const RankFile&, std::span<const std::byte>)>& use) const;
  /// This rank's rows.
  std::vector<std::byte> rows_of(const EntryRequest& request) const;

 private:
  const TrainingState& state_;
  const RowCuts& cuts_;
  int rank_;
  std::vector<RankFile> files_;
};

}  // namespace fp8lab
