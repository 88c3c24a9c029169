#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "memory/holder.h"

namespace fp8lab {

/// Bytes of one group of holders, such as {"context of layers[2].attention: k, q, v", 201326592}.
using HolderBytes = std::vector<std::pair<std::string, std::int64_t>>;

/// One change of the account. An attribution that moves is a transfer: `delta_bytes` 0, `bytes` those that moved.
struct LedgerEvent {
  std::int64_t delta_bytes = 0;
  std::int64_t bytes = 0;
  std::int64_t live_bytes = 0;  ///< after the event
  HolderId holder = 0;          ///< attributed to, after the event (before it, for a free)
  Phase phase;
  HolderId from = 0;  ///< of a transfer: attributed to before it
};

/// Live bytes at a named moment ("end_of_forward"), with their holders.
struct LedgerMark {
  std::string name;
  std::int64_t live_bytes = 0;
  std::int64_t retained_bytes = 0;  ///< held by nobody who outlives backward
  std::size_t event = 0;            ///< index of the timeline's next event
  bool recorded = false;            ///< while the timeline was recorded
  HolderBytes retained_by_holder;
  std::map<std::string, std::int64_t> by_kind;
};

/// The account of one device's memory for one rank: every live byte has a holder and a phase. Bytes are those asked
/// for, not the allocator's rounding. Events of known holders touch no heap, unless their timeline is recorded. Not
/// thread-safe; ranks have one each.
class Ledger {
 public:
  Ledger();

  /// Interns a holder. Asking again for a known one touches no heap. Holder 0 is always the nameless workspace.
  HolderId holder(HolderKind kind, std::string_view owner = {}, std::string_view what = {});
  const Holder& holder(HolderId id) const { return holders_[id]; }
  HolderId holders() const { return static_cast<HolderId>(holders_.size()); }

  void set_phase(PhaseKind kind, int step);
  Phase phase() const { return phase_; }

  void on_allocate(std::int64_t bytes, HolderId holder);
  void on_free(std::int64_t bytes, HolderId holder);
  void on_transfer(std::int64_t bytes, HolderId from, HolderId to);

  std::int64_t live_bytes() const { return live_bytes_; }
  std::int64_t peak_bytes() const { return peak_bytes_; }
  Phase peak_phase() const { return peak_phase_; }
  /// The most bytes alive at one moment of any phase of that kind; 0 if there was none.
  std::int64_t peak_bytes(PhaseKind kind) const { return peak_bytes_by_phase_[static_cast<std::size_t>(kind)]; }
  /// Bytes whose holders all should be gone by now if backward is over.
  std::int64_t retained_bytes() const;

  /// Live bytes by "kind of owner: what, what", largest first, zero groups left out.
  HolderBytes by_holder() const { return describe(bytes_by_holder_); }
  HolderBytes retained_by_holder() const;
  HolderBytes peak_by_holder() const;
  /// Live bytes by kind, zeros included.
  std::map<std::string, std::int64_t> by_kind() const;
  std::map<std::string, std::int64_t> peak_by_kind() const;

  /// Forgets the peak so far and starts again from what is live.
  void reset_peak();

  /// Valid until the next mark.
  const LedgerMark& mark(std::string_view name);
  /// In order. Those of a recorded timeline are all here, of the others the last of each name, so that marks that come
  /// in every step of a long run take no more memory than those of a short one.
  const std::vector<LedgerMark>& marks() const { return marks_; }

  /// Over the ordered (kind of event, bytes, holder, phase) of every event; equal on every device for the same
  /// schedule.
  std::uint64_t sequence_hash() const { return sequence_hash_; }
  std::size_t events_seen() const { return events_seen_; }
  /// Empty unless recording. It adds up: events that were left out by a pause come together where it goes on.
  const std::vector<LedgerEvent>& timeline() const { return timeline_; }
  /// Recording begins once, may pause, and goes on. A pause keeps what changes in it by holder and size alone, and
  /// drops its marks.
  void record_timeline(bool on);

 private:
  void record_phase_peak();
  void add(HolderId holder, std::int64_t bytes);
  void write_peak(std::vector<std::int64_t>& bytes) const;
  std::vector<std::int64_t> peak_bytes_by_holder() const;
  void record(std::int64_t delta, std::int64_t bytes, HolderId holder, HolderId from = 0);
  void catch_up();
  HolderBytes describe(const std::vector<std::int64_t>& bytes, bool only_retained = false) const;
  std::map<std::string, std::int64_t> sum_kinds(const std::vector<std::int64_t>& bytes) const;

  std::deque<Holder> holders_;  // many, so never moved
  std::vector<std::uint64_t> holder_hashes_;
  std::unordered_multimap<std::size_t, HolderId> ids_;  // by hash, so that looking up a known holder allocates nothing

  Phase phase_;
  std::int64_t live_bytes_ = 0;
  std::int64_t peak_bytes_ = 0;
  Phase peak_phase_;
  std::array<std::int64_t, kPhaseKinds> peak_bytes_by_phase_{};
  std::vector<std::int64_t> bytes_by_holder_;
  // The breakdown of the peak is today's less what has changed since. Peaks come in quick succession and holders are
  // many, so a copy is made only once the changes outnumber the holders.
  bool journaling_ = false;
  std::vector<std::pair<HolderId, std::int64_t>> since_peak_;
  std::vector<std::int64_t> peak_copy_;

  std::vector<LedgerMark> marks_;
  std::vector<LedgerEvent> timeline_;
  bool recording_ = false;
  bool paused_ = false;
  /// By holder and size, how many more blocks there are than when recording paused.
  std::map<std::pair<HolderId, std::int64_t>, std::int64_t> since_pause_;
  std::size_t events_seen_ = 0;
  std::uint64_t sequence_hash_;
};

}  // namespace fp8lab
