#include <gtest/gtest.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "harness/cli/bisect/bisect_search.h"
#include "harness/cli/bisect/bisect_versions.h"
#include "subjects/fake_training.h"

// `fp8lab bisect` over commits of a toy repository and over releases, with a program that needs no PyTorch.
namespace fp8lab {
namespace {

using Json = nlohmann::json;
using sample::contains;
using sample::Ended;

Trial trial(const std::string& version, Answer answer) {
  return {.version = version, .answer = answer, .figure = {}, .reason = "", .seconds = 0};
}

/// Runs a search to its end; each letter is the result of a version.
BisectSearch searched(const std::string& answers) {
  std::vector<std::string> versions;
  for (std::size_t i = 0; i < answers.size(); ++i) versions.push_back(std::to_string(i));
  BisectSearch search(versions);
  while (const auto next = search.next()) {
    const char answer = answers[std::stoul(*next)];
    search.add(trial(*next, answer == 'g'   ? Answer::kGood
                            : answer == 'b' ? Answer::kBad
                            : answer == 'f' ? Answer::kFailed
                                            : Answer::kSkipped));
  }
  return search;
}

TEST(BisectSearch, EveryPlaceOfTheFirstBadVersion_IsFoundInLogarithmicallyManyRuns) {
  for (std::size_t good = 1; good < 64; ++good) {
    const BisectSearch search = searched(std::string(good, 'g') + std::string(64 - good, 'b'));
    EXPECT_EQ(search.unclear(), "");
    EXPECT_EQ(search.first_bad(), good);
    EXPECT_EQ(search.last_good(), good - 1);
    EXPECT_LE(search.trials().size(), 4U + 6U + 2U);
  }
}

TEST(BisectSearch, VersionsThatCannotBeJudged_StayBetweenTheTwo) {
  const BisectSearch search = searched("ggssbbb");
  EXPECT_EQ(search.last_good(), 1U);
  EXPECT_EQ(search.first_bad(), 4U);
}

TEST(BisectSearch, AFailure_IsBadIfTheBadEndFails_AndElseSkipped) {
  EXPECT_EQ(searched("gggff").first_bad(), 3U);
  EXPECT_EQ(searched("ggfbb").first_bad(), 3U);
  EXPECT_EQ(searched("ggfbb").last_good(), 1U);
}

TEST(BisectSearch, AnEndThatAnswersOtherwise_EndsTheSearch) {
  EXPECT_TRUE(contains(searched("bbbb").unclear(), "0 should be good"));
  EXPECT_TRUE(contains(searched("gggg").unclear(), "3 should be bad"));
}

TEST(BisectSearch, ReleasesAreOrderedByTheirNumbers) {
  EXPECT_EQ(releases_between({"2.10.0", "2.9.0", "2.9.1", "1.0", "3.0"}, "2.9.0", "2.11"),
            (std::vector<std::string>{"2.9.0", "2.9.1", "2.10.0", "2.11"}));
  EXPECT_ANY_THROW(releases_between({}, "2.10.0", "2.9.0"));
  const std::vector<std::string> phases{"2.11.0.dev20260101", "2.11.0a0+git12", "2.11.0b1",    "2.11.0rc2",
                                        "2.11.0rc10",         "2.11.0",         "2.11.0.post1"};
  EXPECT_EQ(releases_between({phases.rbegin(), phases.rend()}, "2.10.1", "2.11.1").size(), phases.size() + 2);
  for (std::size_t i = 0; i + 1 < phases.size(); ++i) {
    EXPECT_EQ(releases_between({}, phases[i], phases[i + 1]).size(), 2U) << phases[i];
    EXPECT_ANY_THROW(releases_between({}, phases[i + 1], phases[i])) << phases[i];
  }
}

TEST(BisectSearch, AStateThatIsEdited_IsRefused_AndAFailedWriteLeavesNoFile) {
  const sample::TemporaryDirectory directory;
  const std::filesystem::path file = directory / "bisect.json";
  write_trials(file, "key", {trial("1", Answer::kGood), trial("--output=x", Answer::kBad)});
  EXPECT_EQ(read_trials(file, "key", {"1", "--output=x"}).size(), 2U);
  try {
    read_trials(file, "key", {"1", "2"});
    ADD_FAILURE() << "it is read";
  } catch (const std::exception& error) {
    EXPECT_TRUE(contains(error.what(), "`runs[1].version` must be a version of this search")) << error.what();
  }
  std::filesystem::create_directory(directory / "taken");
  EXPECT_ANY_THROW(write_trials(directory / "taken", "key", {}));
  EXPECT_FALSE(std::filesystem::exists(directory / "taken.new"));
  try {
    write_trials("/dev/full/bisect.json", "key", {});
    ADD_FAILURE() << "it is written";
  } catch (const std::exception& error) {
    EXPECT_TRUE(contains(error.what(), "Not a directory")) << error.what();
  }
}

class Bisect : public ::testing::Test {
 protected:
  Bisect() {
    ::setenv("GIT_CONFIG_GLOBAL", "/dev/null", 1);
    training_.scenario(
        "arguments: [checkout]\nmeasure: [memory]\nexpect: [{metric: memory.growth_bytes, arm: after, equals: 0}]\n");
    training_.add("repo/torch/__init__.py", "");
    shell("git init -q -b main repo && git -C repo config user.email t@example.com && git -C repo config user.name t");
  }

