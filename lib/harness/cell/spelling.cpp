#include "harness/cell/spelling.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

namespace fp8lab {
namespace {

std::string folded(std::string_view word) {
  std::string out;
  for (const char c : word)
    if (c != '-' && c != '_') out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

struct Distances {
  std::size_t to_all;        ///< from the word to all of the candidate
  std::size_t to_beginning;  ///< to the beginning of the candidate that is nearest
};

/// Edit distances of `a` to `b`: insertions, deletions, substitutions and swaps of neighbours.
Distances distances(const std::string& a, const std::string& b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0u : 1u)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before = last;
    last = row;
  }
  return {last[b.size()], *std::ranges::min_element(last)};
}

/// What other programs call a word of this one. `gpu` is nearer to `cpu` than to what it means.
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kSynonyms{
    {{"gpu", "cuda"}, {"nvidia", "cuda"}, {"float32", "f32"}, {"bfloat16", "bf16"}}};

/// Words for what many candidates are, so that the nearest of them is a guess like any other.
constexpr std::array<std::string_view, 4> kGeneral{"fp8", "float8", "f8", "8bit"};

}  // namespace

std::string nearest(std::string_view word, std::span<const std::string> candidates) {
  const std::string wanted = folded(word);
  for (const auto& [other, ours] : kSynonyms)
    if (wanted == other && std::ranges::find(candidates, ours) != candidates.end()) return std::string(ours);
  if (wanted.empty() || wanted.size() > 200 || std::ranges::find(kGeneral, wanted) != kGeneral.end()) return "";
  // A word of one or two letters is near to everything, so it may not differ; longer words may differ in a third of
  // their letters.
  std::size_t best = 1 + (wanted.size() < 3 ? 0 : wanted.size() == 3 ? 1 : std::max<std::size_t>(2, wanted.size() / 3));
  std::string found;
  constexpr std::size_t kMostCandidates = 1000;
  for (const std::string& candidate : candidates.first(std::min(candidates.size(), kMostCandidates))) {
    const std::string other = folded(candidate);
    const Distances to = distances(wanted, other);
    std::size_t d = to.to_all;
    // `release_atention` begins a much longer name. Of names that it begins alike, the first is the guess.
    constexpr std::size_t kLongBeginning = 6;
    if (wanted.size() >= kLongBeginning) d = std::min(d, to.to_beginning + 1);
    if (wanted.size() >= 3 && other.find(wanted) != std::string::npos) d = std::min<std::size_t>(d, 1);
    // A candidate that shares no letter with the word is no help.
    if (d < best && d < std::max(wanted.size(), other.size())) {
      best = d;
      found = candidate;
    }
  }
  return found;
}

std::string listed(std::span<const std::string> words, std::size_t most) {
  std::string out;
  const std::size_t shown = std::min(words.size(), most);
  for (std::size_t i = 0; i < shown; ++i) {
    if (i > 0) out += (i + 1 == words.size()) ? " or " : ", ";
    out += words[i];
  }
  if (shown < words.size()) out += fmt::format(" or one of {} more", words.size() - shown);
  return out;
}

std::string shortened(std::string_view text, std::size_t most) {
  if (text.size() <= most) return std::string(text);
  std::size_t end = most - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // do not cut a character
  return std::string(text.substr(0, end)) + "...";
}

std::string quotable(std::string_view text) {
  constexpr std::size_t kMost = 60;
  std::string out = shortened(text, kMost);
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  return out;
}

std::string counted(std::size_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string suggestion(std::string_view word, std::span<const std::string> candidates) {
  const std::string guess = nearest(word, candidates);
  // A long list would hide a good guess.
  const bool show_all = guess.empty() || candidates.size() <= 12;
  const std::string allowed = candidates.empty() || !show_all ? "" : fmt::format(" Allowed: {}.", listed(candidates));
  return guess.empty() ? allowed : fmt::format(" Did you mean `{}`?{}", guess, allowed);
}

}  // namespace fp8lab
