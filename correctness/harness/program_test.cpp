#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "harness/json_schema.h"
#include "harness/sample.h"
#include "harness/temporary_directory.h"

// The command line as a user meets it: a process with arguments, output, an exit code and files.
namespace fp8lab {
namespace {

using Json = nlohmann::json;
using sample::TemporaryDirectory;
using std::chrono::seconds;
using std::chrono::steady_clock;

/// A program that runs; what it prints is read by finish().
class Process {
 public:
  explicit Process(std::vector<std::string> arguments, const std::string& working_directory = "/") {
    arguments.insert(arguments.begin(), FP8LAB_FAKE_PROGRAM);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    int out[2], err[2];
    if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(out[1], 1);
      ::dup2(err[1], 2);
      if (::chdir(working_directory.c_str()) == 0) ::execv(argv[0], argv.data());
      ::_exit(126);
    }
    ::close(out[1]);
    ::close(err[1]);
    out_ = out[0];
    err_ = err[0];
  }
  ~Process() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    ::close(out_);
    ::close(err_);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  /// Waits for the end; the exit code, or minus the signal.
  int finish() {
    pollfd fds[] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}};
    while (fds[0].fd >= 0 || fds[1].fd >= 0) {
      ::poll(fds, 2, -1);
      for (int i = 0; i < 2; ++i) {
        if (fds[i].fd < 0 || fds[i].revents == 0) continue;
        char buffer[4096];
        const ssize_t n = ::read(fds[i].fd, buffer, sizeof buffer);
        if (n > 0) (i == 0 ? output : errors).append(buffer, static_cast<std::size_t>(n));
        if (n <= 0) fds[i].fd = -1;
      }
    }
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  pid_t pid() const { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }

  std::string output, errors;

 private:
  pid_t pid_;
  int out_, err_;
};

struct Ended {
  int code;
  std::string output, errors;
};

Ended run(const std::vector<std::string>& arguments, const std::string& working_directory = "/") {
  Process process(arguments, working_directory);
  const int code = process.finish();
  return {code, process.output, process.errors};
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// A directory with one scenario per name; fake_arms.cpp says what the names do.
class Scenarios {
 public:
  explicit Scenarios(const std::vector<std::string>& names) {
    for (const std::string& name : names) add(name, "device: meta\n");
  }

  void add(const std::string& name, const std::string& more) {
    std::string text = sample::kFixScenario + more + R"(expect:
  - {metric: memory.retained_bytes, arm: before, equals: predicted}
  - {metric: memory.retained_bytes, arm: after, equals: 0}
)";
    text.replace(text.find("name: sample"), 12, "name: " + name);
    sample::write(directory_ / (name + ".yaml"), text);
  }

  std::string path() const { return directory_.string(); }
  std::string out() const { return (directory_ / "out").string(); }
  std::filesystem::path file(const std::string& name) const { return directory_ / name; }
  std::string read(const std::string& name) const { return sample::read(directory_ / "out" / name); }
  Json results() const { return Json::parse(read("results.json")); }

  std::vector<std::string> run_arguments(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> out_arguments{"run", path(), "-o", out()};
    out_arguments.insert(out_arguments.end(), more.begin(), more.end());
    return out_arguments;
  }

 private:
  TemporaryDirectory directory_;
};

Json schema() { return Json::parse(sample::read(std::string(FP8LAB_SCHEMA_DIRECTORY) + "/results.schema.json")); }

TEST(Program, ConfirmedCellsExitZeroAndLeaveEveryDocument) {
  const Scenarios scenarios({"one", "two"});
  const Ended ended = run(scenarios.run_arguments());
  EXPECT_EQ(ended.code, 0) << ended.errors;
  EXPECT_EQ(ended.errors, "");
  EXPECT_TRUE(contains(ended.output, "/2] confirmed      one  0.")) << ended.output;
  EXPECT_TRUE(contains(ended.output, "2 confirmed\n")) << ended.output;
  EXPECT_TRUE(contains(ended.output, "results: " + scenarios.out() + "/results.json\n"));
  EXPECT_TRUE(contains(ended.output, "exit 0: all good\n"));
  EXPECT_FALSE(contains(ended.output, "\033")) << "colours belong on terminals";
  EXPECT_EQ(sample::schema_violations(schema(), scenarios.results()), std::vector<std::string>{});
  EXPECT_EQ(scenarios.results()["complete"], true);
  EXPECT_EQ(Json::parse(scenarios.read("environment.json")), scenarios.results()["environment"]);
  EXPECT_TRUE(contains(scenarios.read("summary.md"), "# fp8lab: 2 confirmed"));
  EXPECT_TRUE(contains(scenarios.read("junit.xml"), "<testcase classname=\"one\""));
  EXPECT_EQ(scenarios.read("timelines/one.before.json"), "{\"events\": []}");
}

