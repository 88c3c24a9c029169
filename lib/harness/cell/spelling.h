#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fp8lab {

/// The candidate a person most likely meant by `word` (edit distance; case, '-' and '_' count for nothing), or "". Of
/// very many candidates only the first are looked at.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

/// "a, b or c"; long lists are cut after `most` with a count of the rest.
std::string listed(std::span<const std::string> words, std::size_t most = 40);

/// What a message quotes of `text`: one line of at most 60 bytes.
std::string quotable(std::string_view text);

/// "1 cell", "2 cells"
std::string counted(std::size_t count, std::string_view what);

/// For the end of a message: " Did you mean `x`?" and what is allowed, or only what is allowed.
std::string suggestion(std::string_view word, std::span<const std::string> candidates);

}  // namespace fp8lab
