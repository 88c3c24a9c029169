#include "harness/data/text_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <utility>

#include "harness/data/corpus.h"

namespace fp8lab {
namespace {

constexpr std::size_t kByteValues = 256;

/// The token of each byte, and how many tokens there are.
struct TokenOfByte {
  std::array<std::int32_t, kByteValues> token{};
  std::int32_t count = 0;

  TokenOfByte(std::string_view text, Tokens tokens) {
    std::array<bool, kByteValues> occurs{};
    for (const char c : text) occurs[static_cast<unsigned char>(c)] = true;
    for (std::size_t byte = 0; byte < kByteValues; ++byte)
      if (tokens == Tokens::kByte || occurs[byte]) token[byte] = count++;
  }
};

}  // namespace

TextData::TextData(std::string_view text, Tokens tokens) {
  const TokenOfByte of(text, tokens);
  vocabulary_ = of.count;
  tokens_.reserve(text.size());
  for (const char c : text) tokens_.push_back(of.token[static_cast<unsigned char>(c)]);
  split_ = text.size() / 10 * 9 + text.size() % 10 * 9 / 10;
}

std::shared_ptr<const TextData> text_of(const TrainingConfig& training) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, Tokens>, std::shared_ptr<const TextData>> read;
  const std::lock_guard lock(mutex);
  std::shared_ptr<const TextData>& text = read[{training.corpus, training.tokens}];
  if (!text) text = std::make_shared<TextData>(read_corpus(training.corpus), training.tokens);
  return text;
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