struct ExitCase {
  std::vector<std::string> scenarios;
  int code;
  std::string verdict;
};

TEST(Program, ExitCodesSayWhatHappened) {
  const ExitCase cases[] = {
      {{"after_broken"}, 1, "not_fixed"},
      {{"after_worse"}, 1, "regressed"},
      {{"before_nan"}, 1, "not_reproduced"},
      {{"before_absent"}, 3, "inconclusive"},
      {{"before_segv"}, 4, "crashed"},
      {{"after_oom"}, 4, "crashed"},
      {{"before_hang"}, 124, "timeout"},
      {{"after_broken", "before_absent", "good"}, 1, "not_fixed"},
      {{"after_broken", "before_segv"}, 4, "crashed"},
  };
  for (const ExitCase& c : cases) {
    const Scenarios scenarios(c.scenarios);
    const Ended ended = run(scenarios.run_arguments({"--timeout", "1"}));
    EXPECT_EQ(ended.code, c.code) << ended.output;
    EXPECT_TRUE(contains(ended.output, c.verdict)) << ended.output;
    EXPECT_TRUE(contains(ended.output, "exit " + std::to_string(c.code) + ": ")) << ended.output;
    EXPECT_EQ(sample::schema_violations(schema(), scenarios.results()), std::vector<std::string>{});
  }
}

TEST(Program, NothingToRunIsNotGreen) {
  Scenarios scenarios({});
  scenarios.add("carded", "device: cuda\n");
  const Ended skipped = run(scenarios.run_arguments());
  EXPECT_EQ(skipped.code, 5);
  EXPECT_TRUE(contains(skipped.output, "skipped        carded  (no CUDA device was found)")) << skipped.output;
  const Ended filtered = run(scenarios.run_arguments({"-f", "nothing"}));
  EXPECT_EQ(filtered.code, 5);
  EXPECT_TRUE(contains(filtered.errors, "no cell matches"));
}

TEST(Program, BadFilesAreAllToldBeforeAnythingRuns) {
  const Scenarios scenarios({"good"});
  sample::write(scenarios.file("bad1.yaml"), "version: 3\n");
  sample::write(scenarios.file("deep/bad2.yml"), "version: 1\nnmae: x\n");
  sample::write(scenarios.file("deep/twin.yaml"), sample::read(scenarios.file("good.yaml")));
  sample::write(scenarios.file("schema/ignored.yaml"), "not a scenario");
  sample::write(scenarios.file("ignored.txt"), "not a scenario");
  const Ended ended = run(scenarios.run_arguments());
  EXPECT_EQ(ended.code, 2);
  EXPECT_EQ(ended.output, "");
  EXPECT_TRUE(contains(ended.errors, "bad1.yaml:1:10: `version` must be 1")) << ended.errors;
  EXPECT_TRUE(contains(ended.errors, "bad2.yml:2:1: `nmae`: no such key. Did you mean `name`?")) << ended.errors;
  EXPECT_TRUE(contains(
      ended.errors, "good.yaml:2:1: `name`: good already names a scenario, in " + scenarios.path() + "/deep/twin.yaml"))
      << ended.errors;
  EXPECT_FALSE(contains(ended.errors, "ignored"));
  EXPECT_FALSE(std::filesystem::exists(scenarios.out()));

  const Ended validated = run({"validate", scenarios.path(), "--json"});
  EXPECT_EQ(validated.code, 2);
  const Json report = Json::parse(validated.output);
  EXPECT_EQ(report["files"], 4);
  ASSERT_EQ(report["errors"].size(), 3u);
  EXPECT_EQ(report["errors"][0]["line"], 1);
}

