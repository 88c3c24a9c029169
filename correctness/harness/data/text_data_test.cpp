#include "harness/data/text_data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <set>
#include <string>

#include "core/check.h"
#include "harness/data/corpus.h"
#include "harness/data/token_batch.h"
#include "harness/temporary_directory.h"
#include "support/error_of.h"

// Corpora as tokens, and the windows of them that batches hold.
namespace fp8lab {
namespace {

using TokenList = std::vector<std::int32_t>;

TokenList list(TextTokens tokens) { return {tokens.begin(), tokens.end()}; }

using support::error_of;

TEST(Corpus, IsTheBytesOfAFile) {
  const sample::TemporaryDirectory folder;
  const std::string bytes("a\0b\r\n\xff", 6);
  sample::write(folder / "text", bytes);
  EXPECT_EQ(read_corpus(folder / "text"), bytes);
  for (const std::string& name : {std::string("absent"), std::string()}) {
    const std::string error = error_of([&] { read_corpus(folder / name); });
    EXPECT_NE(error.find("corpus '" + (folder / name).string()), std::string::npos) << error;
  }
}

TEST(Corpus, TheDefaultIsTheKingJamesBible) {
  if (std::system("command -v bible >/dev/null") != 0) GTEST_SKIP() << "the package bible-kjv is not installed";
  const std::string text = read_corpus({});
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 31102);  // verses
  EXPECT_TRUE(text.starts_with("Ge1:1 In the beginning God created the heaven and the earth.\n"));
  EXPECT_NE(text.find("\nRev22:21 "), std::string::npos);
}

TEST(Corpus, WithoutTheProgramOfTheDefaultTheErrorNamesItsPackage) {
  const char* const path = std::getenv("PATH");
  const std::string before = path != nullptr ? path : "";
  ::setenv("PATH", "/nowhere", 1);
  const std::string error = error_of([] { read_corpus({}); });
  ::setenv("PATH", before.c_str(), 1);
  EXPECT_NE(error.find("`bible`"), std::string::npos) << error;
  EXPECT_NE(error.find("bible-kjv"), std::string::npos) << error;
  EXPECT_NE(error.find("training.corpus"), std::string::npos) << error;
}

TEST(TextData, TokensAreBytesOrTheRanksOfThoseThatOccur) {
  const TextData bytes("cab\xff", Tokens::kByte), characters("cab\xff", Tokens::kCharacter);
  EXPECT_EQ(bytes.vocabulary(), 256);
  EXPECT_EQ(list(bytes.training()), (TokenList{'c', 'a', 'b'}));
  EXPECT_EQ(list(bytes.held_out()), TokenList{255});
  EXPECT_EQ(characters.vocabulary(), 4);
  EXPECT_EQ(list(characters.training()), (TokenList{2, 0, 1}));
  EXPECT_EQ(list(characters.held_out()), TokenList{3});
}

TEST(TextData, TheChecksumIsOfTheTextAndNotOfItsTokens) {
  const TextData text("abcd", Tokens::kByte), same("abcd", Tokens::kCharacter), other("abce", Tokens::kCharacter);
  EXPECT_EQ(text.checksum().size(), 16u);
  EXPECT_EQ(text.checksum(), same.checksum());
  EXPECT_NE(text.checksum(), other.checksum());
}

TEST(TextData, ACorpusThatCannotBeReadIsAskedForOnce) {
  const sample::TemporaryDirectory folder;
  TrainingConfig training;
  training.corpus = (folder / "late").string();
  const std::string error = error_of([&] { text_of(training); });
  sample::write(folder / "late", "abc");
  EXPECT_EQ(error_of([&] { text_of(training); }), error);
}

TEST(TextData, TheLastTenthIsHeldOut) {
  for (std::size_t size = 0; size < 50; ++size) {
    const TextData text(std::string(size, 'x'), Tokens::kByte);
    EXPECT_EQ(text.training().size(), 9 * size / 10) << size;
    EXPECT_EQ(text.training().size() + text.held_out().size(), size);
  }
}

TEST(TextData, ModelsThatDoNotFitTheTextAreNamed) {
  const TextData text("abcdefghijabcdefghij", Tokens::kCharacter);  // 18 and 2 tokens
  ModelConfig model{.seq = 1};
  model.vocabulary = 9;
  EXPECT_NE(broken_text_rule(text, model).find("at least 10"), std::string::npos) << broken_text_rule(text, model);
  model.vocabulary = 10;
  EXPECT_EQ(broken_text_rule(text, model), "");
  model.seq = 2;
  EXPECT_NE(broken_text_rule(text, model).find("needs 3"), std::string::npos) << broken_text_rule(text, model);
}

std::vector<std::uint8_t> counted(std::int32_t size) {
  std::vector<std::uint8_t> text;
  for (std::int32_t i = 0; i < size; ++i) text.push_back(static_cast<std::uint8_t>(i));
  return text;
}

TEST(TokenBatch, WindowsAreRunsOfTheTextWithTheTokensThatFollow) {
  const std::vector<std::uint8_t> text = counted(100);
  constexpr std::int64_t kSeq = 7, kCount = 5;
  for (const TokenBatch& batch : {random_windows(text, kSeq, 3, {.first = 20, .count = kCount}),
                                  spread_windows(text, kSeq, 40, {.first = 20, .count = kCount})}) {
    ASSERT_EQ(batch.tokens.size(), static_cast<std::size_t>(kSeq * kCount));
    ASSERT_EQ(batch.targets.size(), batch.tokens.size());
    for (std::int64_t p = 0; p < kSeq; ++p)
      for (std::int64_t s = 0; s < kCount; ++s) {
        const auto at = static_cast<std::size_t>(p * kCount + s);
        EXPECT_EQ(batch.tokens[at], batch.tokens[static_cast<std::size_t>(s)] + p);
        EXPECT_EQ(batch.targets[at], batch.tokens[at] + 1);
      }
  }
}

// Ranks and micro-batches each read their part of a step's sequences.
TEST(TokenBatch, SequencesAreTheSameHoweverTheyAreDivided) {
  const std::vector<std::uint8_t> text = counted(1000);
  constexpr std::int64_t kSeq = 4, kAll = 6;
  const auto all_of = [&](const auto& make) {
    const TokenBatch all = make(SequenceRange{.first = 12, .count = kAll});
    for (const std::int64_t count : {1, 2, 3})
      for (std::int64_t first = 0; first < kAll; first += count) {
        const TokenBatch part = make(SequenceRange{.first = 12 + first, .count = count});
        for (std::int64_t p = 0; p < kSeq; ++p)
          for (std::int64_t s = 0; s < count; ++s) {
            const auto in_part = static_cast<std::size_t>(p * count + s);
            const auto in_all = static_cast<std::size_t>(p * kAll + first + s);
            EXPECT_EQ(part.tokens[in_part], all.tokens[in_all]);
            EXPECT_EQ(part.targets[in_part], all.targets[in_all]);
          }
      }
  };
  all_of([&](const SequenceRange& range) { return random_windows(text, kSeq, 5, range); });
  all_of([&](const SequenceRange& range) { return spread_windows(text, kSeq, 31, range); });
  all_of([&](const SequenceRange& range) { return random_tokens(50, kSeq, {.seed = 5, .stream = 9}, range); });
}

std::set<std::int32_t> begins(const TokenBatch& batch, std::int64_t count) {
  return {batch.tokens.begin(), batch.tokens.begin() + count};
}

TEST(TokenBatch, RandomWindowsBeginAtEveryPlaceOfTheTextAndNoOther) {
  const std::vector<std::uint8_t> text = counted(12);
  std::set<std::int32_t> every;
  for (std::int32_t i = 0; i < 4; ++i) every.insert(i);
  EXPECT_EQ(begins(random_windows(text, 8, 1, {.first = 0, .count = 200}), 200), every);
  const TokenBatch one = random_windows(text, 8, 1, {.first = 0, .count = 200}),
                   other = random_windows(text, 8, 2, {.first = 0, .count = 200});
  EXPECT_NE(one.tokens, other.tokens) << "the seed does not count";
}

TEST(TokenBatch, SpreadWindowsReachFromTheBeginningOfTheTextToItsEnd) {
  const std::vector<std::uint8_t> text = counted(250);
  constexpr std::int64_t kSeq = 10;
  for (const std::int64_t total : {2, 3, 7, 100}) {
    const TokenBatch batch = spread_windows(text, kSeq, total, {.first = 0, .count = total});
    EXPECT_EQ(batch.tokens.front(), 0);
    EXPECT_EQ(batch.targets.back(), 249);
    const double apart = (250.0 - 1.0 - kSeq) / static_cast<double>(total - 1);
    for (std::int64_t s = 0; s < total; ++s)
      EXPECT_NEAR(batch.tokens[static_cast<std::size_t>(s)], apart * static_cast<double>(s), 1.0) << total;
  }
  EXPECT_EQ(spread_windows(text, kSeq, 1, {.first = 0, .count = 1}).tokens.front(), 0);
}

}  // namespace
}  // namespace fp8lab
