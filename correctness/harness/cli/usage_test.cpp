#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "harness/run/fake_process.h"
#include "harness/scenario/scenario.h"

// Errors of mistyped command lines and of unusual files and streams.
namespace fp8lab {
namespace {

using Json = nlohmann::json;
using sample::contains;
using sample::Ended;
using sample::run;
using sample::Scenarios;
using sample::shell;

struct Mistyped {
  std::vector<std::string> arguments;
  std::string error;
};

TEST(Usage, ErrorsNameTheWordTheRemedyAndTheHelpCommand) {
  const Mistyped cases[] = {
      {{}, "a command is missing; give one of run, watch"},
      {{"--json"}, "a command is missing; give one of run, watch"},
      {{"--json", "rnu"}, "or man, and options after it\n"},
      {{"--verbose"}, "fp8lab has no option `--verbose`. Allowed: --help or --version."},
      {{"--versoin"}, "fp8lab has no option `--versoin`. Did you mean `--version`?"},
      {{"--json", "devices"}, "`--json` stands before the command; options go after it: `fp8lab devices --json`\n"},
      {{"-j", "2", "run", "a"}, "`-j` stands before the command; options go after it: `fp8lab run -j 2 ...`\n"},
      {{"-j2", "--list", "run", "a"}, "options go after it: `fp8lab run -j2 --list ...`\n"},
      {{"--jobs=2", "run"}, "`--jobs=2` stands before the command; options go after it: `fp8lab run --jobs=2`\n"},
      {{"--verbose", "run", "a"}, "run has no option `--verbose`. Allowed: --help, --device"},
      {{"devices", "--", "--json"}, "`--json` is one word too many for devices"},
      {{"rnu", "scenarios"}, "unknown command `rnu`. Did you mean `run`?"},
      {{"run", "scenarios", "--tiemout", "3"}, "run has no option `--tiemout`. Did you mean `--timeout`?"},
      {{"run", "scenarios", "--rseume"}, "See fp8lab run --help."},
      {{"run", "scenarios", "--out"}, "--out needs a value"},
      {{"run", "scenarios", "-o", "a", "-o", "b"}, "--out is given more than once; it takes one value\n"},
      {{"run", "scenarios", "-j", "1", "-j", "2", "-j", "3"}, "--jobs is given more than once; it takes one value\n"},
      {{"run", "scenarios", "-d", "cpu", "-d", "meta", "-d"}, "--device needs a value\n"},
      {{"run", "scenarios", "--nosuch", "-o"}, "run has no option `--nosuch`. Allowed: --help, --device"},
      {{"run", "scenarios", "--jobs", "0"}, "--jobs: `0` is not an integer from 1 to 1024"},
      {{"run", "scenarios", "--jobs", "1e3"}, "--jobs: `1e3` is not an integer from 1 to 1024"},
      {{"run", "scenarios", "--timeout", "nan"}, "--timeout: `nan` is not a number from 0.001 to 86400"},
      {{"run", "scenarios", "--timeout", "inf"}, "--timeout: `inf` is not a number from 0.001 to 86400"},
      {{"watch", "--steps", "0", "--", "true"}, "--steps: `0` "},
      {{"watch", "--timeout", "0", "--", "true"}, "--timeout: `0` is not a number from 0.001 to 86400"},
      {{"divergence", "a", "b", "b"}, "INPUT is given more than 2 times\n"},
      {{"plan", "scenarios", "--capacity", "20"},
       "--capacity: `20` is not a size of at least 1 MiB with its unit (80GiB"},
      {{"plan", "scenarios", "--capacity", "80 ms"}, "--capacity: `80 ms` is not a size"},
      {{"keys", "retained"},
       "keys: unknown key `retained`. Did you mean the metric `memory.retained_bytes`? "
       "`fp8lab metrics memory.retained_bytes` explains it."},
      {{"keys", "retained_bytes"},
       "keys: `retained_bytes` is a metric, not a key; `fp8lab metrics memory.retained_bytes`"},
      {{"keys", "hiden"}, "keys: unknown key `hiden`. Did you mean `hidden`?"},
      {{"keys", "zzzzzzzz"}, "keys: unknown key `zzzzzzzz`; `fp8lab keys` lists all"},
      {{"metrics", "hidden"}, "metrics: `hidden` is a key, not a metric or group; `fp8lab keys hidden` explains it"},
      {{"metrics", "memory.peek_bytes"},
       "metrics: unknown metric or group `memory.peek_bytes`. Did you mean `memory.pe"},
      {{"validate", ""}, "``: no such file or directory; give a scenario file, or a directory"},
      {{"validate", "/proc/self/mem/x"}, "; give a scenario file, or a directory"},
  };
  for (const Mistyped& c : cases) {
    const Ended ended = run(c.arguments);
    EXPECT_EQ(ended.code, 2) << c.error;
    EXPECT_TRUE(contains(ended.errors, c.error)) << ended.errors;
    EXPECT_EQ(ended.output, "");
  }
}

TEST(Usage, ExpectationsAboutValuesThatNoDeviceComputesAreRefusedWithTheRemedy) {
  const Scenarios scenarios({});
  const std::string file = scenarios.file("values.yaml").string();
  const auto validated = [&](const std::string& when) {
    sample::write(file,
                  "version: 1\nname: values\ntitle: Values\nmodel: {layer: linear, hidden: 64, seq: 8}\n"
                  "matrix: {device: [meta, cpu]}\nmeasure: [parity, memory]\nexpect:\n"
                  "  - {metric: memory.peak_bytes, at_least: 1}\n  - {metric: parity.loss_gap, at_most: 1" +
                      when + "}\n");
    return run({"validate", file});
  };
  const Ended refused = validated("");
  EXPECT_EQ(refused.code, 2);
  EXPECT_EQ(refused.errors, "fp8lab: error: " + file +
                                ":9:1: `expect`: parity.loss_gap needs values, and device meta of cell "
                                "values/device=meta computes none, so it could only end inconclusive; add "
                                "`when: {device: cpu}`\n");
  EXPECT_EQ(validated(", when: {device: cpu}").code, 0);
}

TEST(Usage, UnknownInstructionSetIsRefusedWithTheKnownOnes) {
  const std::string command =
      "FP8LAB_CPU_ISA=avx9 $P devices 2>&1 | grep -q \"FP8LAB_CPU_ISA: instruction set 'avx9'.* baseline\"";
  EXPECT_EQ(shell(command), 0);
  EXPECT_EQ(shell("FP8LAB_CPU_ISA=avx9 $P devices 2>/dev/null"), 2);
  EXPECT_EQ(shell("FP8LAB_CPU_ISA=baseline $P devices >/dev/null"), 0);
}

TEST(Usage, EmptyListIsReported) {
  const Scenarios scenarios({"one"});
  const Ended ended = run(scenarios.run_arguments({"--list", "-f", "two"}));
  EXPECT_EQ(ended.code, 5);
  EXPECT_TRUE(contains(ended.errors, "no cell matches")) << ended.errors;
}

TEST(Usage, CountsOfOneAreSingular) {
  const Scenarios scenarios({"one"});
  EXPECT_EQ(run({"validate", scenarios.path()}).output, "1 file, 1 cell: all valid\n");
  EXPECT_TRUE(contains(run(scenarios.run_arguments()).output, "\n1 cell in ")) << "and so does a run";
}

TEST(Usage, LinkToItselfIsOneError) {
  const Scenarios scenarios({});
  const std::string link = scenarios.file("loop").string();
  std::filesystem::create_symlink("loop", link);
  const Ended ended = run({"validate", link});
  EXPECT_EQ(ended.code, 2);
  EXPECT_TRUE(ended.errors.starts_with("fp8lab: error: " + link + ": ")) << ended.errors;
  const Ended compared = run({"compare", link, link});
  EXPECT_EQ(compared.code, 2);
  EXPECT_FALSE(contains(compared.errors, "no such file")) << compared.errors;
}

TEST(Usage, UnreadableFolderDoesNotHideMistakesBesideIt) {
  Scenarios scenarios({});
  scenarios.add("bad", "nosuch: 1\n");
  const std::filesystem::path folder = scenarios.file("closed");
  std::filesystem::create_directory(folder);
  std::filesystem::permissions(folder, std::filesystem::perms::none);
  std::filesystem::permissions(scenarios.path(), std::filesystem::perms(0755));
  // The superuser may read every folder.
  const bool privileged = ::geteuid() == 0;
  ASSERT_TRUE(!privileged || ::seteuid(65534) == 0);
  std::string errors;
  {
    const LoadedScenarios loaded = load_scenarios(find_scenario_files({scenarios.path()}), sample::vocabulary());
    for (const ScenarioError& error : loaded.errors) errors += std::string(error.what()) + "\n";
  }
  ASSERT_TRUE(!privileged || ::seteuid(0) == 0);
  std::filesystem::permissions(folder, std::filesystem::perms::owner_all);
  EXPECT_TRUE(contains(errors, "bad.yaml:9:1: `nosuch`: no such key")) << errors;
  EXPECT_TRUE(contains(errors, "closed: cannot be searched for scenarios: Permission denied")) << errors;
}

TEST(Usage, HelpOfEveryCommandFitsAHundredColumnsAndGivesExitCodes) {
  for (const std::string command : {"run",     "watch",    "bisect", "divergence", "snapshot",   "plan",    "compare",
                                    "report",  "validate", "init",   "fixes",      "recipes",    "devices", "keys",
                                    "metrics", "subjects", "schema", "env",        "completion", "man",     ""}) {
    const std::string help =
        run(command.empty() ? std::vector<std::string>{"--help"} : std::vector<std::string>{command, "--help"}).output;
    EXPECT_TRUE(contains(help, "Exit codes: 0 ")) << command << ":\n" << help;
    std::istringstream lines(help);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << command << ": " << line;
  }
}

TEST(Usage, EveryKeySaysWhatItsAbsenceMeans) {
  for (const Json& row : Json::parse(run({"keys", "--json"}).output))
    EXPECT_FALSE(row["default"].is_null() || row["default"] == "") << row["name"];
  const auto explained = [](const std::string& key) { return run({"keys", key}).output; };
  EXPECT_TRUE(contains(explained("hidden"), "default:   required\n")) << explained("hidden");
  EXPECT_TRUE(contains(explained("title"), "default:   required\n")) << explained("title");
  EXPECT_TRUE(contains(explained("positions"), "absent unless given: learned in form gpt")) << explained("positions");
  EXPECT_TRUE(contains(explained("optimizer"), "default:   none\n")) << explained("optimizer");
  EXPECT_TRUE(contains(explained("capacity"), "example:   capacity: 80GiB\n")) << explained("capacity");
  EXPECT_TRUE(contains(explained("expect"), "after by default")) << explained("expect");
}

TEST(Usage, UnreadableFilesAreReportedWithTheReason) {
  const Scenarios scenarios({"one"});
  ASSERT_EQ(run(scenarios.run_arguments()).code, 0);
  sample::write(scenarios.file("out/results.jsonl"), scenarios.cell_lines() + "garbage\n");
  const Ended resumed = run(scenarios.run_arguments({"--resume"}));
  EXPECT_EQ(resumed.code, 2);
  EXPECT_TRUE(contains(resumed.errors, "results.jsonl:2: not a line of an earlier run")) << resumed.errors;
  EXPECT_TRUE(contains(resumed.errors, "remove the line to continue")) << resumed.errors;
  EXPECT_FALSE(contains(resumed.errors, "json.exception")) << resumed.errors;
}

TEST(Streams, PrintedOutputNeverGetsIntoResults) {
  for (const char* closed : {">&-", "<&- >&- 2>&-", "<&- >&-"}) {
    const Scenarios scenarios({"one", "two"});
    ASSERT_EQ(shell("$P run " + scenarios.path() + " -o " + scenarios.out() + " " + closed), 0) << closed;
    EXPECT_TRUE(Json::accept(scenarios.results())) << closed << scenarios.results();
    EXPECT_EQ(Json::parse(scenarios.results())["cells"].size(), 2u) << closed;
    EXPECT_EQ(run(scenarios.run_arguments({"--resume"})).code, 0) << closed;
  }
}

TEST(Streams, LostOutputDoesNotExitZero) {
  const Scenarios scenarios({"one"});
  const std::string command = "$P run " + scenarios.path() + " -o " + scenarios.out();
  const std::string quiet = " >/dev/full 2>/dev/null";
  ASSERT_EQ(shell(command + " > /dev/null"), 0);  // leaves the results that `compare` reads below
  const std::string run = scenarios.out();
  for (const std::string& words :
       {std::string("recipes"), std::string("devices"), std::string("env"), std::string("fixes"), std::string("--help"),
        std::string("run --help"), std::string("--version"), std::string("completion bash"),
        std::string("__complete run -"), "validate " + scenarios.path(), "plan " + scenarios.path(),
        "compare " + run + " " + run})
    EXPECT_EQ(shell("$P " + words + quiet), 2) << words;
  for (const char* option : {" --list", " --dry-run", " --json", ""})
    EXPECT_EQ(shell(command + option + quiet), 2) << option;
  EXPECT_TRUE(std::filesystem::exists(run + "/results.json")) << "its results are files, and are there";
  EXPECT_EQ(shell("[ $($P recipes 2>&1 >/dev/full | grep -c 'standard output cannot be written') = 1 ]"), 0);
  // `| head`: the reader has ended before the program writes.
  const std::string errors = scenarios.file("errors").string();
  EXPECT_EQ(shell("{ sleep 0.2; " + command + " 2>" + errors + "; } | true; grep -q 'has ended' " + errors), 0);
}

TEST(Limits, FileThatCouldNotBeWrittenIsNotMentioned) {
  const Scenarios scenarios({"one", "two"});
  const std::string command = "$P run " + scenarios.path() + " -o " + scenarios.out(),
                    output = scenarios.file("output").string();
  ASSERT_EQ(shell(command + " > /dev/null"), 0);
  // Blocks enough for the lines of all cells, but not for environment.json too. The seconds may have a digit or two
  // more.
  const std::size_t blocks = (scenarios.cell_lines().size() + 100) / 512 + 1;
  ASSERT_LT(blocks * 512, scenarios.read("results.json").size());
  EXPECT_EQ(shell("ulimit -f " + std::to_string(blocks) + "; " + command + " > " + output + " 2>&1"), 2);
  const std::string text = sample::read(output);
  EXPECT_TRUE(contains(text, "results.json: cannot be written")) << text;
  EXPECT_TRUE(contains(text, "exit 2: ")) << text;
  EXPECT_FALSE(contains(text, "results: ")) << text;
}

TEST(Limits, FileDescriptors_TooFew_AreNamedWithTheNumberAndTheRemedy) {
  const Scenarios scenarios({"one"});
  const std::string run = "$P run -j 8 " + scenarios.path() + " -o " + scenarios.out() + " > " +
                          scenarios.file("output").string() + " 2>&1";
  EXPECT_EQ(shell("ulimit -n 16; " + run), 2);
  EXPECT_EQ(sample::read(scenarios.file("output")),
            "fp8lab: error: too few file descriptors: the limit on open files is 16 (`ulimit -n`), and 29 are needed; "
            "raise it "
            "(`ulimit -n 29`), or run fewer arms at a time (--jobs)\n");
  EXPECT_EQ(shell("ulimit -Sn 16; " + run), 0) << "a soft limit is the program's own to raise";
  EXPECT_EQ(shell("ulimit -n 29; " + run), 0) << "they are enough";
}

TEST(Limits, ProcessorTime_UsedUp_IsNamed) {
  for (const char* limit : {"ulimit -t 1", "ulimit -St 1"}) {
    const ArmResult arm = sample::before_arm(Scenarios({"before_spin"}), limit);
    EXPECT_EQ(arm.status, "crashed");
    EXPECT_TRUE(contains(arm.reason, "its processor time is used up; the limit is `ulimit -t`")) << arm.reason;
  }
}

TEST(Limits, Threads_NotStarted_NameTheLimit) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NPROC, &before), 0);
  const rlimit finite{std::min<rlim_t>(before.rlim_cur, 1000000), before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NPROC, &finite), 0);
  const ArmResult arm = sample::before_arm(Scenarios({"before_threads"}), "");
  ::setrlimit(RLIMIT_NPROC, &before);
  EXPECT_EQ(arm.status, "error");
  EXPECT_TRUE(contains(arm.reason, "Resource temporarily unavailable; the limit on processes and threads is "))
      << arm.reason;
}

}  // namespace
}  // namespace fp8lab
