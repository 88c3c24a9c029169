#include "harness/timeline.h"

#include <fmt/core.h>
#include <fmt/format.h>

#include <iterator>

namespace fp8lab {
namespace {

// Names come from parameter and layer names; quotes and backslashes are all that JSON minds in them.
std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + '"';
}

std::string_view separator(std::size_t i) { return i == 0 ? "" : ","; }

}  // namespace

std::string timeline_json(const Ledger& ledger) {
  fmt::memory_buffer out;
  const auto write = std::back_inserter(out);
  fmt::format_to(write, "{{\"schema\":\"fp8lab.timeline/1\",\"holders\":[");
  for (HolderId id = 0; id < ledger.holders(); ++id) {
    const Holder& holder = ledger.holder(id);
    fmt::format_to(write, "{}{{\"kind\":{},\"owner\":{},\"what\":{}}}", separator(id), quoted(name(holder.kind)),
                   quoted(holder.owner), quoted(holder.what));
  }
  fmt::format_to(write, "],\n\"marks\":[");
  for (std::size_t i = 0; i < ledger.marks().size(); ++i) {
    const LedgerMark& mark = ledger.marks()[i];
    fmt::format_to(write, "{}{{\"name\":{},\"live_bytes\":{},\"retained_bytes\":{},\"event\":{}}}", separator(i), quoted(mark.name),
                   mark.live_bytes, mark.retained_bytes, mark.event);
  }
  fmt::format_to(write, "],\n\"events\":[");
  for (std::size_t i = 0; i < ledger.timeline().size(); ++i) {
    const LedgerEvent& event = ledger.timeline()[i];
    fmt::format_to(write, "{}[{},{},{},{},{},{}]", separator(i), event.delta_bytes, event.bytes, event.live_bytes, event.holder,
                   quoted(name(event.phase.kind)), event.phase.step);
  }
  fmt::format_to(write, "]}}\n");
  return fmt::to_string(out);
}

}  // namespace fp8lab
