#include "harness/cli/program.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>

#include "backend/instruction_sets.h"
#include "core/check.h"
#include "harness/cell/escape.h"
#include "harness/cell/spelling.h"
#include "harness/cli/help_texts.h"
#include "harness/cli/plan/plan_tables.h"
#include "harness/cli/selection.h"
#include "harness/cli/shell/completion_values.h"
#include "harness/cli/shell/man_page.h"
#include "harness/cli/standard_streams.h"
#include "harness/cli/usage.h"
#include "harness/cli/validators.h"
#include "harness/results/json_codec.h"
#include "harness/subjects/scored/scored_values.h"
#include "harness/subjects/watched/script_arm.h"
#include "harness/values/recording.h"

namespace fp8lab {
namespace {

/// The definition of the command line, for parsing, for `--help` and for completion.
class CommandLine {
 public:
  explicit CommandLine(const Program& program) : program_(program) {
    app_.formatter(std::make_shared<HelpFormatter>());  // set first: commands inherit it
    app_.require_subcommand(1);
    app_.set_version_flag("--version", "fp8lab " + program.build.version);
    app_.failure_message([this](const CLI::App*, const CLI::Error& error) { return explained(error); });
    add_run();
    add_watch();
    add_bisect();
    add_divergence();
    add_snapshot();
    add_plan();
    add_compare();
    add_report();
    add_validate();
    add_init();
    add_lists();
    add_completion();
    app_.footer(std::string(kExamples) + kFilesText + kEnvironmentText +
                kExitCodes);  // set last: commands added later would inherit it
  }

  int run(int argc, char** argv) {
    if (argc > 1) words_.assign(argv + 1, argv + argc);
    try {
      app_.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      return app_.exit(error) == 0 ? printed(0) : 2;
    }
    find_bundled_scenarios(request_.paths, program_);
    for (const auto& [command, action] : actions_)
      if (command->parsed()) return printed(action());
    return 2;
  }

  int complete(const std::vector<std::string>& words) const {
    std::fputs(completion_lines(fp8lab::complete(app_, words, completion_values(program_))).c_str(), stdout);
    return printed(0);
  }

 private:
  /// The exit code of a command that ended with `code`: 2 if some of its output could not be written.
  static int printed(int code) {
    const std::string lost = lost_output();
    if (lost.empty()) return code;
    report_error(lost);
    return code != 0 ? code : 2;
  }

  /// The message for a command line that cannot be parsed, with a pointer to the help.
  std::string explained(const CLI::Error& error) const {
    const std::vector<CLI::App*> chosen = app_.get_subcommands();
    const std::string name = chosen.empty() ? app_.get_name() : app_.get_name() + " " + chosen.front()->get_name();
    const bool is_wrong_value = error.get_name() == "ValidationError" || error.get_name() == "ConversionError";
    std::string problem = chosen.empty() ? unknown_command() : is_wrong_value ? "" : unexpected_words(*chosen.front());
    if (problem.empty() && error.get_name() == "ArgumentMismatch") problem = wrong_count(*chosen.front(), error.what());
    if (problem.empty()) problem = error.what();
    return fmt::format("fp8lab: error: {}\nSee {} --help.\n", problem, name);
  }

  std::string unknown_command() const {
    std::vector<std::string> commands;
    for (const auto& [command, action] : actions_) commands.push_back(command->get_name());
    const std::string word = words_.empty() ? "" : words_.front();
    if (!word.empty() && word.front() != '-')
      return fmt::format("unknown command `{}`.{}", word, suggestion(word, commands));
    const bool known = word.empty() || word == "--" || option_given(app_, word) ||
                       std::any_of(actions_.begin(), actions_.end(),
                                   [&](const auto& action) { return option_given(*action.first, word); });
    if (!known) return no_option(app_, word);
    return fmt::format("a command is missing; give one of {}{}", listed(commands),
                       words_.empty() ? "" : ", and options after it");
  }

