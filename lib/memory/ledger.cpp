#include "memory/ledger.h"

#include <algorithm>
#include <array>
#include <functional>

#include "core/fnv1a.h"

namespace fp8lab {
namespace {

std::uint64_t mix(std::uint64_t hash, std::string_view text) { return fnv1a_word(text.size(), fnv1a(text, hash)); }

/// Part of the sequence hash, so it must be the same on every platform; std::hash need not be.
std::uint64_t stable_hash(const Holder& holder) {
  return mix(mix(fnv1a_word(static_cast<std::uint64_t>(holder.kind)), holder.owner), holder.what);
}

std::size_t lookup_hash(HolderKind kind, std::string_view owner, std::string_view what) {
  const std::hash<std::string_view> hash;
  return (hash(owner) * 31 + hash(what)) * 31 + static_cast<std::size_t>(kind);
}

}  // namespace

Ledger::Ledger() : sequence_hash_(kFnv1aBasis) { holder(HolderKind::kWorkspace); }

HolderId Ledger::holder(HolderKind kind, std::string_view owner, std::string_view what) {
  const std::size_t hash = lookup_hash(kind, owner, what);
  const auto [first, last] = ids_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    const Holder& known = holders_[it->second];
    if (known.kind == kind && known.owner == owner && known.what == what) return it->second;
  }
  const auto id = static_cast<HolderId>(holders_.size());
  holders_.push_back({kind, std::string(owner), std::string(what)});
  holder_hashes_.push_back(stable_hash(holders_.back()));
  bytes_by_holder_.push_back(0);
  // Reserved here, so that events need not grow them.
  peak_copy_.reserve(bytes_by_holder_.capacity());
  since_peak_.reserve(bytes_by_holder_.capacity() + 1);
  ids_.emplace(hash, id);
  return id;
}

void Ledger::record_timeline(bool on) {
  if (on == recording_) return;
  recording_ = on;
  if (paused_) catch_up();
  paused_ = !on;
  if (on) timeline_.reserve(std::size_t{1} << 16);  // growing by copies would touch twice the pages
}

/// Adds the net changes of a pause to the timeline, frees before allocations: a block that replaced another between
/// steps was never live together with it, so the other order would show a peak that never was.
void Ledger::catch_up() {
  std::int64_t live = live_bytes_;
  for (const auto& [block, count] : since_pause_) live -= block.second * count;
  for (const bool gone : {true, false})
    for (const auto& [block, count] : since_pause_) {
      const auto& [holder, bytes] = block;
      const std::int64_t delta = gone ? -bytes : bytes;
      for (std::int64_t i = 0; i < (gone ? -count : count); ++i) {
        live += delta;
        timeline_.push_back({delta, bytes, live, holder, phase_, 0});
      }
    }
  since_pause_.clear();
  std::erase_if(marks_, [](const LedgerMark& mark) { return !mark.recorded; });
}

void Ledger::record_phase_peak() {
  std::int64_t& peak = peak_bytes_by_phase_[static_cast<std::size_t>(phase_.kind)];
  peak = std::max(peak, live_bytes_);
}

void Ledger::set_phase(PhaseKind kind, int step) {
  phase_ = {kind, step};
  record_phase_peak();
}

void Ledger::add(HolderId holder, std::int64_t bytes) {
  bytes_by_holder_[holder] += bytes;
  if (!journaling_) return;
  since_peak_.emplace_back(holder, bytes);
  if (since_peak_.size() <= holders_.size()) return;
  write_peak(peak_copy_);
  journaling_ = false;
}

/// Computes the breakdown of the peak from the journal. Keeps the memory of `bytes` if it is large enough.
void Ledger::write_peak(std::vector<std::int64_t>& bytes) const {
  bytes.assign(bytes_by_holder_.begin(), bytes_by_holder_.end());
  for (const auto& [holder, change] : since_peak_) bytes[holder] -= change;
}

std::vector<std::int64_t> Ledger::peak_bytes_by_holder() const {
  if (!journaling_) return peak_copy_;
  std::vector<std::int64_t> bytes;
  write_peak(bytes);
  return bytes;
}

void Ledger::record(std::int64_t delta, std::int64_t bytes, HolderId holder, HolderId from) {
  ++events_seen_;
  const std::uint64_t kind = delta > 0 ? 1 : delta < 0 ? 2 : 3;
  for (std::uint64_t value : {kind, static_cast<std::uint64_t>(bytes), holder_hashes_[holder],
                              static_cast<std::uint64_t>(phase_.kind) << 32 | static_cast<std::uint32_t>(phase_.step)})
    sequence_hash_ = fnv1a_word(value, sequence_hash_);
  if (recording_) timeline_.push_back({delta, bytes, live_bytes_, holder, phase_, from});
  if (!paused_) return;
  since_pause_[{holder, bytes}] += delta < 0 ? -1 : 1;
  if (delta == 0) --since_pause_[{from, bytes}];
}

