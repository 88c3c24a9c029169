#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "harness/results/verdict.h"

namespace fp8lab {
namespace {

TEST(ExitCode, EveryCombinationFollowsTheDocumentedOrder) {
  for (unsigned mask = 0; mask < 1u << kVerdicts.size(); ++mask) {
    std::vector<Verdict> present;
    for (std::size_t i = 0; i < kVerdicts.size(); ++i)
      if ((mask >> i & 1) != 0) present.push_back(kVerdicts[i]);
    const auto has = [&](Verdict v) { return std::find(present.begin(), present.end(), v) != present.end(); };
    int expected = 0;
    if (!has(Verdict::kConfirmed) && !has(Verdict::kUnaffected) && !has(Verdict::kPass)) expected = 5;
    if (has(Verdict::kInconclusive)) expected = 3;
    if (has(Verdict::kNotReproduced) || has(Verdict::kNotFixed) || has(Verdict::kRegressed) || has(Verdict::kFail))
      expected = 1;
    if (has(Verdict::kTimeout)) expected = 124;
    if (has(Verdict::kCrashed)) expected = 4;
    EXPECT_EQ(exit_code({.verdicts = present}), expected);
    EXPECT_EQ(exit_code({.verdicts = present, .fix_unseen = true}), expected == 0 || expected == 5 ? 3 : expected);
    EXPECT_EQ(exit_code({.verdicts = present, .bad_usage = false, .interrupted_by = 2}), 130);
    EXPECT_EQ(exit_code({.verdicts = present, .bad_usage = true, .interrupted_by = 2}), 2);
  }
}

TEST(Verdict, NamesReadBack) {
  for (int i = 0; i <= static_cast<int>(Verdict::kTimeout); ++i) {
    const auto verdict = static_cast<Verdict>(i);
    EXPECT_EQ(parse_verdict(name(verdict)), verdict);
  }
  EXPECT_FALSE(parse_verdict("CONFIRMED"));
}

}  // namespace
}  // namespace fp8lab
