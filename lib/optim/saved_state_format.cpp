#include "optim/saved_state_format.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <sstream>
#include <utility>

#include "core/check.h"
#include "core/fnv1a.h"
#include "optim/durable_file.h"

namespace fp8lab {
namespace {

/// Versions 1 and 2 list the scales of a recipe by number, without their modules and types, so that scales of another
/// model cannot be recognized.
constexpr std::int64_t kVersion = 3;
constexpr std::string_view kNoRoles = "-";
constexpr std::int64_t kFirstLine = 64;
constexpr std::string_view kMagic = "fp8lab checkpoint";
constexpr std::string_view kRemedy = "load another save, or save again if the training still runs";

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string read_text(const std::filesystem::path& file, std::int64_t offset, std::int64_t bytes) {
  std::string text(static_cast<std::size_t>(bytes), ' ');
  read_bytes(file, offset, std::as_writable_bytes(std::span(text.data(), text.size())));
  return text;
}

[[noreturn]] void fail_damaged(const std::filesystem::path& file, std::string_view what) {
  fail(fmt::format("saved state: {}: {}; the file is damaged: {}", file.string(), what, kRemedy));
}

/// Throws Error if this program cannot read the file's version.
void check_version(const std::filesystem::path& file, std::string_view text) {
  std::istringstream words{std::string(text.substr(0, 40))};
  std::string project, what;
  std::int64_t version = 0;
  if (!(words >> project >> what >> version) || project + " " + what != kMagic || version < 1)
    fail_damaged(file, "it does not begin as saved state does");
  if (version > kVersion)
    fail(fmt::format("saved state: {}: written in version {}; this program reads version {}: use a newer one",
                     file.string(), version, kVersion));
  if (version < kVersion)
    fail(fmt::format(
        "saved state: {}: written in version {}, in which scales lack the names of their modules; this program reads "
        "version {}: load it with the program that saved it",
        file.string(), version, kVersion));
}

std::string line_of(const SavedEntry& entry) {
  return fmt::format("{} {} {} {} {} {} {:x} {} {}\n", name(entry.dtype), entry.global_rows, entry.first_row,
                     entry.rows, entry.bytes, entry.offset, entry.sum, entry.roles.empty() ? kNoRoles : entry.roles,
                     entry.name);
}

SavedEntry entry_of(const std::filesystem::path& file, const std::string& line) {
  std::istringstream words(line);
  SavedEntry entry;
  std::string dtype;
  words >> dtype >> entry.global_rows >> entry.first_row >> entry.rows >> entry.bytes >> entry.offset >> std::hex >>
      entry.sum >> entry.roles;
  words.get();
  std::getline(words, entry.name);
  const std::optional<DType> parsed = parse_dtype(dtype);
  if (!words || !parsed) fail_damaged(file, "a line of its header cannot be read");
  entry.dtype = *parsed;
  if (entry.roles == kNoRoles) entry.roles.clear();
  return entry;
}

}  // namespace

std::uint64_t checksum(std::span<const std::byte> bytes) {
  std::uint64_t hash = kFnv1aBasis ^ bytes.size();
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, 8);
    hash = fnv1a_word(word, hash);
  }
  for (; i < bytes.size(); ++i) hash = fnv1a_word(static_cast<std::uint64_t>(bytes[i]), hash);
  return hash;
}

std::string rank_file_name(std::int64_t save_number, int rank) {
  return fmt::format("save-{}.rank-{}", save_number, rank);
}

RankFileRow write_rank_file(const std::filesystem::path& folder, const std::string& name,
                            std::vector<EntryToWrite>& entries) {
  for (EntryToWrite& item : entries) {
    item.entry.bytes = static_cast<std::int64_t>(item.bytes.size());
    item.entry.sum = checksum(item.bytes);
  }
  // Offsets are written in the header, whose length depends on their digits, so they count from the end of the header.
  std::int64_t offset = 0;
  std::string header;
  for (EntryToWrite& item : entries) {
    item.entry.offset = offset;
    offset += item.entry.bytes;
    header += line_of(item.entry);
  }
  RankFileRow row{.name = name,
                  .bytes = kFirstLine + static_cast<std::int64_t>(header.size()) + offset,
                  .header_sum = checksum(bytes_of(header))};
  std::string first = fmt::format("{} {} {} {:x}", kMagic, kVersion, header.size(), row.header_sum);
  first.resize(static_cast<std::size_t>(kFirstLine) - 1, ' ');
  first += '\n';
  std::vector<std::span<const std::byte>> parts = {bytes_of(first), bytes_of(header)};
  for (const EntryToWrite& item : entries) parts.emplace_back(item.bytes);
  write_durably(folder / name, parts);
  return row;
}