  /// A message about words that the command does not expect; "" if there are none.
  std::string unexpected_words(const CLI::App& command) const {
    std::vector<std::string> words = app_.remaining(true);
    std::erase(words, "--");
    if (words.empty()) return {};
    const auto name = std::find(words_.begin(), words_.end(), command.get_name());
    for (const std::string& word : words) {
      if (!word.starts_with('-')) continue;
      if (!option_given(command, word)) return no_option(command, word);
      const auto early = std::find(words_.begin(), name, word);
      if (early == name) continue;  // the word comes after `--`, so it is not an option
      return fmt::format("`{}` stands before the command; options go after it: `{} {} {}{}`", word, app_.get_name(),
                         command.get_name(), quotable(fmt::format("{}", fmt::join(early, name, " "))),
                         name + 1 == words_.end() ? "" : " ...");
    }
    return fmt::format("`{}` is one word too many for {}", words.front(), command.get_name());
  }

  template <class Action>
  CLI::App& add(const std::string& name, const std::string& description, Action action) {
    CLI::App* command = app_.add_subcommand(name, description);
    actions_.emplace_back(command, std::move(action));
    return *command;
  }

  void add_json(CLI::App& command, const std::string& description = "print JSON") {
    command.add_flag("--json", json_, description);
  }

  /// Adds what commands that print and change nothing have in common.
  void add_list(CLI::App& command) {
    add_json(command);
    command.footer(kListExits);
  }

  void add_selection(CLI::App& command) {
    command.add_option("PATH", request_.paths, "scenario files, or directories to search for *.yaml")->required();
    command.add_option("-d,--device", request_.devices, "only cells on these devices")
        ->delimiter(',')
        ->allow_extra_args(false)  // the next word may be a path
        ->type_name("DEVICE,...");
    command
        .add_option("-f,--filter", request_.filters,
                    "only cells whose id matches (RE2's syntax); a leading '-' negates; several must all hold")
        ->allow_extra_args(false)  // as for devices
        ->type_name("REGEX");
    command
        .add_option("--sample", request_.sample, "at most N cells of each scenario and device, always the same ones")
        ->check(integer_within(1, 1000000))
        ->type_name("N");
  }

  void add_init() {
    CLI::App& init = add("init", "write a scenario to start from", [this] {
      init_.json = json_;
      return init_command(init_);
    });
    init.add_option("KIND", init_.kind, "what it measures; --list prints the kinds")->capture_default_str();
    init.add_option("-o,--out", init_.out, "file to write; default: KIND.yaml; -: print it")->type_name("FILE");
    init.add_flag("--force", init_.force, "replace an existing file");
    init.add_flag("--list", init_.list, "list the kinds and write nothing");
    add_json(init, "print the list as JSON");
    init.footer(kInitExits);
  }

  void add_run() {
    CLI::App& run = add("run", "run scenarios and judge them", [this] {
      request_.json = json_;
      return run_command(request_, program_);
    });
    add_selection(run);
    run.get_option("PATH")->required(false);
    run.callback([this] {
      if (request_.paths.empty() && request_.tiers.empty() && request_.tier.empty()) throw CLI::RequiredError("PATH");
    });
    run.add_option("-o,--out", request_.out, "directory for results")->capture_default_str()->type_name("DIR");
    run.add_option("-j,--jobs", request_.jobs,
                   "arms at a time, fewer if a GPU's memory holds no more; arms of libraries run side by side on a GPU "
                   "only if N is given; default: one per core")
        ->check(integer_within(1, 1024))
        ->type_name("N");
    run.add_option("--timeout", request_.timeout_s,
                   "seconds that one arm may take, instead of the scenarios' own limits")
        ->check(number_within(0.001, kMostTimeoutSeconds))
        ->type_name("S");
    run.add_option("--processes", request_.processes,
                   "processes of each arm of cells that measure time or the host, in random order; default: 8 if a "
                   "gate compares times, else 1; up to 3 N while such a gate is undecided")
        ->check(integer_within(1, 1000))
        ->type_name("N");
    run.add_option("--gate-time", request_.gate_time,
                   "fail a cell whose step is slower after its fix than before it by more than PERCENT, if 99 % "
                   "intervals show it")
        ->transform([](std::string text) { return text.ends_with('%') ? text.substr(0, text.size() - 1) : text; }, "")
        ->check(number_within(0, 1000))
        ->type_name("PERCENT");
    run.add_flag("--controls", request_.controls,
                 "test the measurement too, with two more cells for each scenario: one with equal arms, which must "
                 "show no difference, and one with a planted byte, a planted collective and, if time is gated, 5 % "
                 "more time, which must show; --gate-time implies this for scenarios that measure time");
    run.add_option("--tier", request_.tier, "run this tier of --tiers instead of PATH")->type_name("TIER");
    run.add_option("--tiers", request_.tiers, "a table of tiers; --list without --tier prints them")->type_name("FILE");
    run.add_option("--against", request_.against, "an earlier run, as for `compare`: a regression fails this run")
        ->type_name("BASELINE");
    run.add_option("--allow", request_.allow, "with --against: cells whose id matches may get worse or vanish")
        ->type_name("REGEX");
    run.add_option("--accept", request_.accept,
                   "with --against: a reviewed table of changes that are accepted, each until a date")
        ->type_name("FILE");
    run.add_flag("--annotate", request_.annotate,
                 "tell the CI system what failed, as lines `file:line: error: ...`, or on GitHub as annotations and in "
                 "the step summary; write run_exit_code, the exit code without the comparison");
    run.add_flag("--resume", request_.resume, "keep what an earlier run finished in the same directory");
    run.add_flag("--isolate", request_.isolate,
                 "run every arm of every cell in a process of its own: slower, but arms cannot influence each other");
    run.add_flag("--list", request_.list, "print the ids of the cells and run nothing");
    run.add_flag("--dry-run", request_.dry_run, "print what each cell would run and expect, and run nothing");
    add_json(run, "print JSON on standard output, progress on standard error");
    run.footer(std::string(kRunExamples) + kExitCodes);
  }

