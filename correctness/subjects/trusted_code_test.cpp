#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "harness/run/fake_process.h"
#include "support/paths.h"

// Which Python code the program runs: its own and the code of the libraries that a run needs, and nothing of the
// working directory. Commands that run no cells run no code of a scenario.
namespace fp8lab {
namespace {

using sample::contains;
using sample::Ended;

class TrustedCode : public ::testing::Test {
 protected:
  TrustedCode() {
    ::setenv("FP8LAB_WORKER", paths::kWorkerFolder, 1);
    ::setenv("FP8LAB_SUBJECTS", (directory_ / "subjects").c_str(), 1);
    ::setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
    for (const char* name : {"FP8LAB_SUBJECT_PYTHON", "FP8LAB_REPORTS", "FP8LAB_PYTHON", "PYTHONPATH"})
      ::unsetenv(name);
  }
  ~TrustedCode() override { ::unsetenv("PYTHONPATH"); }

  /// Writes Python modules that leave a file when they are imported.
  void write_modules(const std::string& folder, const std::vector<std::string>& names) {
    const std::string text = "open('" + (directory_ / "imported").string() + "', 'a').write(__name__ + ' ')\n";
    for (const std::string& name : names) sample::write(directory_ / folder / name, text);
  }

  /// The modules of write_modules() that were imported since the last call.
  std::string imported() {
    const std::string names = sample::read(directory_ / "imported");
    std::filesystem::remove(directory_ / "imported");
    return names;
  }

  std::string write_scenario(const std::string& lines) {
    sample::write(directory_ / "s.yaml", "version: 1\nname: s\ntitle: S\ndevice: cpu\n" + lines +
                                             "model: {layer: linear, hidden: 32, seq: 32}\nmeasure: [memory]\n");
    return (directory_ / "s.yaml").string();
  }

  Ended run(const std::vector<std::string>& words) { return sample::run(words, (directory_ / "here").string()); }

  sample::TemporaryDirectory directory_;
};

TEST_F(TrustedCode, WorkingDirectory_ItsModulesReplaceNoneOfThePrograms) {
  write_modules(
      "here", {"fp8lab_subjects/__init__.py", "fp8lab_subjects/worker.py", "json.py", "os.py", "runpy.py", "signal.py",
               "socket.py", "stat.py", "tempfile.py", "traceback.py", "importlib/__init__.py", "yaml.py", "numpy.py",
               "torch.py", "torchao/__init__.py", "transformer_engine.py", "sitecustomize.py", "usercustomize.py"});
  const std::string file = write_scenario("matrix: {subject: [torch, double]}\n");
  const std::string here = "cd " + (directory_ / "here").string();
  ASSERT_EQ(std::system((here + " && python3 -c 'import json'").c_str()), 0);
  ASSERT_EQ(imported(), "json ") << "modules of this test must be found without the program's precautions";
  for (const char* path : {"", ":", "/nowhere:", ":/nowhere", "/nowhere::/elsewhere"}) {
    ::setenv("PYTHONPATH", path, 1);
    run({"subjects"});
    EXPECT_EQ(imported(), "") << "subjects with PYTHONPATH " << path;
    run({"run", file, "-o", (directory_ / "out").string()});
    EXPECT_EQ(imported(), "") << "run with PYTHONPATH " << path;
  }
}

TEST_F(TrustedCode, WorkingDirectory_ItsModulesAreNoPackagesOfAReport) {
  write_modules("here", {"fastjsonschema.py", "matplotlib.py", "jinja2.py", "importlib/__init__.py", "load.py"});
  const auto python = directory_ / "python";
  sample::write(python, "#!/bin/sh\nexec python3 -S \"$@\"\n");  // without site packages
  std::filesystem::permissions(python, std::filesystem::perms::owner_all);
  sample::write(directory_ / "reports/__main__.py", "import fastjsonschema, jinja2, matplotlib\n");
  ::setenv("FP8LAB_REPORTS", (directory_ / "reports").c_str(), 1);
  ::setenv("FP8LAB_PYTHON", python.c_str(), 1);
  for (const char* path : {"", ":", "/nowhere:"}) {
    ::setenv("PYTHONPATH", path, 1);
    const Ended ended = run({"report", "out", "-o", "report"});
    EXPECT_EQ(ended.code, 2);
    EXPECT_TRUE(contains(ended.errors, "is no Python 3.11 with matplotlib, Jinja2 and fastjsonschema")) << ended.errors;
    EXPECT_EQ(imported(), "") << path;
  }
}

TEST_F(TrustedCode, FolderInVersions_RunsWithItsCellsOnlyAndIsNamedBefore) {
  write_modules("library", {"sitecustomize.py", "torch.py", "fp8lab_subjects/__init__.py"});
  std::filesystem::create_directory(directory_ / "here");
  const auto python = directory_ / "subjects/torch-2.10/bin/python";
  sample::write(python, "#!/bin/sh\necho release >> " + (directory_ / "imported").string() + "\nexec python3 \"$@\"\n");
  std::filesystem::permissions(python, std::filesystem::perms::owner_all);
  const std::string file = write_scenario(
      "subject: torch\nversions: {before: 2.10, after: ./library}\n"
      "expect: [{metric: memory.retained_bytes, arm: difference, equals: 0}]\n");
  const std::string note = "names the folder " + (directory_ / "library").string();
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"validate", file},
                                             {"validate", "--json", file},
                                             {"run", "--list", file},
                                             {"run", "--list", "--json", file},
                                             {"run", "--dry-run", file},
                                             {"plan", "--capacity", "1GiB", file},
                                             {"plan", "--as", "transformer_engine@2.16", file},
                                             {"fixes", "--scenarios", directory_.string()},
                                             {"env"},
                                             {"completion", "bash"},
                                             {"__complete", "run", file}}) {
    const Ended ended = run(words);
    EXPECT_EQ(imported(), "") << words[0] << " " << words.back();
    const bool lists = words[0] == "validate" || words[0] == "run";
    EXPECT_EQ(contains(ended.errors, note), lists) << words[0] << ": " << ended.errors;
    EXPECT_EQ(contains(ended.errors, "only if you trust it like code"), lists) << words[0] << ": " << ended.errors;
    if (lists) {
      EXPECT_EQ(ended.code, 0) << words[0] << ": " << ended.errors;
    }
  }
  run({"run", file, "-o", (directory_ / "out").string()});
  EXPECT_TRUE(contains(imported(), "release")) << "a command that runs cells calls the worker";
}

}  // namespace
}  // namespace fp8lab
