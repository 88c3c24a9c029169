#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "harness/cli/schema/schemas.h"
#include "harness/results/json_codec.h"
#include "harness/results/json_schema.h"
#include "harness/scenario/sample.h"
#include "harness/temporary_directory.h"
#include "support/paths.h"

// The command line as a user sees it: a process with arguments, output, an exit code and files.
namespace fp8lab::sample {

/// A program that runs; finish() reads what it prints.
class Process {
 public:
  explicit Process(std::vector<std::string> arguments, const std::string& working_directory = "/") {
    arguments.insert(arguments.begin(), paths::kFakeProgram);
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

  /// Reads standard output until `text` is in it, or the program closes it.
  void read_until(const std::string& text) {
    char byte = 0;
    while (output.find(text) == std::string::npos && ::read(out_, &byte, 1) == 1) output += byte;
  }

  /// Waits for the end. Returns the exit code, or the negated number of the signal.
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

inline Ended run(const std::vector<std::string>& arguments, const std::string& working_directory = "/") {
  Process process(arguments, working_directory);
  const int code = process.finish();
  return {code, process.output, process.errors};
}

/// The exit code of a shell command, in which $P is the program.
inline int shell(const std::string& command) {
  return WEXITSTATUS(std::system(("P=" + std::string(paths::kFakeProgram) + "; " + command).c_str()));
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// A directory with one scenario per name; fake_arms.h lists what the names do.
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
  std::string results() const { return read("results.json"); }
  /// The cells of results.json as lines of results.jsonl.
  std::string cell_lines() const {
    std::string out;
    std::istringstream text(results());
    for (std::string line; std::getline(text, line);)
      if (line.starts_with("{\"id\":")) out += line.substr(0, line.size() - (line.ends_with(',') ? 1 : 0)) + "\n";
    return out;
  }
  /// The places where results.json breaks its schema.
  std::vector<std::string> violations() const { return schema_violations(results_schema(), read("results.json")); }

  std::vector<std::string> run_arguments(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> out_arguments{"run", path(), "-o", out()};
    out_arguments.insert(out_arguments.end(), more.begin(), more.end());
    return out_arguments;
  }

 private:
  TemporaryDirectory directory_;
};

/// The before arm of a run of one cell under a limit that the shell sets.
inline ArmResult before_arm(const Scenarios& scenarios, const std::string& limit) {
  shell(limit + "\n$P run " + scenarios.path() + " -o " + scenarios.out() + " > /dev/null 2>&1");
  return run_from_json(scenarios.results()).cells.at(0).arms.at(Arm::kBefore);
}

}  // namespace fp8lab::sample