  void add_watch() {
    CLI::App& watch = add("watch", "run a PyTorch training program, and tell what it holds and moves", [this] {
      watch_.json = json_;
      return watch_command(watch_, program_);
    });
    watch.add_option("COMMAND", watch_.command, "the program and its arguments, after `--`")->required();
    watch
        .add_option("--measure", watch_.measure, "groups of metrics: memory, traffic, host, parity; default: all four")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->check(CLI::IsMember({"memory", "traffic", "host", "parity"}))
        ->type_name("GROUP,...");
    watch.add_option("--steps", watch_.steps, "measure these steps only, the first is 1: 3:10, 5: or :20")
        ->check(range_of_steps())
        ->type_name("A:B");
    watch
        .add_option("--values", watch_.values,
                    "record the tensors of steps 1:3, or of --steps, in this folder, for `divergence`")
        ->type_name("DIR");
    watch.add_option("-o,--out", watch_.out, "directory for results")->capture_default_str()->type_name("DIR");
    watch.add_option("--name", watch_.name, "name of the cell in results; default: the program's")->type_name("NAME");
    watch.add_option("--timeout", watch_.timeout_s, "seconds that the program may run; default: no limit")
        ->check(number_within(0.001, kMostTimeoutSeconds))
        ->type_name("S");
    add_json(watch, "print results as JSON; the program's output and the lines for people go to standard error");
    watch.footer(kWatchHelp);
  }

  void add_bisect() {
    CLI::App& bisect = add("bisect", "find the first release or commit on which a scenario's cell is bad", [this] {
      bisect_.json = json_;
      return bisect_command(bisect_, program_);
    });
    bisect.add_option("SCENARIO", bisect_.scenario, "a scenario of a library or of subject script")->required();
    bisect.add_option("--good", bisect_.good, "a release (torch==2.9.0) or commit that is good")
        ->required()
        ->type_name("VERSION");
    bisect.add_option("--bad", bisect_.bad, "a later version, which is bad")->required()->type_name("VERSION");
    bisect.add_option("--releases", bisect_.releases, "releases to search; default: the installed ones")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->type_name("RELEASE,...");
    bisect.add_flag("--install", bisect_.install, "install the releases that are missing, each when it is needed");
    bisect.add_option("--checkout", bisect_.checkout, "search the commits of this git checkout, which is only read")
        ->type_name("DIR");
    bisect.add_option("--build", bisect_.build, "with --checkout: a shell command that builds a commit, in its folder")
        ->type_name("COMMAND");
    bisect.add_option("--build-timeout", bisect_.build_timeout_s, "seconds that a build may take")
        ->capture_default_str()
        ->check(number_within(0.001, kMostTimeoutSeconds))
        ->type_name("S");
    bisect.add_option("-f,--filter", bisect_.filters, "the cell, if the scenario has several: its id matches")
        ->allow_extra_args(false)
        ->type_name("REGEX");
    bisect.add_option("--metric", bisect_.metric, "the figure that decides, instead of the scenario's gates")
        ->type_name("METRIC");
    CLI::Option* above =
        bisect.add_option("--above", bisect_.above, "with --metric: a figure above it, in the metric's unit, is bad")
            ->check(number_within(-1e300, 1e300))
            ->type_name("X");
    bisect.add_option("--below", bisect_.below, "with --metric: a figure below it, in the metric's unit, is bad")
        ->check(number_within(-1e300, 1e300))
        ->excludes(above)
        ->type_name("X");
    bisect
        .add_option("--timeout", bisect_.timeout_s, "seconds that one run may take; default: the scenario's `timeout`")
        ->check(number_within(0.001, kMostTimeoutSeconds))
        ->type_name("S");
    bisect.add_option("-o,--out", bisect_.out, "directory of the state from which the same command resumes")
        ->capture_default_str()
        ->type_name("DIR");
    add_json(bisect, "print the result as JSON; lines for people go to standard error");
    bisect.footer(kBisectHelp);
  }

