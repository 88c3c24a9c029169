#include "harness/measure/timeline.h"

#include <array>
#include <charconv>
#include <string>

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

}  // namespace

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
