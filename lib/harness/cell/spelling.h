#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fp8lab {

/// The candidate nearest to `word` by edit distance, ignoring case, '-' and '_', or "" if none is near. Reads only the
/// first 1000 candidates.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

/// "a, b or c"; long lists are cut after `most` with a count of the rest.
std::string listed(std::span<const std::string> words, std::size_t most = 40);

/// The beginning of `text`, with "..." if it has more than `most` bytes.
std::string shortened(std::string_view text, std::size_t most);

/// `text` as a message quotes it: one line of at most 60 bytes.
std::string quotable(std::string_view text);

/// "1 cell", "2 cells"
std::string counted(std::size_t count, std::string_view what);

/// The end of a message: " Did you mean `x`?" and the allowed words, or one of the two.
std::string suggestion(std::string_view word, std::span<const std::string> candidates);

}  // namespace fp8lab
