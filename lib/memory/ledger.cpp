#include "memory/ledger.h"

#include <fmt/core.h>

#include <algorithm>

namespace fp8lab {
namespace {

constexpr std::uint64_t kFnvOffset = 0xcbf29ce484222325ULL;
constexpr std::uint64_t kFnvPrime = 0x100000001b3ULL;

std::uint64_t fnv(std::uint64_t hash, std::uint64_t value) {
  for (int i = 0; i < 8; ++i) hash = (hash ^ ((value >> (8 * i)) & 0xff)) * kFnvPrime;
  return hash;
}

std::uint64_t fnv(std::string_view text) {
  std::uint64_t hash = kFnvOffset;
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * kFnvPrime;
  return hash;
}

}  // namespace

Ledger::Ledger() : sequence_hash_(kFnvOffset) { holder(HolderKind::kWorkspace); }

HolderId Ledger::holder(HolderKind kind, std::string_view owner, std::string_view what) {
  key_.clear();
  key_ += static_cast<char>('a' + static_cast<int>(kind));
  key_ += owner;
  key_ += '\n';
  key_ += what;
  if (const auto found = ids_.find(std::string_view(key_)); found != ids_.end()) return found->second;
  const auto id = static_cast<HolderId>(holders_.size());
  holders_.push_back({kind, std::string(owner), std::string(what)});
  holder_hashes_.push_back(fnv(key_));
  bytes_by_holder_.push_back(0);
  ids_.emplace(key_, id);
  return id;
}

void Ledger::set_phase(PhaseKind kind, int step) { phase_ = {kind, step}; }

void Ledger::add(HolderId holder, std::int64_t bytes) { bytes_by_holder_[holder] += bytes; }

void Ledger::before_decrease() {
  if (!at_peak_) return;
  peak_bytes_by_holder_ = bytes_by_holder_;
  at_peak_ = false;
}

void Ledger::record(std::int64_t delta, std::int64_t bytes, HolderId holder) {
  ++events_seen_;
  const std::uint64_t kind = delta > 0 ? 1 : delta < 0 ? 2 : 3;
  for (std::uint64_t value : {kind, static_cast<std::uint64_t>(bytes), holder_hashes_[holder],
                              static_cast<std::uint64_t>(phase_.kind) << 32 | static_cast<std::uint32_t>(phase_.step)})
    sequence_hash_ = fnv(sequence_hash_, value);
  if (recording_) timeline_.push_back({delta, bytes, live_bytes_, holder, phase_});
}

void Ledger::on_allocate(std::int64_t bytes, HolderId holder) {
  if (bytes == 0) return;
  add(holder, bytes);
  live_bytes_ += bytes;
  if (live_bytes_ > peak_bytes_) {
    peak_bytes_ = live_bytes_;
    peak_phase_ = phase_;
    at_peak_ = true;
  }
  record(bytes, bytes, holder);
}

void Ledger::on_free(std::int64_t bytes, HolderId holder) {
  if (bytes == 0) return;
  before_decrease();
  add(holder, -bytes);
  live_bytes_ -= bytes;
  record(-bytes, bytes, holder);
}

void Ledger::on_transfer(std::int64_t bytes, HolderId from, HolderId to) {
  if (bytes == 0 || from == to) return;
  before_decrease();
  add(from, -bytes);
  add(to, bytes);
  record(0, bytes, to);
}

std::int64_t Ledger::retained_bytes() const {
  std::int64_t sum = 0;
  for (std::size_t id = 0; id < holders_.size(); ++id)
    if (!outlives_backward(holders_[id].kind)) sum += bytes_by_holder_[id];
  return sum;
}

HolderBytes Ledger::describe(const std::vector<std::int64_t>& bytes, bool only_retained) const {
  struct Group {
    std::int64_t bytes = 0;
    std::vector<std::string_view> whats;
  };
  std::map<std::string, Group> groups;
  for (std::size_t id = 0; id < bytes.size(); ++id) {
    const Holder& holder = holders_[id];
    if (bytes[id] == 0 || (only_retained && outlives_backward(holder.kind))) continue;
    Group& group = groups[holder.owner.empty() ? std::string(name(holder.kind))
                                               : fmt::format("{} of {}", name(holder.kind), holder.owner)];
    group.bytes += bytes[id];
    if (!holder.what.empty()) group.whats.push_back(holder.what);
  }
  HolderBytes described;
  for (auto& [label, group] : groups) {
    std::sort(group.whats.begin(), group.whats.end());
    std::string text = label;
    for (std::size_t i = 0; i < group.whats.size(); ++i) text += fmt::format("{}{}", i ? ", " : ": ", group.whats[i]);
    described.emplace_back(std::move(text), group.bytes);
  }
  std::stable_sort(described.begin(), described.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return described;
}

HolderBytes Ledger::retained_by_holder() const { return describe(bytes_by_holder_, true); }

HolderBytes Ledger::peak_by_holder() const { return describe(at_peak_ ? bytes_by_holder_ : peak_bytes_by_holder_); }

std::map<std::string, std::int64_t> Ledger::sum_kinds(const std::vector<std::int64_t>& bytes) const {
  std::map<std::string, std::int64_t> sums;
  for (int kind = 0; kind < kHolderKinds; ++kind) sums[std::string(name(static_cast<HolderKind>(kind)))] = 0;
  for (std::size_t id = 0; id < bytes.size(); ++id) sums[std::string(name(holders_[id].kind))] += bytes[id];
  return sums;
}

std::map<std::string, std::int64_t> Ledger::by_kind() const { return sum_kinds(bytes_by_holder_); }

std::map<std::string, std::int64_t> Ledger::peak_by_kind() const {
  return sum_kinds(at_peak_ ? bytes_by_holder_ : peak_bytes_by_holder_);
}

void Ledger::reset_peak() {
  peak_bytes_ = live_bytes_;
  peak_phase_ = phase_;
  at_peak_ = true;
}

const LedgerMark& Ledger::mark(std::string_view mark_name) {
  marks_.push_back({.name = std::string(mark_name),
                    .live_bytes = live_bytes_,
                    .retained_bytes = retained_bytes(),
                    .event = events_seen_,
                    .by_holder = by_holder(),
                    .retained_by_holder = retained_by_holder(),
                    .by_kind = by_kind()});
  return marks_.back();
}

}  // namespace fp8lab
