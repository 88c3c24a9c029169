#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "harness/run/fake_process.h"
#include "harness/subjects/captured_process.h"
#include "support/paths.h"

// Cells whose subject is a library, from a scenario file to results, with a worker that needs no library.
namespace fp8lab {
namespace {

using Json = nlohmann::json;

struct Ran {
  int code = 0;
  std::string output, errors;
  Json cells = Json::array();

  const Json& cell() const { return cells.at(0); }
  Json note(const std::string& arm, std::size_t i) const { return cell().at("arms").at(arm).at("notes").at(i); }
};

class SubjectCells : public ::testing::Test {
 protected:
  SubjectCells() {
    ::setenv("FP8LAB_WORKER", paths::kFakeWorker, 1);
    ::setenv("FP8LAB_SUBJECTS", (directory_ / "subjects").c_str(), 1);
    ::setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
    ::unsetenv("FP8LAB_SUBJECT_PYTHON");
  }

  /// Runs a scenario with these top-level lines.
  Ran run(const std::string& lines, const std::vector<std::string>& options = {}) {
    sample::write(directory_ / "s.yaml", "version: 1\nname: s\ntitle: S\n" + lines +
                                             "model: {hidden: 64, heads: 1, seq: 32}\nmeasure: [memory, traffic]\n");
    const std::string out = (directory_ / "out").string();
    std::vector<std::string> words{"run", (directory_ / "s.yaml").string(), "-o", out, "--jobs", "2"};
    words.insert(words.end(), options.begin(), options.end());
    sample::Process process(words, directory_.string());
    Ran ran;
    ran.code = process.finish();
    ran.output = process.output;
    ran.errors = process.errors;
    if (const std::string text = sample::read(directory_ / "out/results.json"); !text.empty())
      ran.cells = Json::parse(text).at("cells");
    return ran;
  }

