#include "harness/scenario/id_matcher.h"

#include <fmt/format.h>
#include <re2/re2.h>

#include <memory>

#include "core/check.h"
#include "harness/cell/spelling.h"

namespace fp8lab {

std::function<bool(const std::string&)> id_matcher(std::string_view option, const std::string& expression) {
  RE2::Options quiet;
  quiet.set_log_errors(false);
  const auto pattern = std::make_shared<const RE2>(expression, quiet);
  if (!pattern->ok())
    fail(fmt::format("{}: `{}` is not a regular expression of RE2's syntax: {}{}", option, quotable(expression),
                     quotable(pattern->error()),
                     option == "--filter" && expression.find("(?!") != std::string::npos
                         ? "; to leave cells out, write a filter that begins with `-`: --filter=-REGEX"
                         : ""));
  return [pattern](const std::string& id) { return RE2::PartialMatch(id, *pattern); };
}

}  // namespace fp8lab
