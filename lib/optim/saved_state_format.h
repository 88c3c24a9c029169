#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/dtype.h"

// The files of saved training state: layout and checks. The meaning of entries is in saved_state_items.h.
//
// A rank's file has a first line of 64 bytes ("fp8lab checkpoint <version> <header bytes> <header checksum>", padded
// with blanks), a header with one line per entry, and the entries' bytes in order. The manifest is text that ends with
// its own checksum.
namespace fp8lab {

/// A checksum that any flipped bit changes.
std::uint64_t checksum(std::span<const std::byte> bytes);

struct SavedEntry {
  std::string name;  ///< "layers[0].weight: master"
  DType dtype = DType::kF32;
  std::int64_t global_rows = 0;  ///< rows of the unsharded parameter, along dim 0
  std::int64_t first_row = 0;    ///< first row of the shard that the entry is, or belongs to
  std::int64_t rows = 0;
  std::int64_t bytes = 0;
  std::int64_t offset = 0;  ///< in the file
  std::uint64_t sum = 0;
  /// For recipe state: the types that its scales are for, role by role ("e4m3,e4m3"); "choice" for the biases of a
  /// router. Empty for state of parameters.
  std::string roles{};
};

/// The manifest's row about one rank's file.
struct RankFileRow {
  std::string name;
  std::int64_t bytes = 0;
  std::uint64_t header_sum = 0;
};

struct Manifest {
  std::int64_t save_number = 0;  ///< number of the save in this folder, from 1; part of the name of every rank's file
  std::int64_t step = 0;
  std::int64_t optimizer_steps = 0;
  std::vector<std::int64_t> group_steps;  ///< the optimizer's by parameter group; empty without an optimizer
  std::vector<RankFileRow> files;         ///< by rank
};

inline constexpr std::string_view kManifestName = "manifest";
std::string rank_file_name(std::int64_t save_number, int rank);

/// An entry with its bytes. write_rank_file() sets offset and checksum.
struct EntryToWrite {
  SavedEntry entry;
  std::vector<std::byte> bytes;
};
RankFileRow write_rank_file(const std::filesystem::path& folder, const std::string& name,
                            std::vector<EntryToWrite>& entries);
void write_manifest(const std::filesystem::path& folder, const Manifest& manifest);

/// Throws Error if the manifest is absent, damaged or of another version.
Manifest read_manifest(const std::filesystem::path& folder);

/// A rank's file whose header has been read and checked.
class RankFile {
 public:
  RankFile(const std::filesystem::path& folder, const RankFileRow& row);

  const std::filesystem::path& path() const { return path_; }
  const std::vector<SavedEntry>& entries() const { return entries_; }
  /// The entry called `name`, or null.
  const SavedEntry* find(std::string_view name) const;
  /// The entry's bytes. Throws Error if their checksum does not match.
  std::vector<std::byte> read(const SavedEntry& entry) const;
  /// Throws Error: "saved state: <file>: entry '<entry>': <problem>".
  [[noreturn]] void refuse(std::string_view entry, const std::string& problem) const;

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view name) const { return std::hash<std::string_view>()(name); }
  };

  std::filesystem::path path_;
  std::vector<SavedEntry> entries_;
  /// Places in entries_. Every rank searches every file for every tensor, so a linear search would be quadratic.
  std::unordered_map<std::string, std::size_t, Hash, std::equal_to<>> places_;
};

}  // namespace fp8lab