  void add_divergence() {
    CLI::App& divergence = add("divergence", "find the first tensor in which two runs differ", [this] {
      divergence_.json = json_;
      const CLI::App* parsed = app_.get_subcommand("divergence");
      for (const char* option : {"--filter", "--arms", "--steps", "--timeout"})
        check(divergence_.inputs.size() == 1 || parsed->count(option) == 0,
              fmt::format("divergence: {} belongs to a scenario, and two folders of recordings are named", option));
      return divergence_command(divergence_, program_);
    });
    divergence
        .add_option("INPUT", divergence_.inputs, "a scenario, whose arms run twice; or two folders of recordings")
        ->required()
        ->expected(1, 2);
    divergence.add_option("-f,--filter", divergence_.filters, "the cell, if the scenario has several: its id matches")
        ->allow_extra_args(false)
        ->type_name("REGEX");
    divergence.add_option("--arms", divergence_.arms, "the two arms of the cell")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->check(CLI::IsMember({"before", "after", "bf16"}))
        ->capture_default_str()
        ->type_name("ARM,ARM");
    divergence.add_option("--steps", divergence_.steps, "record these steps of the arms, the first is 1")
        ->capture_default_str()
        ->check(range_of_steps())
        ->type_name("A:B");
    divergence
        .add_option("--noise", divergence_.noise, "with two folders: a second run of the first, and one of the second")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->type_name("DIR,...");
    divergence.add_option("--tolerance", divergence_.tolerance, "a relative difference up to it is none")
        ->capture_default_str()
        ->check(number_within(0, 1))
        ->type_name("X");
    divergence
        .add_option("--timeout", divergence_.timeout_s,
                    "seconds that an arm may take; default: the scenario's `timeout`")
        ->check(number_within(0.001, kMostTimeoutSeconds))
        ->type_name("S");
    divergence
        .add_option("-o,--out", divergence_.out, "directory for results, and for the recordings of a scenario's arms")
        ->capture_default_str()
        ->type_name("DIR");
    add_json(divergence, "print the result as JSON; lines for people go to standard error");
    divergence.footer(kDivergenceHelp);
  }

  void add_snapshot() {
    CLI::App& snapshot = add("snapshot", "tell who holds the memory of a snapshot of PyTorch's allocator", [this] {
      snapshot_.json = json_;
      return snapshot_command(snapshot_, program_);
    });
    snapshot.add_option("FIRST", snapshot_.first, "what torch.cuda.memory._dump_snapshot() wrote")->required();
    snapshot.add_option("SECOND", snapshot_.second, "a second one: tell what it holds more and less");
    snapshot.add_option("-o,--out", snapshot_.out, "directory for results with the history as timeline, for `report`")
        ->type_name("DIR");
    add_json(snapshot);
    snapshot.footer(kSnapshotHelp);
  }

