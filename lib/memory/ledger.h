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

#include "core/holder_bytes.h"
#include "memory/holder.h"

namespace fp8lab {

/// One change of the ledger: an allocation, a free, or a transfer of bytes to another holder. A transfer has
/// `delta_bytes` 0, and `bytes` is the number of bytes transferred.
struct LedgerEvent {
  std::int64_t delta_bytes = 0;
  std::int64_t bytes = 0;
  std::int64_t live_bytes = 0;  ///< after the event
  HolderId holder = 0;          ///< holder after the event; for a free, holder before it
  Phase phase;
  HolderId from = 0;  ///< for a transfer: holder before it
};

/// Live bytes at a named moment ("end_of_forward"), with their holders.
struct LedgerMark {
  std::string name;
  std::int64_t live_bytes = 0;
  std::int64_t retained_bytes = 0;  ///< bytes without a holder that outlives backward
  std::size_t event = 0;            ///< index of the next event of the timeline
  bool recorded = false;            ///< true if the timeline was being recorded
  HolderBytes retained_by_holder;
  std::map<std::string, std::int64_t> by_kind;
};

/// The account of one device's memory for one rank: every live byte has a holder and a phase. Bytes are requested
/// bytes, without the allocator's rounding. Events of known holders touch no heap unless the timeline is recorded. Not
/// thread-safe; each rank has its own.
class Ledger {
 public:
  Ledger();

  /// Interns a holder. Asking again for a known one touches no heap. Holder 0 is always the workspace without a name.
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
  /// Bytes of holders that backward should have freed. Meaningful once backward is over.
  std::int64_t retained_bytes() const;

  /// Live bytes by "kind of owner: what, what", largest first, groups of 0 bytes left out.
  HolderBytes by_holder() const { return describe(bytes_by_holder_); }
  HolderBytes retained_by_holder() const;
  HolderBytes peak_by_holder() const;
  /// Live bytes by kind, zeros included.
  std::map<std::string, std::int64_t> by_kind() const;
  std::map<std::string, std::int64_t> peak_by_kind() const;

  /// Forgets the peak so far; the new peak starts at the bytes that are live now.
  void reset_peak();

  /// Records a mark. The reference is valid until the next mark.
  const LedgerMark& mark(std::string_view name);
  /// Marks in the order of recording. While the timeline is recorded every mark is kept. Otherwise only the last of
  /// each name is kept, so a long run needs no more memory for marks than a short one.
  const std::vector<LedgerMark>& marks() const { return marks_; }

  /// Hash over (kind of event, bytes, holder, phase) of all events in order; equal on every device for the same
  /// schedule.
  std::uint64_t sequence_hash() const { return sequence_hash_; }
  std::size_t events_seen() const { return events_seen_; }
  /// Empty unless recording. Events add up to the live bytes: the net changes of a pause are added when recording goes
  /// on.
  const std::vector<LedgerEvent>& timeline() const { return timeline_; }
  /// Starts, pauses or resumes recording. A pause keeps only the net change by holder and size, and drops its marks.
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

  std::deque<Holder> holders_;  // a deque, so that holders never move
  std::vector<std::uint64_t> holder_hashes_;
  std::unordered_multimap<std::size_t, HolderId> ids_;  // by hash, so that looking up a known holder allocates nothing

  Phase phase_;
  std::int64_t live_bytes_ = 0;
  std::int64_t peak_bytes_ = 0;
  Phase peak_phase_;
  std::array<std::int64_t, kPhaseKinds> peak_bytes_by_phase_{};
  std::vector<std::int64_t> bytes_by_holder_;
  // The breakdown of the peak is the present one minus the changes since the peak. Peaks come in quick succession and
  // there are many holders, so a copy is made only once the changes outnumber the holders.
  bool journaling_ = false;
  std::vector<std::pair<HolderId, std::int64_t>> since_peak_;
  std::vector<std::int64_t> peak_copy_;

  std::vector<LedgerMark> marks_;
  std::vector<LedgerEvent> timeline_;
  bool recording_ = false;
  bool paused_ = false;
  /// Number of blocks, by holder and size, minus their number when recording paused.
  std::map<std::pair<HolderId, std::int64_t>, std::int64_t> since_pause_;
  std::size_t events_seen_ = 0;
  std::uint64_t sequence_hash_;
};

}  // namespace fp8lab
