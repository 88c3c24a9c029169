#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>
#include <vector>

// Random changes of documents, the same on every machine, for tests of readers.
namespace fp8lab::sample {

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  /// From 0 to `count` - 1.
  std::size_t below(std::size_t count) { return static_cast<std::size_t>(engine_() % count); }
  template <class List>
  const auto& one_of(const List& list) {
    return list[below(list.size())];
  }

 private:
  std::mt19937_64 engine_;
};

/// The number of mutations that a test tries: FP8LAB_MUTATIONS if it is set, else `quick`.
inline int mutations(int quick) {
  const char* wanted = std::getenv("FP8LAB_MUTATIONS");
  return wanted ? std::atoi(wanted) : quick;
}

/// One or two changes of bytes, spans and lines; `tokens` are inserted or overwrite what is there.
inline std::string mutated(std::string text, const std::vector<std::string>& tokens, Random& random) {
  for (std::size_t change = 1 + random.below(4) / 2; change > 0 && !text.empty(); --change) {
    const std::size_t at = random.below(text.size()), length = 1 + random.below(random.below(4) == 0 ? 200 : 8);
    switch (random.below(8)) {
      case 0: text[at] = static_cast<char>(random.below(256)); break;
      case 6: text[at] = static_cast<char>(' ' + random.below(95)); break;
      case 1: text.erase(at, length); break;
      case 2: text.insert(at, text.substr(random.below(text.size()), length)); break;
      case 3: text.insert(at, random.one_of(tokens)); break;
      case 4: text.replace(at, length, random.one_of(tokens)); break;
      case 5: text.resize(at); break;
      default: {  // a line of its own, doubled or removed
        const std::size_t begin = text.rfind('\n', at) == std::string::npos ? 0 : text.rfind('\n', at) + 1;
        const std::size_t end = text.find('\n', begin) == std::string::npos ? text.size() : text.find('\n', begin) + 1;
        if (random.below(2) == 0)
          text.insert(random.below(2) == 0 ? begin : 0, text.substr(begin, end - begin));
        else
          text.erase(begin, end - begin);
      }
    }
  }
  return text;
}

/// True if the text could move a terminal's cursor or end a line: any control character but a line feed.
inline bool has_control_characters(std::string_view text) {
  for (const char c : text)
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\n') || c == 0x7F) return true;
  return false;
}

}  // namespace fp8lab::sample