  void add_report() {
    CLI::App& report =
        add("report", "make a page and figures of results", [this] { return report_command(report_, program_); });
    report.add_option("OUT", report_.results, "result directories and files, each as LABEL=OUT or OUT")->required();
    report.add_option("-o,--out", report_.out, "directory for the report")->required()->type_name("DIR");
    report.add_option("--title", report_.title, "title of the report")->capture_default_str();
    report.add_option("--figures", report_.figures, "cells per fix whose memory is drawn")
        ->capture_default_str()
        ->check(integer_within(0, 100))
        ->type_name("N");
    report.add_flag("--snapshots", report_.snapshots, "write snapshots/*.pickle for PyTorch's memory viewer");
    report.add_flag("--traces", report_.traces, "write traces/*.json for Perfetto and chrome://tracing");
    report.add_option("--cells", report_.cells, "cells of snapshots and traces; default: the cells that are drawn")
        ->type_name("REGEX");
    report.footer(kReportNotes);
  }

  void add_plan() {
    CLI::App& plan = add("plan", "predict whether training fits in memory; runs nothing", [this] {
      plan_.selection = request_;
      plan_.json = json_;
      return plan_command(plan_, program_);
    });
    add_selection(plan);
    plan.get_option("PATH")->required(false)->description(
        "scenario files, directories to search for *.yaml, or the result set of one run or watched program");
    plan.add_option("--capacity", plan_.capacity, "memory of each rank's device: 80GiB")
        ->check(memory_size_with_unit())
        ->type_name("SIZE");
    plan.add_option("--gpu", plan_.gpu, "the memory of this GPU; with --model its architecture too")->type_name("GPU");
    plan.add_option("--as", plan_.as,
                    "predict the memory of this library's release: torch@2.15, torchao@0.18, transformer_engine@2.16")
        ->type_name("LIBRARY@RELEASE");
    plan.add_option("--model", plan_.model,
                    "plan a known model, or the model of a Hugging Face config.json, instead of scenario files")
        ->type_name("MODEL");
    plan.add_option("--ranks", plan_.ranks, "numbers of ranks for --model and watched programs, a table each")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->check(integer_within(1, kMostRanks))
        ->type_name("N,...");
    plan.add_option("--recipe", plan_.recipes, "recipes for --model and watched programs, a row each")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->type_name("RECIPE,...");
    plan.add_option("--set", plan_.settings, "a scenario key for --model and watched programs")
        ->allow_extra_args(false)
        ->type_name("KEY=VALUE");
    add_json(plan, "print every predicted figure as JSON");
    plan.footer(plan_help());
  }

  void add_compare() {
    CLI::App& compare = add("compare", "show what got better and worse between two runs", [this] {
      comparison_.json = json_;
      return compare_command(comparison_);
    });
    compare.add_option("BASELINE", comparison_.baseline, "the older run")->required();
    compare.add_option("RUN", comparison_.runs, "newer runs, in order")->required();
    compare.add_option("--allow", comparison_.allow, "cells whose id matches may get worse or vanish")
        ->type_name("REGEX");
    add_json(compare);
    compare.add_flag("--markdown", comparison_.markdown, "print a Markdown table");
    compare.footer(kCompareHelp);
  }

  void add_validate() {
    CLI::App& validate = add("validate", "check scenario files and run nothing",
                             [this] { return validate_command(request_.paths, json_, program_); });
    validate.add_option("PATH", request_.paths, "scenario files, or directories to search for *.yaml")->required();
    add_json(validate);
    validate.footer(kValidateExits);
  }

  void add_lists() {
    CLI::App& fixes = add("fixes", "list the fixes, and the scenarios of each",
                          [this] { return fixes_command(name_, directory_, json_, program_); });
    fixes.add_option("FIX", name_, "default: all");
    fixes.add_option("--scenarios", directory_, "folder of the scenarios")->type_name("DIR");
    add_list(fixes);
    add_list(add("recipes", "list the quantization recipes", [this] { return recipes_command(json_, program_); }));
    add_list(add("devices", "list the devices, and why one is unavailable",
                 [this] { return devices_command(json_, program_); }));
    CLI::App& keys =
        add("keys", "explain the keys of a scenario", [this] { return keys_command(name_, json_, program_); });
    keys.add_option("KEY", name_,
                    "explain a key in full, by its path or its last part; or list the keys of a section (training)");
    add_list(keys);
    CLI::App& metrics = add("metrics", "explain the metrics", [this] { return metrics_command(name_, json_); });
    metrics.add_option("METRIC", name_, "explain a metric in full; or list the metrics of a group (memory)");
    add_list(metrics);
    CLI::App& subjects = add("subjects", "list the libraries that can train cells, and what is installed",
                             [this] { return subjects_command(release_, json_, program_); });
    subjects.add_option("--install", release_, "make a virtual environment for a release: transformer_engine==2.16.1")
        ->type_name("LIBRARY==RELEASE");
    add_list(subjects);
    CLI::App& schema = add("schema", "print a JSON Schema with which editors check scenario files",
                           [this] { return schema_command(document_, program_); });
    schema.add_option("DOCUMENT", document_, "scenario (the default), results or comparison")
        ->check(CLI::IsMember(schema_documents()));
    schema.footer(kListExits);
    add_list(add("env", "show what results record of this machine and build",
                 [this] { return env_command(json_, program_); }));
  }