TEST(Program, BadUsageExitsTwoWithOneError) {
  const Scenarios scenarios({"good"});
  const std::vector<std::vector<std::string>> uses{
      {},
      {"walk"},
      {"run"},
      {"run", "/nonexistent"},
      {"run", scenarios.path(), "--colour"},
      {"run", scenarios.path(), "-j", "0"},
      {"run", scenarios.path(), "-j", "two"},
      {"run", scenarios.path(), "--timeout", "-3"},
      {"run", scenarios.path(), "-d", "mate"},
      {"run", scenarios.path(), "-f", "("},
      {"run", scenarios.path(), "-o", scenarios.path() + "/good.yaml"},
      {"run", scenarios.path(), "-o", "/proc/nowhere"},
      {"validate"},
      {"fixes", "--scenarios", "/nonexistent"},
  };
  for (const auto& use : uses) {
    const Ended ended = run(use);
    std::string shown;
    for (const std::string& word : use) shown += word + " ";
    EXPECT_EQ(ended.code, 2) << shown << ended.errors;
    EXPECT_TRUE(ended.errors.starts_with("fp8lab: error: ")) << shown << ended.errors;
  }
  EXPECT_TRUE(contains(run({"run", scenarios.path(), "-d", "mate"}).errors, "Did you mean `meta`?"));
}

TEST(Program, HelpAndVersionExitZero) {
  EXPECT_EQ(run({"--version"}).output, "fp8lab 0.0.0-fake\n");
  const Ended help = run({"run", "--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_TRUE(contains(help.output, "Examples:")) << help.output;
  EXPECT_TRUE(contains(help.output, "124 timeout"));
  EXPECT_EQ(run({"--help"}).code, 0);
}

TEST(Program, FiltersByDeviceAndByExpression) {
  Scenarios scenarios({});
  scenarios.add("alpha", "matrix: {device: [cpu, meta, cuda], checkpoint: [none, full]}\n");
  const auto ids = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"run", scenarios.path(), "--list"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments).output;
  };
  EXPECT_EQ(ids({"-d", "cpu"}), "alpha/device=cpu,checkpoint=none\nalpha/device=cpu,checkpoint=full\n");
  EXPECT_EQ(ids({"-d", "meta,cpu", "-f", "full"}),
            "alpha/device=cpu,checkpoint=full\nalpha/device=meta,checkpoint=full\n");
  EXPECT_EQ(ids({"-d", "meta", "-d", "cpu", "-f", "none$"}),
            "alpha/device=cpu,checkpoint=none\nalpha/device=meta,checkpoint=none\n");
  EXPECT_EQ(ids({"-f", "-cpu|meta"}),
            "alpha/device=cuda,checkpoint=none  (skipped: no CUDA device was found)\n"
            "alpha/device=cuda,checkpoint=full  (skipped: no CUDA device was found)\n");
  EXPECT_EQ(Json::parse(ids({"--json"})).size(), 6u);
}

TEST(Program, ADryRunShowsEverythingAndRunsNothing) {
  const Scenarios scenarios({"before_hang"});
  const Ended text = run(scenarios.run_arguments({"--dry-run"}));
  EXPECT_EQ(text.code, 0);
  EXPECT_TRUE(contains(text.output, "  arms: before, after, bf16\n")) << text.output;
  EXPECT_TRUE(contains(text.output, "  expects: before memory.retained_bytes equals predicted\n"));
  EXPECT_FALSE(std::filesystem::exists(scenarios.out()));
  const Json json = Json::parse(run(scenarios.run_arguments({"--dry-run", "--json"})).output);
  EXPECT_EQ(json[0]["config"]["model.hidden"], 2048);
}

TEST(Program, JsonGoesToStandardOutputAndProgressToStandardError) {
  const Scenarios scenarios({"one"});
  const Ended ended = run(scenarios.run_arguments({"--json"}));
  EXPECT_EQ(Json::parse(ended.output), scenarios.results());
  EXPECT_TRUE(contains(ended.errors, "[1/1] confirmed"));
}

