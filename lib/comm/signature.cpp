#include "comm/signature.h"

#include <fmt/core.h>

#include <algorithm>

namespace fp8lab {

void Signature::set_label(std::string_view text) {
  const std::size_t kept = std::min(text.size(), label.size() - 1);
  std::fill(std::copy_n(text.begin(), kept, label.begin()), label.end(), '\0');
  mix(text.size());
  for (const char c : text) mix(static_cast<unsigned char>(c));
}

std::string describe(const Signature& call) {
  std::string text(name(call.kind));
  if (call.kind == CollectiveKind::kAllReduce) text += fmt::format(" {}", name(call.op));
  if (call.kind == CollectiveKind::kBroadcast) text += fmt::format(" from {}", call.root);
  if (call.kind == CollectiveKind::kRingExchange) text += fmt::format(" by {}", call.shift);
  text += fmt::format(" '{}' (#{}", call.label.data(), call.sequence);
  if (call.parts > 0) text += fmt::format(": {} part{}, {} bytes", call.parts, call.parts == 1 ? "" : "s", call.bytes);
  return text + ")";
}

std::string describe_mismatch(std::string_view group, int a, const Signature& call_a, int b, const Signature& call_b) {
  const std::string text_a = describe(call_a);
  const std::string text_b = describe(call_b);
  const std::string_view unseen =
      text_a == text_b
          ? ", but their parts differ in offsets, types or order, or in their places in memory of gather_source()"
          : "";
  return fmt::format("ranks of group '{}' issue different collectives: rank {} calls {}, rank {} calls {}{}", group, a,
                     text_a, b, text_b, unseen);
}

}  // namespace fp8lab
