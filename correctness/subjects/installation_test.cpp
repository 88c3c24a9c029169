#include <gtest/gtest.h>
#include <poll.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "harness/run/fake_process.h"
#include "support/paths.h"

// `fp8lab subjects --install` that SIGKILL ends, or that runs twice.
namespace fp8lab {
namespace {

using sample::contains;

class Installations : public ::testing::Test {
 protected:
  Installations() : path_(std::getenv("PATH")) {
    ::setenv("FP8LAB_SUBJECTS", (directory_ / "subjects").c_str(), 1);
    ::setenv("FP8LAB_WORKER", paths::kFakeWorker, 1);
    ::unsetenv("FP8LAB_SUBJECT_PYTHON");
    // In place of Python: `-I -m venv DIR` makes DIR/bin/python, which calls this script too. pip starts a process, as
    // a compiler would be, and waits while file `go` is absent.
    const auto python = directory_ / "path/python3";
    sample::write(python,
                  "#!/bin/sh\n"
                  "test \"$1\" = -I || PATH=" +
                      path_ +
                      " exec python3 \"$@\"\n"
                      "if [ \"$3\" = venv ]; then mkdir -p \"$4/bin\" && cp \"$0\" \"$4/bin/python\"; exit; fi\n"
                      "cd " +
                      directory_.string() +
                      "\n"
                      "test -e go && exit 0\n"
                      "sleep 60 & echo $$ $! > pids.part; mv pids.part pids; wait\n");
    std::filesystem::permissions(python, std::filesystem::perms::owner_all);
    ::setenv("PATH", ((directory_ / "path").string() + ":" + path_).c_str(), 1);
  }
  ~Installations() override { ::setenv("PATH", path_.c_str(), 1); }

  static bool comes_true(const std::function<bool()>& condition) {
    for (int i = 0; i < 2000; ++i) {
      if (condition()) return true;
      ::poll(nullptr, 0, 10);
    }
    return false;
  }
  static bool runs(const std::string& pid) {
    const std::string status = sample::read("/proc/" + pid + "/status");
    return !status.empty() && !contains(status, "State:\tZ") && !contains(status, "State:\tX");
  }
  std::string listed() { return sample::run({"subjects"}, directory_.string()).output; }

  sample::TemporaryDirectory directory_;
  std::string path_;
};

TEST_F(Installations, Kill_EndsPipAndWhatItStarted_AndTheNextInstallationReplacesTheRest) {
  const std::vector<std::string> install{"subjects", "--install", "torch==0.0.0"};
  const auto environment = directory_ / "subjects/torch-0.0.0";
  sample::Process process(install, directory_.string());
  ASSERT_TRUE(comes_true([&] { return !sample::read(directory_ / "pids").empty(); }));
  const std::string pids = sample::read(directory_ / "pids");
  const std::string pip = pids.substr(0, pids.find(' ')),
                    compiler = pids.substr(pids.find(' ') + 1, pids.find('\n') - pids.find(' ') - 1);
  EXPECT_TRUE(runs(pip) && runs(compiler)) << pids;

  EXPECT_TRUE(contains(listed(), "torch 0.0.0 is not installed: another installation of it is under way"));
  const sample::Ended second = sample::run(install, directory_.string());
  EXPECT_EQ(second.code, 2);
  EXPECT_TRUE(contains(second.errors, "another installation of it is under way")) << second.errors;

  process.signal(SIGKILL);
  EXPECT_EQ(process.finish(), -SIGKILL);
  EXPECT_TRUE(comes_true([&] { return !runs(pip) && !runs(compiler); })) << pids;
  EXPECT_TRUE(std::filesystem::exists(environment));
  const std::string unfinished = listed();
  EXPECT_TRUE(contains(unfinished, "torch 0.0.0 is not installed: its installation did not finish")) << unfinished;
  EXPECT_TRUE(contains(unfinished, "run `fp8lab subjects --install torch==0.0.0` again")) << unfinished;

  sample::write(directory_ / "go", "");
  sample::write(environment / "rest", "");
  const sample::Ended again = sample::run(install, directory_.string());
  EXPECT_EQ(again.code, 0) << again.errors;
  EXPECT_FALSE(std::filesystem::exists(environment / "rest"));
  EXPECT_FALSE(contains(listed(), "0.0.0 is not installed"));
  const sample::Ended complete = sample::run(install, directory_.string());
  EXPECT_TRUE(contains(complete.errors, "exists; remove it to install it again")) << complete.errors;
}

TEST_F(Installations, EnvironmentMadeByHand_IsNeitherUnfinishedNorReplaced) {
  sample::write(directory_ / "subjects/torch-0.0.0/bin/python", "");
  EXPECT_FALSE(contains(listed(), "did not finish"));
  EXPECT_EQ(sample::run({"subjects", "--install", "torch==0.0.0"}, directory_.string()).code, 2);
  EXPECT_TRUE(std::filesystem::exists(directory_ / "subjects/torch-0.0.0/bin/python"));
  EXPECT_FALSE(contains(listed(), "did not finish")) << "the refusal left a mark";
}

}  // namespace
}  // namespace fp8lab