TEST(Program, ListsItsTables) {
  const Scenarios scenarios({"one", "two"});
  const Json fixes = Json::parse(run({"fixes", "--json", "--scenarios", scenarios.path()}).output);
  ASSERT_EQ(fixes.size(), 2u);
  EXPECT_EQ(fixes[0], (Json{{"name", "release_attention_tensors"},
                            {"upstream", {"TransformerEngine#1935"}},
                            {"symptom", "memory stays"},
                            {"decision", "attention_shells"},
                            {"scenarios", {"one", "two"}}}));
  EXPECT_TRUE(contains(run({"fixes", "--scenarios", scenarios.path()}).output, "scenarios: one, two"));
  EXPECT_EQ(Json::parse(run({"recipes", "--json"}).output)[2]["name"], "mxfp8");
  EXPECT_TRUE(contains(run({"recipes"}).output, "delayed"));
  const Json devices = Json::parse(run({"devices", "--json"}).output);
  EXPECT_EQ(devices[2]["available"], false);
  EXPECT_EQ(devices[2]["unavailable_reason"], "no CUDA device was found");
  EXPECT_TRUE(contains(run({"devices"}).output, "(unavailable: no CUDA device was found)"));
  EXPECT_TRUE(Json::parse(run({"env", "--json"}).output).contains("cpu"));
  EXPECT_TRUE(contains(run({"env"}).output, "program.git_commit"));
}

TEST(Program, ResumesWithOnlyWhatIsLeft) {
  Scenarios scenarios({"one", "two"});
  EXPECT_EQ(run(scenarios.run_arguments({"-f", "one"})).code, 0);
  const std::string first_line = scenarios.read("results.jsonl");
  const Ended resumed = run(scenarios.run_arguments({"--resume"}));
  EXPECT_EQ(resumed.code, 0);
  EXPECT_TRUE(contains(resumed.output, "1 of 2 cells are finished already")) << resumed.output;
  EXPECT_FALSE(contains(resumed.output, "confirmed      one"));
  EXPECT_TRUE(scenarios.read("results.jsonl").starts_with(first_line));
  EXPECT_EQ(scenarios.results()["cells"].size(), 2u);

  std::string changed = sample::read(scenarios.file("one.yaml"));
  changed.replace(changed.find("layers: 3"), 9, "layers: 4");
  sample::write(scenarios.file("one.yaml"), changed);
  EXPECT_TRUE(contains(run(scenarios.run_arguments({"--resume"})).output, "confirmed      one"))
      << "a changed cell runs again";
  EXPECT_EQ(scenarios.results()["cells"].size(), 2u);

  std::filesystem::resize_file(scenarios.file("out/results.jsonl"), scenarios.read("results.jsonl").size() - 20);
  const Ended truncated = run(scenarios.run_arguments({"--resume"}));
  EXPECT_EQ(truncated.code, 0) << truncated.errors;
  EXPECT_TRUE(contains(truncated.output, "cut short")) << truncated.output;
  EXPECT_EQ(scenarios.results()["cells"].size(), 2u);
}

/// Numbers of the processes whose parent is `parent`.
std::vector<pid_t> children_of(pid_t parent) {
  std::ifstream in("/proc/" + std::to_string(parent) + "/task/" + std::to_string(parent) + "/children");
  std::vector<pid_t> out;
  for (pid_t pid; in >> pid;) out.push_back(pid);
  return out;
}

/// False for zombies too: they are dead and wait for whoever adopted them.
bool runs(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string number, command, state;
  return static_cast<bool>(in >> number >> command >> state) && state != "Z" && state != "X";
}

/// True while a signal that was sent to `pid` has not been taken.
bool is_pending(pid_t pid, int signal) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("ShdPnd:")) return (std::stoull(line.substr(7), nullptr, 16) >> (signal - 1) & 1) != 0;
  return false;
}

template <class Condition>
bool comes_true(Condition condition) {
  const auto give_up = steady_clock::now() + seconds(20);
  while (steady_clock::now() < give_up) {
    if (condition()) return true;
    ::poll(nullptr, 0, 2);
  }
  return false;
}

