#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "harness/cell/cell.h"
#include "harness/data/token_batch.h"

namespace fp8lab {

/// A text as tokens, divided into a part to train on and a part to validate on, which is held out.
class TextData {
 public:
  /// Token t of Tokens::kByte is the byte t. Of Tokens::kCharacter it is the t-th of the bytes that occur in the text,
  /// in ascending order.
  TextData(std::string text, Tokens tokens);

  /// Tokens are below this number: 256, or how many different bytes occur.
  std::int64_t vocabulary() const { return vocabulary_; }
  /// The first 90 % of the tokens, rounded down.
  TextTokens training() const { return all().first(split_); }
  TextTokens held_out() const { return all().subspan(split_); }
  /// FNV-1a over the text, 16 hexadecimal digits: the same text has the same, wherever its file is.
  const std::string& checksum() const { return checksum_; }

 private:
  TextTokens all() const { return {reinterpret_cast<const std::uint8_t*>(tokens_.data()), tokens_.size()}; }

  std::string tokens_;  ///< a byte each, in the memory of the text
  std::string checksum_;
  std::int64_t vocabulary_ = 0;
  std::size_t split_ = 0;
};

/// The corpus of a cell (training.corpus, training.tokens), read once in a process however often it is asked for.
/// Throws Error as read_corpus() does, also without reading again.
std::shared_ptr<const TextData> text_of(const TrainingConfig& training);

/// The rule that the text of a cell breaks, or "": it needs a larger vocabulary than the model has, or a part of it is
/// shorter than a sequence and the token after it.
std::string broken_text_rule(const TextData& text, const ModelConfig& model);

}  // namespace fp8lab
