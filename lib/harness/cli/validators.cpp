#include "harness/cli/validators.h"

#include <fmt/format.h>

#include <optional>

#include "harness/cell/keys.h"
#include "harness/cell/spelling.h"
#include "harness/cell/units.h"

namespace fp8lab {

CLI::Validator integer_within(std::int64_t low, std::int64_t high) {
  const std::string range = fmt::format("{} to {}", low, high);
  return {[=](std::string& text) {
            const auto value = integer(text);
            if (value && *value >= low && *value <= high) return std::string();
            return fmt::format("`{}` is not an integer from {}", text, range);
          },
          range};
}

CLI::Validator memory_size_with_unit() {
  return {[](std::string& text) {
            const auto bytes = memory_size(text);
            if (bytes && *bytes > 0) return std::string();
            return fmt::format("`{}` is not {}", quotable(text), expected_memory_size());
          },
          ""};
}

CLI::Validator number_within(double low, double high) {
  const std::string range = fmt::format("{} to {}", shortest(low), shortest(high));
  return {[=](std::string& text) {
            const auto value = decimal_number(text);
            if (value && *value >= low && *value <= high) return std::string();
            return fmt::format("`{}` is not a number from {}", text, range);
          },
          range};
}

CLI::Validator range_of_steps() {
  return {[](std::string& text) {
            constexpr std::int64_t kMost = 1'000'000'000;
            const std::size_t colon = text.find(':');
            const auto part = [](const std::string& digits, std::int64_t absent) {
              return digits.empty() ? std::optional(absent) : integer(digits);
            };
            const auto first = part(text.substr(0, colon), colon == std::string::npos ? 0 : 1);
            const auto last = colon == std::string::npos ? first : part(text.substr(colon + 1), kMost);
            if (first && last && *first >= 1 && *last >= *first && *last <= kMost) return std::string();
            return fmt::format("`{}` names no steps; write 3:10, 3:, :10 or 5", quotable(text));
          },
          ""};
}

}  // namespace fp8lab
