#include "harness/measure/timeline.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace fp8lab {
namespace {

/// Builds JSON by appending, which is much faster than formatting: a large model has tens of thousands of events, and
/// every arm writes them.
class Writer {
 public:
  explicit Writer(std::size_t bytes) { text_.reserve(bytes); }

  Writer& operator<<(std::string_view text) {
    text_ += text;
    return *this;
  }
  Writer& operator<<(std::int64_t number) {
    std::array<char, 20> digits;
    text_.append(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr);
    return *this;
  }
  /// Writes a JSON string. Names consist of parameter and layer names, so only quotes and backslashes need escapes.
  Writer& quoted(std::string_view text) {
    text_ += '"';
    for (char c : text) {
      if (c == '"' || c == '\\') text_ += '\\';
      text_ += c;
    }
    text_ += '"';
    return *this;
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

std::string_view separator(std::size_t i) { return i == 0 ? "" : ","; }

/// The bytes of every kind of holder, as events change them.
class Replay {
 public:
  explicit Replay(const Ledger& ledger) : ledger_(ledger) {}

  void add(const LedgerEvent& event) {
    of(event.holder) += event.delta_bytes == 0 ? event.bytes : event.delta_bytes;
    if (event.delta_bytes == 0) of(event.from) -= event.bytes;
    live_ += event.delta_bytes;
    if (live_ <= peak_) return;
    peak_ = live_;
    at_peak_ = bytes_;
  }
  std::int64_t live() const { return live_; }
  std::int64_t peak() const { return peak_; }
  std::map<std::string, std::int64_t> at_peak() const { return named(at_peak_); }
  std::map<std::string, std::int64_t> by_kind() const { return named(bytes_); }
  std::int64_t retained() const {
    std::int64_t sum = 0;
    for (std::size_t kind = 0; kind < bytes_.size(); ++kind)
      if (!outlives_backward(static_cast<HolderKind>(kind))) sum += bytes_[kind];
    return sum;
  }

 private:
  using BytesOfKinds = std::array<std::int64_t, kHolderKinds>;

  std::int64_t& of(HolderId holder) { return bytes_[static_cast<std::size_t>(ledger_.holder(holder).kind)]; }
  static std::map<std::string, std::int64_t> named(const BytesOfKinds& bytes) {
    std::map<std::string, std::int64_t> out;
    for (std::size_t kind = 0; kind < bytes.size(); ++kind)
      out[std::string(name(static_cast<HolderKind>(kind)))] = bytes[kind];
    return out;
  }

  const Ledger& ledger_;
  BytesOfKinds bytes_{}, at_peak_{};
  std::int64_t live_ = 0, peak_ = 0;
};

/// The largest difference of figures.
class Differences {
 public:
  void add(std::int64_t a, std::int64_t b) { largest_ = std::max(largest_, std::abs(a - b)); }
  void add(const std::map<std::string, std::int64_t>& a, const std::map<std::string, std::int64_t>& b) {
    for (const auto& [kind, bytes] : a) add(bytes, b.contains(kind) ? b.at(kind) : 0);
    for (const auto& [kind, bytes] : b) add(bytes, a.contains(kind) ? a.at(kind) : 0);
  }
  std::int64_t largest() const { return largest_; }

 private:
  std::int64_t largest_ = 0;
};

std::int64_t sum_of(const std::map<std::string, std::int64_t>& by_kind) {
  std::int64_t sum = 0;
  for (const auto& [kind, bytes] : by_kind) sum += bytes;
  return sum;
}

std::int64_t sum_of(const HolderBytes& by_holder) {
  std::int64_t sum = 0;
  for (const auto& [holder, bytes] : by_holder) sum += bytes;
  return sum;
}

}  // namespace

std::int64_t unbalanced_bytes(const Ledger& ledger) {
  Differences out;
  Replay replay(ledger);
  std::map<PhaseKind, std::int64_t> peaks;
  auto mark = ledger.marks().begin();
  const LedgerEvent* before = nullptr;
  const auto judge_marks = [&](std::size_t event) {
    for (; mark != ledger.marks().end() && mark->event <= event; ++mark) {
      out.add(mark->live_bytes, sum_of(mark->by_kind));
      out.add(mark->retained_bytes, sum_of(mark->retained_by_holder));
      if (!mark->recorded) continue;
      out.add(mark->live_bytes, replay.live());
      out.add(mark->retained_bytes, replay.retained());
      out.add(mark->by_kind, replay.by_kind());
    }
  };
  for (std::size_t i = 0; i < ledger.timeline().size(); ++i) {
    judge_marks(i);
    const LedgerEvent& event = ledger.timeline()[i];
    const bool begins = before == nullptr || before->phase.kind != event.phase.kind;
    std::int64_t& peak = peaks[event.phase.kind];
    if (begins) peak = std::max(peak, replay.live());
    replay.add(event);
    peak = std::max(peak, replay.live());
    out.add(event.live_bytes, replay.live());
    before = &event;
  }
  judge_marks(ledger.timeline().size());
  out.add(ledger.live_bytes(), replay.live());
  out.add(ledger.by_kind(), replay.by_kind());
  out.add(ledger.peak_bytes(), sum_of(ledger.peak_by_kind()));
  out.add(ledger.peak_bytes(), sum_of(ledger.peak_by_holder()));
  if (ledger.timeline().size() != ledger.events_seen()) return out.largest();
  out.add(ledger.peak_bytes(), replay.peak());
  out.add(ledger.peak_by_kind(), replay.at_peak());
  for (const auto& [kind, peak] : peaks)
    if (kind != PhaseKind::kIdle) out.add(ledger.peak_bytes(kind), peak);
  return out.largest();
}

std::string timeline_json(const Ledger& ledger) {
  // Upper bounds of the bytes of one holder and of one event; pages that are never written cost nothing.
  constexpr std::size_t kHolderBytes = 128, kEventBytes = 96;
  Writer out(kHolderBytes * ledger.holders() + kEventBytes * (ledger.timeline().size() + 1));
  out << R"({"schema":"fp8lab.timeline/1","holders":[)";
  for (HolderId id = 0; id < ledger.holders(); ++id) {
    const Holder& holder = ledger.holder(id);
    out << separator(id) << R"({"kind":)";
    out.quoted(name(holder.kind)) << R"(,"owner":)";
    out.quoted(holder.owner) << R"(,"what":)";
    out.quoted(holder.what) << "}";
  }
  out << "],\n\"marks\":[";
  for (std::size_t i = 0; i < ledger.marks().size(); ++i) {
    const LedgerMark& mark = ledger.marks()[i];
    out << separator(i) << R"({"name":)";
    out.quoted(mark.name) << R"(,"live_bytes":)" << mark.live_bytes << R"(,"retained_bytes":)" << mark.retained_bytes
                          << R"(,"event":)" << static_cast<std::int64_t>(mark.event) << "}";
  }
  out << "],\n\"events\":[";
  for (std::size_t i = 0; i < ledger.timeline().size(); ++i) {
    const LedgerEvent& event = ledger.timeline()[i];
    out << separator(i) << "[" << event.delta_bytes << "," << event.bytes << "," << event.live_bytes << ","
        << static_cast<std::int64_t>(event.holder) << ",";
    out.quoted(name(event.phase.kind)) << "," << static_cast<std::int64_t>(event.phase.step);
    if (event.delta_bytes == 0) out << "," << static_cast<std::int64_t>(event.from);
    out << "]";
  }
  out << "]}\n";
  return out.take();
}

}  // namespace fp8lab