  void add_completion() {
    CLI::App& completion = add("completion", "print the script that completes commands in a shell", [this] {
      std::fputs(completion_script(shell_).c_str(), stdout);
      return 0;
    });
    completion.add_option("SHELL", shell_, "bash, zsh or fish")->required()->check(CLI::IsMember(completion_shells()));
    completion.footer(kCompletionHelp);
    CLI::App& man = add("man", "print the manual page of the program: fp8lab man | man -l -", [this] {
      std::fputs(man_page(app_, program_.build.version).c_str(), stdout);
      return 0;
    });
    man.footer(kListExits);
  }

  const Program& program_;
  CLI::App app_{"Benchmark and correctness suite for FP8 distributed training.", "fp8lab"};
  std::vector<std::pair<const CLI::App*, std::function<int()>>> actions_;
  InitRequest init_;
  RunRequest request_;
  WatchRequest watch_;
  BisectRequest bisect_;
  DivergenceRequest divergence_;
  SnapshotRequest snapshot_;
  PlanRequest plan_;
  CompareRequest comparison_;
  ReportRequest report_;
  std::vector<std::string> words_;  ///< the command line after the program's name
  std::string directory_, name_, shell_, document_ = "scenario";
  std::string release_;
  bool json_ = false;
};

/// Selects the instruction set of the CPU kernels from FP8LAB_CPU_ISA. Child processes inherit the variable, so they
/// select the same.
void select_instruction_set() {
  constexpr const char* kVariable = "FP8LAB_CPU_ISA";
  const char* name = std::getenv(kVariable);
  if (name == nullptr || *name == '\0') return;
  try {
    select_cpu_instruction_set(name);
  } catch (const Error& error) {
    fail(fmt::format("{}: {}", kVariable, error.what()));
  }
}

}  // namespace

void report_error(const std::string& message) {
  std::fprintf(stderr, "fp8lab: error: %s\n", for_terminal(message).c_str());
}

int run_program(int argc, char** argv, const Program& program) {
  hold_standard_streams();
  ::signal(SIGCHLD, SIG_DFL);  // if it is ignored, as some programs leave it, no child's exit status can be read
  try {
    select_instruction_set();
    // Comes first, because a child process must start fast.
    if (argc == 2 && std::string(argv[1]) == ArmCommand{}.arguments.front()) return run_arms_in_child(program.measure);
    if (argc == 2 && std::string(argv[1]) == kScriptCommand)
      return run_arms_in_child([subjects = Subjects(program.worker_directory)](const CellConfig& cell, Arm arm) {
        return run_script_arm(cell, arm, subjects);
      });
    if (argc == 3 && std::string(argv[1]) == kScoreCommand) {
      std::fputs(arm_to_json(score_values(argv[2])).c_str(), stdout);
      return 0;
    }
    ::unsetenv(kValuesVariable);  // only `divergence` and `watch --values` set it, for the arms that they start
    ::signal(SIGXFSZ, SIG_IGN);   // a write beyond the file-size limit then returns an error, which is reported
    CommandLine line(program);
    if (argc > 1 && std::string(argv[1]) == kCompleteCommand)
      return line.complete(std::vector<std::string>(argv + 2, argv + argc));
    return line.run(argc, argv);
  } catch (const Error& error) {
    report_error(error.what());
    return 2;
  } catch (const std::exception& error) {
    report_error(fmt::format("internal error: {}; please report the command and the machine", error.what()));
    return 2;
  }
}

}  // namespace fp8lab