  sample::TemporaryDirectory directory_;
};

const std::string kGates =
    "expect:\n"
    "  - {metric: memory.retained_bytes, arm: before, at_least: 1}\n"
    "  - {metric: memory.retained_bytes, arm: after, equals: 0}\n";

TEST_F(SubjectCells, ADefectOfOneVersionIsConfirmedWithoutAFix) {
  const Ran ran = run("subject: double\nversions: {before: leak}\n" + kGates);
  EXPECT_EQ(ran.code, 0) << ran.output << ran.errors;
  EXPECT_EQ(ran.cell().at("verdict"), "confirmed");
  EXPECT_EQ(ran.cell().at("config").at("subject"), "double");
  EXPECT_EQ(ran.cell().at("config").at("versions.before"), "leak");
  EXPECT_EQ(ran.note("before", 1), "version leak");
  EXPECT_EQ(ran.note("after", 1), "version installed");
  EXPECT_NE(ran.note("before", 0), ran.note("after", 0)) << "each arm has a process of its own";
}

TEST_F(SubjectCells, EveryVerdictOfAFixHoldsForVersionsToo) {
  EXPECT_EQ(run("subject: double\nversions: {before: sound}\n" + kGates).cell().at("verdict"), "not_reproduced");
  EXPECT_EQ(run("subject: double\nversions: {before: leak, after: leak}\n" + kGates).cell().at("verdict"), "not_fixed");
  EXPECT_EQ(run("subject: double\nversions: {before: sound, after: leak}\n" + kGates).cell().at("verdict"),
            "regressed");
  EXPECT_EQ(run("subject: double\nversions: {before: leak, after: nothing}\n" + kGates).cell().at("verdict"),
            "inconclusive");
  EXPECT_EQ(run("subject: double\nexpect: [{metric: traffic.collectives, equals: 12}]\n").cell().at("verdict"), "pass");
}

TEST_F(SubjectCells, EqualVersionsAreMeasuredTwiceAndOtherVersionsShareNothing) {
  const Ran ran =
      run("subject: double\nversions: {after: leak}\nmatrix: {before: [leak, sound]}\n"
          "expect: [{metric: memory.retained_bytes, arm: difference, equals: 0}]\n");
  ASSERT_EQ(ran.cells.size(), 2u) << ran.errors;
  EXPECT_NE(ran.note("before", 0), ran.note("after", 0));
  EXPECT_EQ(ran.cells[0].at("verdict"), "unaffected");
  EXPECT_EQ(ran.cells[1].at("verdict"), "regressed");
  EXPECT_EQ(ran.cells[1].at("arms").at("before").at("notes").at(1), "version sound");
}

TEST_F(SubjectCells, ALibraryAndTheOwnRuntimeRunSideBySide) {
  const Ran ran = run("matrix: {subject: [own, double]}\nexpect: [{metric: memory.retained_bytes, equals: 0}]\n");
  EXPECT_EQ(ran.code, 0) << ran.errors;
  ASSERT_EQ(ran.cells.size(), 2u);
  EXPECT_TRUE(ran.cells[0].at("arms").at("after").at("metrics").contains("memory.peak_bytes"));
  EXPECT_FALSE(ran.cells[1].at("arms").at("after").at("metrics").contains("memory.peak_bytes"));
}

TEST_F(SubjectCells, PredictionsOfTheOwnRuntimeAreNoClaimsAboutALibrary) {
  const Ran ran = run("subject: double\nexpect: [{metric: memory.retained_bytes, equals: predicted}]\n");
  EXPECT_EQ(ran.code, 3);
  EXPECT_NE(ran.cell().at("reason").get<std::string>().find("has no closed form"), std::string::npos);
  EXPECT_TRUE(ran.cell().at("arms").at("after").at("metrics").at("memory.retained_bytes").at("predicted").is_null());
}

TEST_F(SubjectCells, OnlyTheTrafficOfFsdp2InBf16IsPredicted) {
  const auto predicted = [this](const std::string& keys, const std::string& metric) {
    const Ran ran = run("device: cpu\nranks: 2\n" + keys);
    const Json& metrics = ran.cell().at("arms").at("after").at("metrics");
    return metrics.contains(metric) ? metrics.at(metric).at("predicted") : Json(nullptr);
  };
  // A layer is gathered for forward and for backward, and its gradients are reduce-scattered.
  EXPECT_EQ(predicted("subject: torch\n", "traffic.collectives"), 3);
  EXPECT_EQ(predicted("subject: torch\nreshard_after_forward: false\n", "traffic.collectives"), 2);
  EXPECT_EQ(predicted("subject: torch\n", "traffic.all_gather_bytes"),
            predicted("subject: own\n", "traffic.all_gather_bytes"));
  EXPECT_TRUE(predicted("subject: torch\n", "memory.peak_bytes").is_null());
  EXPECT_TRUE(predicted("subject: torchao\n", "traffic.collectives").is_null());
  EXPECT_TRUE(predicted("subject: torch\ntraining: {recipe: delayed}\n", "traffic.collectives").is_null());
  // FSDP2 has nothing to gather or reduce over one shard.
  for (const char* metric : {"traffic.all_gather_bytes", "traffic.reduce_scatter_bytes", "traffic.collectives"})
    EXPECT_EQ(predicted("subject: torch\nsharding: fsdp\nmatrix: {ranks: [1]}\n", metric), 0) << metric;
  // Uneven shards are padded by both.
  EXPECT_EQ(predicted("subject: torch\nmatrix: {ffn: [65]}\n", "traffic.all_gather_bytes"),
            predicted("subject: own\nmatrix: {ffn: [65]}\n", "traffic.all_gather_bytes"));
}

TEST_F(SubjectCells, CrashesAndTimeoutsEndAsTheOwnRuntimesDo) {
  const Ran crash =
      run("subject: double\nversions: {before: crash}\nexpect:\n"
          "  - {arm: before, status: crashed, signal: SIGSEGV}\n"
          "  - {metric: memory.retained_bytes, arm: after, equals: 0}\n");
  EXPECT_EQ(crash.cell().at("verdict"), "confirmed") << crash.cell().at("reason");
  const Ran hang = run("subject: double\nversions: {before: hang}\ntimeout: 0.5\n" + kGates);
  EXPECT_EQ(hang.code, 124);
  const Ran failed = run("subject: double\nversions: {before: exit}\n" + kGates);
  EXPECT_EQ(failed.code, 4);
  EXPECT_NE(failed.cell().at("reason").get<std::string>().find("no such library"), std::string::npos);
}

TEST_F(SubjectCells, WhatALibraryCannotHonourIsSkippedWithTheReason) {
  const Ran ran = run("subject: double\nmatrix: {recipe: [bf16, mxfp8]}\n");
  EXPECT_EQ(ran.code, 0) << ran.errors;
  EXPECT_EQ(ran.cells[1].at("verdict"), "skipped");
  EXPECT_NE(ran.cells[1].at("reason").get<std::string>().find("the fake has no mxfp8"), std::string::npos);
  const Ran meta = run("subject: double\ndevice: meta\n");
  EXPECT_EQ(meta.code, 5);
  EXPECT_NE(meta.cell().at("reason").get<std::string>().find("meta"), std::string::npos);
  const Ran release = run("subject: torch\nversions: {after: 2.10}\n");
  EXPECT_EQ(release.code, 5);
  EXPECT_NE(release.cell().at("reason").get<std::string>().find("torch 2.10 is not installed"), std::string::npos);
  const Ran folder = run("subject: torch\nversions: {after: ./nowhere}\n");
  EXPECT_NE(folder.cell().at("reason").get<std::string>().find("no folder " + (directory_ / "nowhere").string()),
            std::string::npos);
}

TEST_F(SubjectCells, AReleaseRunsInItsVirtualEnvironmentAndAFolderComesFirst) {
  // A script in place of the environment's Python shows that it was called.
  const auto python = directory_ / "subjects/torch-2.10/bin/python";
  sample::write(python, "#!/bin/sh\nexec python3 \"$@\"\n");
  std::filesystem::permissions(python, std::filesystem::perms::owner_all);
  sample::write(directory_ / "checkout/fp8lab_library.py", "");
  const Ran ran =
      run("subject: torch\nversions: {before: 2.10, after: ./checkout}\n"
          "expect: [{metric: memory.retained_bytes, arm: difference, equals: 0}]\n");
  EXPECT_EQ(ran.code, 0) << ran.output << ran.errors;
  EXPECT_EQ(ran.note("before", 1), "version 2.10");
  EXPECT_EQ(ran.note("after", 1), "version " + (directory_ / "checkout").string());
}

TEST_F(SubjectCells, ABrokenWorkerIsAReasonAndNotACrash) {
  sample::write(directory_ / "broken/fp8lab_subjects/__init__.py", "");
  ::setenv("FP8LAB_WORKER", (directory_ / "broken").c_str(), 1);
  const Ran broken = run("subject: double\n");
  EXPECT_EQ(broken.code, 5);
  EXPECT_NE(broken.cell().at("reason").get<std::string>().find("cannot be asked"), std::string::npos);
  ::setenv("FP8LAB_WORKER", (directory_ / "nowhere").c_str(), 1);
  const Ran absent = run("subject: double\n");
  EXPECT_NE(absent.cell().at("reason").get<std::string>().find("FP8LAB_WORKER"), std::string::npos);
}

TEST_F(SubjectCells, KeysThatContradictEachOtherAreRefusedByName) {
  const Ran versions = run("versions: {before: 2.13.0}\n");
  EXPECT_EQ(versions.code, 2);
  EXPECT_NE(versions.errors.find("`versions.before`"), std::string::npos) << versions.errors;
  EXPECT_NE(versions.errors.find("`subject: torch`"), std::string::npos) << versions.errors;
  const Ran fix = run("subject: torch\nfix: write_back_list_updates\n");
  EXPECT_EQ(fix.code, 2);
  EXPECT_NE(fix.errors.find("`fix`"), std::string::npos) << fix.errors;
  const Ran unknown = run("subject: torhc\n");
  EXPECT_EQ(unknown.code, 2);
  EXPECT_NE(unknown.errors.find("Did you mean `torch`?"), std::string::npos) << unknown.errors;
}

TEST_F(SubjectCells, TheWorkerItselfNamesTheKeyThatALibraryCannotHonour) {
  // Folders in place of the libraries: whether they are there is all that the question needs.
  for (const char* name : {"torch", "torchao", "transformer_engine"})
    sample::write(directory_ / "packages" / name / "__init__.py", "raise ImportError('not a library')\n");
  ::setenv("FP8LAB_WORKER", paths::kWorkerFolder, 1);
  const auto reason = [this](const std::string& lines) {
    const Ran ran = run("device: cpu\nversions: {after: ./packages}\n" + lines);
    return ran.cells.empty() ? ran.errors : ran.cell().at("reason").dump();
  };
  const auto names = [](const std::string& text, const std::string& key) {
    return text.find(key) != std::string::npos;
  };
  EXPECT_TRUE(names(reason("subject: torch\ntraining: {recipe: current}\n"), "training.recipe: plain PyTorch"));
  EXPECT_TRUE(names(reason("subject: torch\ntraining: {optimizer: adam}\n"), "training.moments: PyTorch's Adam"));
  EXPECT_TRUE(names(reason("subject: torch\ntraining: {validation_batches: 1}\n"), "training.validation_batches"));
  EXPECT_TRUE(names(reason("subject: torchao\ntraining: {recipe: delayed}\n"), "training.recipe: torchao's"));
  EXPECT_TRUE(names(reason("subject: transformer_engine\n"), "device: Transformer Engine needs a GPU"));
  EXPECT_TRUE(names(reason("subject: torchao\ntraining: {recipe: current, recipe_options: {fp8_format: e4m3}}\n"),
                    "training.recipe_options.fp8_format: the worker builds recipes with the library's defaults"));
  for (const char* subject : {"torch", "torchao"})
    EXPECT_TRUE(names(
        reason("subject: " + std::string(subject) + "\nranks: 2\ntraining: {recipe: bf16, deferred_init: false}\n"),
        "training.deferred_init: "));
}

TEST_F(SubjectCells, ALibraryThatIsNotInstalledIsAskedForOnce) {
  // Without site packages Python finds no library.
  const auto python = directory_ / "python";
  sample::write(python, "#!/bin/sh\necho \"$3\" >> \"$PYTHON_LOG\"\nexec python3 -S \"$@\"\n");
  std::filesystem::permissions(python, std::filesystem::perms::owner_all);
  ::setenv("FP8LAB_SUBJECT_PYTHON", python.c_str(), 1);
  ::setenv("PYTHON_LOG", (directory_ / "log").c_str(), 1);
  ::setenv("FP8LAB_WORKER", paths::kWorkerFolder, 1);
  const Ran ran = run("device: cpu\nmatrix: {subject: [torch, torchao], layers: [1, 2]}\n");
  EXPECT_EQ(ran.code, 5);
  ASSERT_EQ(ran.cells.size(), 4u) << ran.errors;
  for (const Json& cell : ran.cells)
    EXPECT_NE(cell.at("reason").dump().find("torch is not installed"), std::string::npos) << cell.at("reason");
  EXPECT_EQ(sample::read(directory_ / "log"), "--check\n--check\n") << "once for each library";
}

TEST_F(SubjectCells, AnInstallationIsSuggestedForSubjectsThatCanBeInstalled) {
  const auto python = directory_ / "python";
  sample::write(python, "#!/bin/sh\nexec python3 -S \"$@\"\n");  // without site packages Python finds no library
  std::filesystem::permissions(python, std::filesystem::perms::owner_all);
  ::setenv("FP8LAB_SUBJECT_PYTHON", python.c_str(), 1);
  ::setenv("FP8LAB_WORKER", paths::kWorkerFolder, 1);
  sample::Process process({"subjects", "--json"}, directory_.string());
  EXPECT_EQ(process.finish(), 0) << process.errors;
  for (const Json& one : Json::parse(process.output)) {
    const std::string reason = one.at("reason"), name = one.at("subject");
    EXPECT_NE(reason.find("is not installed in"), std::string::npos) << reason;
    EXPECT_EQ(reason.find("--install " + name + "==") != std::string::npos, name != "double") << reason;
  }
}

TEST_F(SubjectCells, InstallingAReleaseMakesItsEnvironmentOrSaysWhatToDo) {
  // In place of Python: `-I -m venv DIR` makes DIR/bin/python, which calls this script too; pip ends with PIP_ENDS.
  const auto python = directory_ / "path/python3";
  sample::write(python,
                "#!/bin/sh\n"
                "test \"$1 $2\" = '-I -m' || exit 9\n"
                "if [ \"$3\" = venv ]; then mkdir -p \"$4/bin\" && cp \"$0\" \"$4/bin/python\"; exit; fi\n"
                "echo \"$@\" >> \"$PIP_LOG\"\n"
                "echo 'ERROR: no matching distribution' >&2\n"
                "exit \"$PIP_ENDS\"\n");
  std::filesystem::permissions(python, std::filesystem::perms::owner_all);
  const std::string path = std::getenv("PATH");
  ::setenv("PATH", ((directory_ / "path").string() + ":" + path).c_str(), 1);
  ::setenv("PIP_LOG", (directory_ / "log").c_str(), 1);
  const auto install = [this](const char* release, const char* pip_ends, std::string& errors) {
    ::setenv("PIP_ENDS", pip_ends, 1);
    sample::Process process({"subjects", "--install", release}, directory_.string());
    const int code = process.finish();
    errors = process.errors;
    return code;
  };
  const auto environment = directory_ / "subjects/transformer_engine-2.16.1";
  std::string errors;
  EXPECT_EQ(install("transformer_engine==2.16.1", "1", errors), 2);
  EXPECT_NE(errors.find("no matching distribution"), std::string::npos) << errors;
  EXPECT_NE(errors.find("--no-index --find-links"), std::string::npos) << errors;
  EXPECT_FALSE(std::filesystem::exists(environment)) << "what failed is removed";
  EXPECT_EQ(install("transformer_engine==2.16.1", "0", errors), 0) << errors;
  EXPECT_TRUE(std::filesystem::exists(environment / "bin/python"));
  EXPECT_NE(sample::read(directory_ / "log").find("transformer_engine[pytorch]==2.16.1"), std::string::npos);
  EXPECT_EQ(install("transformer_engine==2.16.1", "0", errors), 2) << "it exists";
  for (const char* wrong : {"own==1", "torch", "torch==", "torch==../x", "torch==1;rm"})
    EXPECT_EQ(install(wrong, "0", errors), 2) << wrong;
  ::setenv("PATH", path.c_str(), 1);
}

// A program in a group of its own gets no signal of the terminal, so it is ended for it.
TEST_F(SubjectCells, AStopEndsWhatAProgramStartedAndIsRaisedAgain) {
  const std::string pid = (directory_ / "pid").string(), cleared = (directory_ / "cleared").string();
  const auto run_until_stopped = [&] {
    const std::string own = std::to_string(::getpid());
    captured({"sh", "-c", "setsid sleep 60 & echo $! > " + pid + "; kill -TERM " + own + "; wait"}, "", 60,
             [&] { sample::write(cleared, "yes"); });
    std::_Exit(0);
  };
  EXPECT_EXIT(run_until_stopped(), ::testing::KilledBySignal(SIGTERM), "");
  EXPECT_EQ(sample::read(cleared), "yes");
  const std::string state = sample::read("/proc/" + std::to_string(std::stoi(sample::read(pid))) + "/stat");
  EXPECT_TRUE(state.empty() || state.find(") Z ") != std::string::npos) << state;
}

// With SIGCHLD ignored a program's own children have no exit status.
TEST_F(SubjectCells, AChildThatFailsDoesSoWhereItsSignalIsIgnored) {
  const auto before = std::signal(SIGCHLD, SIG_IGN);
  EXPECT_EQ(captured({"false"}, "", 60).status, 1);
  std::signal(SIGCHLD, before);
  EXPECT_EQ(captured({"false"}, "", 60).status, 1);
  EXPECT_EQ(captured({"true"}, "", 60).status, 0);
}

TEST_F(SubjectCells, TheCommandListsWhatIsInstalled) {
  sample::Process process({"subjects", "--json"}, directory_.string());
  EXPECT_EQ(process.finish(), 0) << process.errors;
  const Json listed = Json::parse(process.output);
  ASSERT_EQ(listed.size(), 4u);
  for (const Json& one : listed) EXPECT_EQ(one.at("available"), one.at("subject") == "double") << one;
  EXPECT_EQ(listed[0].at("reason"), "torch cannot be imported");
  EXPECT_EQ(listed[3].at("libraries").at("python"), "3");
}

}  // namespace
}  // namespace fp8lab
