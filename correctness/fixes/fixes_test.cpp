// The table of fixes as data.

#include "fixes/fixes.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>
#include <tuple>

#include "core/check.h"

namespace fp8lab {
namespace {

auto decisions(const Behaviors& behaviors) {
  return std::tuple(behaviors.attention_shells, behaviors.fuser_shells, behaviors.module_shells);
}

TEST(Fixes, EveryRowHasANameItsReportsAndOneDecision) {
  std::set<std::string_view> names;
  for (const Fix& row : fixes()) {
    SCOPED_TRACE(row.name);
    EXPECT_TRUE(names.insert(row.name).second) << "listed twice";
    EXPECT_FALSE(row.upstream.empty());
    for (const std::string_view report : row.upstream) EXPECT_NE(report.find('#'), std::string_view::npos) << report;
    EXPECT_FALSE(row.symptom.empty());
    EXPECT_FALSE(row.decision.empty());
    EXPECT_EQ(&fix(row.name), &row);
    Behaviors behaviors;
    row.revert(behaviors);
    EXPECT_NE(decisions(behaviors), decisions(Behaviors{})) << "reverting it changes nothing";
  }
}

TEST(Fixes, RevertsTheNamedOnesAndNoOther) {
  EXPECT_EQ(decisions(behaviors_without({})), decisions(Behaviors{}));
  const std::array<std::string_view, 2> two{"release_attention_tensors", "empty_module_shells"};
  const Behaviors behaviors = behaviors_without(two);
  EXPECT_EQ(behaviors.attention_shells, ShellPolicy::kRestoreAndKeep);
  EXPECT_EQ(behaviors.module_shells, ShellPolicy::kKeepFromForward);
  EXPECT_EQ(behaviors.fuser_shells, ShellPolicy::kMoveOut);
}

TEST(Fixes, AnUnknownNameIsAnErrorThatListsTheKnownOnes) {
  const std::array<std::string_view, 1> unknown{"release_atention_tensors"};
  try {
    behaviors_without(unknown);
    FAIL() << "accepted an unknown fix";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("release_atention_tensors"), std::string::npos) << message;
    for (const Fix& row : fixes()) EXPECT_NE(message.find(row.name), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace fp8lab