/// A run in which `good` is on disk and `after_hang` hangs.
struct HangingRun {
  Scenarios scenarios;
  Process process;
  std::vector<pid_t> children;

  explicit HangingRun(const std::string& hanging)
      : scenarios({hanging, "good"}), process(scenarios.run_arguments({"-j", "2"})) {
    const auto hangs = [&] {
      children = children_of(process.pid());
      return children.size() == 1 && scenarios.read("results.jsonl").ends_with("\n");
    };
    EXPECT_TRUE(comes_true(hangs));
  }
};

void expect_valid_rest(const HangingRun& run) {
  const Json results = run.scenarios.results();
  EXPECT_EQ(results["complete"], false);
  ASSERT_EQ(results["cells"].size(), 1u);
  EXPECT_EQ(results["cells"][0]["id"], "good");
  EXPECT_EQ(sample::schema_violations(schema(), results), std::vector<std::string>{});
  EXPECT_TRUE(contains(run.scenarios.read("summary.md"), "Stopped before its end: 1 of 2"));
  EXPECT_TRUE(contains(run.scenarios.read("junit.xml"), "</testsuites>"));
  for (const pid_t child : run.children) EXPECT_FALSE(runs(child));
}

TEST(Program, CtrlCStopsEveryChildAndLeavesAValidResultSet) {
  HangingRun run("before_hang");
  run.process.signal(SIGINT);
  EXPECT_EQ(run.process.finish(), 130);
  EXPECT_TRUE(contains(run.process.output, "stopped: 1 of 2 cells finished")) << run.process.output;
  EXPECT_TRUE(contains(run.process.output, "exit 130: interrupted"));
  expect_valid_rest(run);
}

TEST(Program, TerminationDoesTheSame) {
  HangingRun run("before_hang");
  run.process.signal(SIGTERM);
  EXPECT_EQ(run.process.finish(), 143);
  expect_valid_rest(run);
}

TEST(Program, ASecondCtrlCKillsAtOnce) {
  HangingRun run("before_stubborn");
  const auto start = steady_clock::now();
  run.process.signal(SIGINT);
  // Two of a kind that are both still on their way count as one.
  ASSERT_TRUE(comes_true([&] { return !is_pending(run.process.pid(), SIGINT); }));
  run.process.signal(SIGINT);
  EXPECT_EQ(run.process.finish(), 130);
  EXPECT_LT(steady_clock::now() - start, seconds(2)) << "the grace of the first request was waited for";
  expect_valid_rest(run);
}

TEST(Program, KilledItLeavesNoOrphanAndUsableLines) {
  HangingRun run("before_stubborn");
  run.process.signal(SIGKILL);
  EXPECT_EQ(run.process.finish(), -SIGKILL);
  EXPECT_TRUE(comes_true([&] { return !runs(run.children.at(0)); }));
  const std::string lines = run.scenarios.read("results.jsonl");
  ASSERT_TRUE(lines.ends_with("\n"));
  EXPECT_EQ(Json::parse(lines)["id"], "good");
  EXPECT_FALSE(std::filesystem::exists(run.scenarios.out() + "/results.json"));
  const Ended resumed = fp8lab::run(run.scenarios.run_arguments({"--resume", "-f", "good"}));
  EXPECT_EQ(resumed.code, 0) << resumed.errors;
  EXPECT_EQ(run.scenarios.results()["cells"].size(), 1u);
}

TEST(Program, ARunIntoAClosedPipeGoesOn) {
  const Scenarios scenarios({"one", "two", "three"});
  const std::string command =
      std::string(FP8LAB_FAKE_PROGRAM) + " run " + scenarios.path() + " -o " + scenarios.out() + " | true";
  EXPECT_EQ(std::system(command.c_str()), 0);
  EXPECT_TRUE(comes_true([&] { return std::filesystem::exists(scenarios.out() + "/summary.md"); }));
}

TEST(Program, TheDefaultOutputIsOut) {
  const Scenarios scenarios({"one"});
  const TemporaryDirectory here;
  EXPECT_EQ(run({"run", scenarios.path()}, here.string()).code, 0);
  EXPECT_TRUE(std::filesystem::exists(here / "out/results.json"));
}

}  // namespace
}  // namespace fp8lab
