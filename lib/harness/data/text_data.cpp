#include "harness/data/text_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "core/check.h"
#include "core/fnv1a.h"
#include "harness/data/corpus.h"

namespace fp8lab {
namespace {

constexpr std::size_t kByteValues = 256;

/// The token of each byte, and how many tokens there are.
struct TokenOfByte {
  std::array<int, kByteValues> token{};
  int count = 0;

  TokenOfByte(std::string_view text, Tokens tokens) {
    std::array<bool, kByteValues> occurs{};
    for (const char c : text) occurs[static_cast<unsigned char>(c)] = true;
    for (std::size_t byte = 0; byte < kByteValues; ++byte)
      if (tokens == Tokens::kByte || occurs[byte]) token[byte] = count++;
  }
};

}  // namespace

TextData::TextData(std::string text, Tokens tokens)
    : tokens_(std::move(text)), checksum_(fmt::format("{:016x}", fnv1a(tokens_))) {
  const TokenOfByte of(tokens_, tokens);
  vocabulary_ = of.count;
  for (char& c : tokens_) c = static_cast<char>(of.token[static_cast<unsigned char>(c)]);
  split_ = tokens_.size() / 10 * 9 + tokens_.size() % 10 * 9 / 10;
}

std::shared_ptr<const TextData> text_of(const TrainingConfig& training) {
  static std::mutex mutex;
  struct Read {
    std::shared_ptr<const TextData> text;
    std::string error;
  };
  static std::map<std::pair<std::string, Tokens>, Read> all;
  const std::lock_guard lock(mutex);
  const auto [found, is_new] = all.try_emplace({training.corpus, training.tokens});
  Read& read = found->second;
  if (is_new) try {
      read.text = std::make_shared<TextData>(read_corpus(training.corpus), training.tokens);
    } catch (const Error& error) {
      read.error = error.what();
    }
  if (!read.text) fail(read.error);
  return read.text;
}

std::string broken_text_rule(const TextData& text, const ModelConfig& model) {
  if (text.vocabulary() > model.vocabulary)
    return fmt::format("the corpus has {} different tokens, but `model.vocabulary` is {}; it must be at least {}",
                       text.vocabulary(), model.vocabulary, text.vocabulary());
  const std::size_t shorter = std::min(text.training().size(), text.held_out().size());
  if (shorter <= static_cast<std::size_t>(model.seq))
    return fmt::format(
        "a part of the corpus has {} tokens, but a sequence of {} needs {}, for it predicts the next one "
        "of each",
        shorter, model.seq, model.seq + 1);
  return {};
}

}  // namespace fp8lab