void write_manifest(const std::filesystem::path& folder, const Manifest& manifest) {
  std::string text = fmt::format("{} {}\nsave_number {}\nstep {}\noptimizer_steps {}\nranks {}\n", kMagic, kVersion,
                                 manifest.save_number, manifest.step, manifest.optimizer_steps, manifest.files.size());
  for (const RankFileRow& row : manifest.files)
    text += fmt::format("{} {:x} {}\n", row.bytes, row.header_sum, row.name);
  if (!manifest.group_steps.empty()) {
    text += fmt::format("group_steps {}", manifest.group_steps.size());
    for (const std::int64_t steps : manifest.group_steps) text += fmt::format(" {}", steps);
    text += '\n';
  }
  text += fmt::format("checksum {:x}\n", checksum(bytes_of(text)));
  const std::span<const std::byte> part = bytes_of(text);
  write_durably(folder / kManifestName, {&part, 1});
}

Manifest read_manifest(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / kManifestName;
  const std::int64_t bytes = size_of_file(file);
  if (bytes < 0)
    fail(fmt::format(
        "saved state: {}: it is absent, so no save into this folder has finished; name a folder where one has",
        file.string()));
  const std::string text = read_text(file, 0, bytes);
  check_version(file, text);
  const std::size_t end = text.rfind("checksum ");
  if (end == std::string::npos ||
      text.substr(end) != fmt::format("checksum {:x}\n", checksum(bytes_of(text).first(end))))
    fail_damaged(file, "its checksum does not match");
  std::istringstream words(text.substr(text.find('\n')));
  Manifest manifest;
  std::string word;
  std::size_t ranks = 0;
  words >> word >> manifest.save_number >> word >> manifest.step >> word >> manifest.optimizer_steps >> word >> ranks;
  for (std::size_t rank = 0; rank < ranks && words; ++rank) {
    RankFileRow& row = manifest.files.emplace_back();
    words >> row.bytes >> std::hex >> row.header_sum >> std::dec >> row.name;
  }
  if (!words || ranks == 0) fail_damaged(file, "a line cannot be read");
  if (words >> word && word == "group_steps") {
    std::size_t groups = 0;
    words >> groups;
    for (std::size_t group = 0; group < groups && words; ++group) words >> manifest.group_steps.emplace_back();
    if (!words || std::ranges::any_of(manifest.group_steps, [](std::int64_t steps) { return steps < 0; }))
      fail_damaged(file, "a line cannot be read");
  }
  return manifest;
}

RankFile::RankFile(const std::filesystem::path& folder, const RankFileRow& row) : path_(folder / row.name) {
  const std::int64_t bytes = size_of_file(path_);
  if (bytes < 0)
    fail(fmt::format("saved state: {}: it is absent, though the manifest names it; copy the files of all ranks, or {}",
                     path_.string(), kRemedy));
  if (bytes != row.bytes)
    fail_damaged(path_, fmt::format("it has {} B, and the manifest states {} B", bytes, row.bytes));
  const std::string first = read_text(path_, 0, kFirstLine);
  check_version(path_, first);
  std::istringstream words(first.substr(kMagic.size()));
  std::int64_t version = 0, header_bytes = 0;
  std::uint64_t sum = 0;
  words >> version >> header_bytes >> std::hex >> sum;
  if (!words || header_bytes < 0 || header_bytes > bytes - kFirstLine || sum != row.header_sum ||
      first != fmt::format("{:<63}\n", fmt::format("{} {} {} {:x}", kMagic, version, header_bytes, sum)))
    fail_damaged(path_, "its first line does not match the manifest");
  const std::string header = read_text(path_, kFirstLine, header_bytes);
  if (checksum(bytes_of(header)) != sum) fail_damaged(path_, "the checksum of its header does not match");
  places_.reserve(static_cast<std::size_t>(std::ranges::count(header, '\n')));
  std::istringstream lines(header);
  for (std::string line; std::getline(lines, line);) {
    SavedEntry& entry = entries_.emplace_back(entry_of(path_, line));
    entry.offset += kFirstLine + header_bytes;
    if (entry.offset + entry.bytes > bytes) refuse(entry.name, "it ends beyond the file");
    if (!places_.emplace(entry.name, entries_.size() - 1).second) refuse(entry.name, "the file has two of this name");
  }
}

const SavedEntry* RankFile::find(std::string_view name) const {
  const auto place = places_.find(name);
  return place == places_.end() ? nullptr : &entries_[place->second];
}

std::vector<std::byte> RankFile::read(const SavedEntry& entry) const {
  std::vector<std::byte> bytes(static_cast<std::size_t>(entry.bytes));
  read_bytes(path_, entry.offset, bytes);
  if (checksum(bytes) != entry.sum)
    refuse(entry.name, fmt::format("its checksum does not match; the file is damaged: {}", kRemedy));
  return bytes;
}

void RankFile::refuse(std::string_view entry, const std::string& problem) const {
  fail(fmt::format("saved state: {}: entry '{}': {}", path_.string(), entry, problem));
}

}  // namespace fp8lab