void Ledger::on_allocate(std::int64_t bytes, HolderId holder) {
  if (bytes == 0) return;
  add(holder, bytes);
  live_bytes_ += bytes;
  record_phase_peak();
  if (live_bytes_ > peak_bytes_) {
    peak_bytes_ = live_bytes_;
    peak_phase_ = phase_;
    since_peak_.clear();
    journaling_ = true;
  }
  record(bytes, bytes, holder);
}

void Ledger::on_free(std::int64_t bytes, HolderId holder) {
  if (bytes == 0) return;
  add(holder, -bytes);
  live_bytes_ -= bytes;
  record(-bytes, bytes, holder);
}

void Ledger::on_transfer(std::int64_t bytes, HolderId from, HolderId to) {
  if (bytes == 0 || from == to) return;
  add(from, -bytes);
  add(to, bytes);
  record(0, bytes, to, from);
}

std::int64_t Ledger::retained_bytes() const {
  std::int64_t sum = 0;
  for (std::size_t id = 0; id < holders_.size(); ++id)
    if (!outlives_backward(holders_[id].kind)) sum += bytes_by_holder_[id];
  return sum;
}

HolderBytes Ledger::describe(const std::vector<std::int64_t>& bytes, bool only_retained) const {
  struct Group {
    const Holder* first = nullptr;
    std::int64_t bytes = 0;
    std::vector<std::string_view> whats;
  };
  std::vector<Group> groups;
  std::unordered_map<std::string_view, std::size_t> group_of[kHolderKinds];
  for (std::size_t id = 0; id < bytes.size(); ++id) {
    const Holder& holder = holders_[id];
    if (bytes[id] == 0 || (only_retained && outlives_backward(holder.kind))) continue;
    const auto [found, is_new] = group_of[static_cast<int>(holder.kind)].try_emplace(holder.owner, groups.size());
    if (is_new) groups.push_back({.first = &holder, .bytes = 0, .whats = {}});
    Group& group = groups[found->second];
    group.bytes += bytes[id];
    if (!holder.what.empty()) group.whats.push_back(holder.what);
  }
  HolderBytes described;
  described.reserve(groups.size());
  for (Group& group : groups) {
    std::string text(name(group.first->kind));
    if (!group.first->owner.empty()) text.append(" of ").append(group.first->owner);
    std::sort(group.whats.begin(), group.whats.end());
    for (std::size_t i = 0; i < group.whats.size(); ++i) text.append(i == 0 ? ": " : ", ").append(group.whats[i]);
    described.emplace_back(std::move(text), group.bytes);
  }
  std::sort(described.begin(), described.end(), [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
  return described;
}

HolderBytes Ledger::retained_by_holder() const { return describe(bytes_by_holder_, true); }

HolderBytes Ledger::peak_by_holder() const { return describe(peak_bytes_by_holder()); }

std::map<std::string, std::int64_t> Ledger::sum_kinds(const std::vector<std::int64_t>& bytes) const {
  std::array<std::int64_t, kHolderKinds> of_kind{};
  for (std::size_t id = 0; id < bytes.size(); ++id) of_kind[static_cast<std::size_t>(holders_[id].kind)] += bytes[id];
  std::map<std::string, std::int64_t> sums;
  for (std::size_t kind = 0; kind < of_kind.size(); ++kind)
    sums[std::string(name(static_cast<HolderKind>(kind)))] = of_kind[kind];
  return sums;
}

std::map<std::string, std::int64_t> Ledger::by_kind() const { return sum_kinds(bytes_by_holder_); }

std::map<std::string, std::int64_t> Ledger::peak_by_kind() const { return sum_kinds(peak_bytes_by_holder()); }

void Ledger::reset_peak() {
  peak_bytes_ = live_bytes_;
  peak_phase_ = phase_;
  peak_bytes_by_phase_ = {};
  record_phase_peak();
  since_peak_.clear();
  journaling_ = true;
}

const LedgerMark& Ledger::mark(std::string_view mark_name) {
  std::erase_if(marks_, [&](const LedgerMark& old) { return !old.recorded && old.name == mark_name; });
  marks_.push_back({.name = std::string(mark_name),
                    .live_bytes = live_bytes_,
                    .retained_bytes = retained_bytes(),
                    .event = timeline_.size(),
                    .recorded = recording_,
                    .retained_by_holder = retained_by_holder(),
                    .by_kind = by_kind()});
  return marks_.back();
}

}  // namespace fp8lab
