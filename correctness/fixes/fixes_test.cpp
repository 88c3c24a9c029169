// The rows of the table of fixes.

#include "fixes/fixes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <vector>

#include "core/check.h"
#include "support/error_of.h"

namespace fp8lab {
namespace {

TEST(Fixes, EveryRowHasANameUpstreamReportsAndOneDecision) {
  std::set<std::string_view> names;
  std::vector<Behaviors> reverted;
  for (const Fix& row : fixes()) {
    SCOPED_TRACE(row.name);
    EXPECT_TRUE(names.insert(row.name).second) << "listed twice";
    EXPECT_FALSE(row.upstream.references.front().empty());
    for (const std::string_view reference : row.upstream.references)
      EXPECT_NE(reference.empty(), reference.find('#') != std::string_view::npos) << reference;
    if (row.upstream.release.empty()) {
      EXPECT_TRUE(row.upstream.commit.empty()) << "a commit without a release";
    } else {
      EXPECT_TRUE(row.upstream.commit.empty() || row.upstream.commit.size() == 9u) << row.upstream.commit;
      EXPECT_EQ(row.upstream.release.rfind("2.", 0), 0u) << row.upstream.release;
    }
    EXPECT_FALSE(row.symptom.empty());
    EXPECT_FALSE(row.decision.empty());
    EXPECT_EQ(&fix(row.name), &row);
    Behaviors behaviors;
    row.revert(behaviors);
    EXPECT_FALSE(behaviors == Behaviors{}) << "reverting it changes nothing";
    EXPECT_EQ(std::count(reverted.begin(), reverted.end(), behaviors), 0) << "another row reverts the same decision";
    reverted.push_back(behaviors);
  }
}

TEST(Fixes, RevertsTheNamedFixesOnly) {
  EXPECT_EQ(behaviors_without({}), Behaviors{});
  const std::array<std::string_view, 2> two{"release_attention_tensors", "empty_module_shells"};
  const Behaviors behaviors = behaviors_without(two);
  EXPECT_EQ(behaviors.attention_shells, ShellPolicy::kRestoreAndKeep);
  EXPECT_EQ(behaviors.module_shells, ShellPolicy::kKeepFromForward);
  EXPECT_EQ(behaviors.fuser_shells, ShellPolicy::kMoveOut);
  EXPECT_EQ(behaviors.grouped_shells, ShellPolicy::kMoveOut);
}

TEST(Fixes, UnknownNameIsAnErrorThatListsTheKnownOnes) {
  const std::array<std::string_view, 1> unknown{"release_atention_tensors"};
  const std::string message = support::error_of([&] { behaviors_without(unknown); });
  EXPECT_NE(message.find("release_atention_tensors"), std::string::npos) << message;
  for (const Fix& row : fixes()) EXPECT_NE(message.find(row.name), std::string::npos) << message;
}

}  // namespace
}  // namespace fp8lab