  void shell(const std::string& command) {
    ASSERT_EQ(std::system(("cd " + training_.folder() + " && " + command).c_str()), 0) << command;
  }
  /// Commits c1 to cN: from `first_bad` on the program's memory grows.
  void commits(int count, int first_bad, int broken = 0, const std::string& more = "") {
    for (int i = 1; i <= count; ++i) {
      training_.add("repo/amount.py", "GROWTH = " + std::string(i >= first_bad ? "4096" : "0") + "\n" + more);
      training_.add("repo/number", std::to_string(i));
      if (i == broken) training_.add("repo/broken", "");
      if (i == broken + 1) shell("rm -f repo/broken");
      shell("git -C repo add -A && git -C repo commit -q -m 'change " + std::to_string(i) + "' && git -C repo tag c" +
            std::to_string(i));
    }
  }
  std::vector<std::string> command(const std::vector<std::string>& more) const {
    std::vector<std::string> words{"bisect", training_.path("s.yaml").string(), "-o", training_.path("state").string()};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Ended bisect(const std::vector<std::string>& more) const { return sample::run(command(more), training_.folder()); }

  sample::FakeTraining training_;
};

TEST_F(Bisect, APlantedCommit_IsFoundBesideOneThatDoesNotBuild_AndTheCheckoutStaysAsItWas) {
  commits(9, 6, 5);
  training_.add("repo/untracked", "work of the user's");
  training_.add("repo/amount.py", "GROWTH = 1  # not committed\n");
  shell("git -C repo status --porcelain --branch > before.txt; ls -A repo/.git >> before.txt");
  const Ended ended =
      bisect({"--good", "c1", "--bad", "main", "--checkout", "repo", "--build", "test ! -e broken", "--json"});
  EXPECT_EQ(ended.code, 1) << ended.output << ended.errors;  // c5 does not build, so it may be the one
  const Json found = Json::parse(ended.output);
  EXPECT_EQ(found.at("suspects").size(), 2U) << found;
  EXPECT_TRUE(contains(ended.errors, "it does not build (status 1)")) << ended.errors;
  EXPECT_TRUE(contains(ended.errors, "first known bad:")) << ended.errors;
  shell("git -C repo status --porcelain --branch > after.txt; ls -A repo/.git >> after.txt; diff before.txt after.txt");
}

TEST_F(Bisect, AHookOfGit_WhichNamesAnotherRepository_ChangesNothingInIt) {
  commits(3, 2);
  shell("git init -q -b main other && git -C other -c user.email=t@e -c user.name=t commit -q --allow-empty -m first");
  shell("git -C other log --all --reflog --format=%H > before.txt; git -C other branch -a >> before.txt");
  ::setenv("GIT_DIR", training_.path("other/.git").c_str(), 1);
  const Ended ended =
      bisect({"--good", "c1", "--bad", "c3", "--checkout", "repo", "--build", "git log -1 --format=%s HEAD > built"});
  ::unsetenv("GIT_DIR");
  EXPECT_EQ(ended.code, 0) << ended.output << ended.errors;
  EXPECT_TRUE(contains(ended.output, "change 2")) << ended.output;
  shell("git -C other log --all --reflog --format=%H > after.txt; git -C other branch -a >> after.txt");
  shell("diff before.txt after.txt");
}

TEST_F(Bisect, ThePlantedCommit_IsNamedWithBothFigures) {
  commits(9, 4, 7);
  const Ended ended =
      bisect({"--good", "c1", "--bad", "c9", "--checkout", "repo", "--build", "test ! -e broken", "--json"});
  EXPECT_EQ(ended.code, 0) << ended.output << ended.errors;
  const Json found = Json::parse(ended.output);
  EXPECT_TRUE(contains(found.at("first_bad").at("title"), "change 4")) << found;
  EXPECT_EQ(found.at("first_bad").at("figure"), 4096);
  EXPECT_EQ(found.at("last_good").at("figure"), 0);
  EXPECT_TRUE(contains(ended.errors, "first bad:")) << ended.errors;
}

TEST_F(Bisect, AfterSigkill_TheSameCommandResumes) {
  commits(12, 8);
  const std::vector<std::string> words{"--good", "c1", "--bad", "c12", "--checkout", "repo"};
  {
    sample::Process process(command(words), training_.folder());
    for (const char* line : {"good ", "good ", "bad ", "bad "}) {
      process.read_until(line);
      process.output.clear();
    }
    process.read_until("\n");
    process.signal(SIGKILL);
    EXPECT_EQ(process.finish(), -SIGKILL);
  }
  const Ended ended = bisect(words);
  EXPECT_EQ(ended.code, 0) << ended.output << ended.errors;
  EXPECT_TRUE(contains(ended.output, "earlier: good")) << ended.output;
  EXPECT_TRUE(contains(ended.output, "change 8: memory.growth_bytes 4.00 KiB")) << ended.output;
  const Ended again = bisect(words);
  EXPECT_EQ(again.code, 0);
  EXPECT_FALSE(contains(again.output, "\ngood")) << "everything is known\n" << again.output;
  EXPECT_EQ(bisect({"--good", "c2", "--bad", "c12", "--checkout", "repo"}).code, 2) << "that is another search";
}

TEST_F(Bisect, AFlakyOracle_EndsTheSearchWithTheReason) {
  commits(
      4, 9, 0,
      "import os\nflag = '" + training_.path("flag").string() +
          "'\nif os.path.exists(flag):\n    os.remove(flag)\n    GROWTH = 64\nelse:\n    open(flag, 'w').close()\n");
  const Ended ended = bisect({"--good", "c1", "--bad", "c4", "--checkout", "repo"});
  EXPECT_EQ(ended.code, 3) << ended.output << ended.errors;
  EXPECT_TRUE(contains(ended.output, "no result: ")) << ended.output;
  EXPECT_TRUE(contains(ended.output, "should be good, but one of its runs is bad")) << ended.output;
}

TEST_F(Bisect, AMetricBeyondALimit_TellsGoodFromBadInPlaceOfTheGates) {
  commits(5, 3);
  const std::vector<std::string> ends{"--good",     "c1",   "--bad",    "c5",
                                      "--checkout", "repo", "--metric", "memory.growth_bytes"};
  std::vector<std::string> words = ends;
  words.insert(words.end(), {"--above", "4000"});
  EXPECT_EQ(bisect(words).code, 0);
  words = ends;
  words.insert(words.end(), {"--above", "5000", "-o", training_.path("other").string()});
  const Ended ended =
      sample::run({"bisect", training_.path("s.yaml").string(), "-o", training_.path("other").string(), "--good", "c1",
                   "--bad", "c5", "--checkout", "repo", "--metric", "memory.growth_bytes", "--above", "5000"},
                  training_.folder());
  EXPECT_EQ(ended.code, 3) << "the bad end is below the limit\n" << ended.output << ended.errors;
}

TEST_F(Bisect, Releases_AreSearchedInTheirEnvironments_AndMissingOnesSkipped) {
  ::setenv("FP8LAB_SUBJECTS", training_.path("subjects").c_str(), 1);
  training_.add("fake/amount.py", "import os\nGROWTH = int(os.environ['GROWTH'])\n");
  for (const auto& [release, growth] : {std::pair("2.9.0", "0"), {"2.10.0", "0"}, {"2.11.0", "64"}, {"2.13.0", "64"}}) {
    const std::string python = "subjects/torch-" + std::string(release) + "/bin/python";
    training_.add(python, "#!/bin/sh\nexport GROWTH=" + std::string(growth) + " PYTHONPATH=\"$PYTHONPATH:" +
                              training_.path("fake").string() + "\"\nexec python3 \"$@\"\n");
    ASSERT_EQ(::chmod(training_.path(python).c_str(), 0755), 0);
  }
  const Ended ended =
      bisect({"--good", "torch==2.9.0", "--bad", "torch==2.13.0", "--releases", "2.10.0,2.11.0,2.12.0"});
  ::unsetenv("FP8LAB_SUBJECTS");
  EXPECT_EQ(ended.code, 0) << ended.output << ended.errors;
  EXPECT_TRUE(contains(ended.output, "first bad: torch 2.11.0: memory.growth_bytes 64 B")) << ended.output;
  EXPECT_TRUE(contains(ended.output, "last good: torch 2.10.0: memory.growth_bytes 0 B")) << ended.output;
  EXPECT_TRUE(contains(ended.output, "3 versions between torch 2.9.0 and torch 2.13.0")) << ended.output;
}

TEST_F(Bisect, WrongRequests_AreRefusedWithWhatToWrite) {
  commits(2, 2);
  const auto refusal = [&](const std::vector<std::string>& more) {
    const Ended ended = bisect(more);
    EXPECT_EQ(ended.code, 2) << ended.output;
    return ended.errors;
  };
  EXPECT_TRUE(contains(refusal({"--good", "c9", "--bad", "c2", "--checkout", "repo"}), "c9 names no commit"));
  EXPECT_TRUE(contains(refusal({"--good", "c2", "--bad", "c1", "--checkout", "repo"}), "does not precede"));
  EXPECT_TRUE(contains(refusal({"--good", "c1", "--bad", "c2", "--checkout", "fake"}), "--checkout fake"));
  EXPECT_FALSE(std::filesystem::exists(training_.path("state"))) << "nothing was searched";
  EXPECT_TRUE(contains(refusal({"--good", "1.0", "--bad", "2.0"}), "write the library"));
  EXPECT_TRUE(contains(refusal({"--good", "torch==1.0", "--bad", "torchvision==2.0"}),
                       "torchvision==2.0 is no release of torch"));
  EXPECT_TRUE(
      contains(refusal({"--good", "c1", "--bad", "c2", "--checkout", "repo", "--above", "1"}), "need --metric"));
  EXPECT_TRUE(contains(refusal({"--good", "--exec=touch x", "--bad", "c2", "--checkout", "repo"}), ""));
}

}  // namespace
}  // namespace fp8lab
