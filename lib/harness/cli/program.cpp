#include "harness/cli/program.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

namespace fp8lab {
namespace {

constexpr const char* kExitCodes =
    "Exit codes: 0 all good, 1 a gate failed, 2 bad configuration or usage, 3 inconclusive,\n"
    "4 a crash that no scenario expected, 5 nothing ran, 124 timeout, 128+N stopped by signal N.\n";

constexpr const char* kExamples =
    "Examples:\n"
    "  fp8lab run scenarios -d meta,cpu -o out     every bundled scenario that needs no GPU\n"
    "  fp8lab run scenarios --list                 the cells, without running them\n"
    "  fp8lab fixes                                what can be shown before and after\n\n";

constexpr const char* kRunExamples =
    "Examples:\n"
    "  fp8lab run scenarios -d meta,cpu -o out\n"
    "  fp8lab run scenarios/attention-saved-tensors.yaml -f 'checkpoint=full'\n"
    "  fp8lab run scenarios -f '-device=cuda'      all cells but those on cuda\n"
    "  fp8lab run scenarios -o out --resume        only what an earlier run did not finish\n\n";

void add_run(CLI::App& app, RunRequest& request, double& timeout_s) {
  app.add_option("PATH", request.paths, "scenario files, or directories to search for *.yaml")->required();
  app.add_option("-d,--device", request.devices, "run only cells on these devices")
      ->delimiter(',')
      ->allow_extra_args(false)  // a path may follow
      ->type_name("DEVICE,...");
  app.add_option("-f,--filter", request.filter, "run only cells whose id matches; a leading '-' negates")
      ->type_name("REGEX");
  app.add_option("-o,--out", request.out, "directory for results")->capture_default_str()->type_name("DIR");
  app.add_option("-j,--jobs", request.jobs, "processes at a time; default: one per core")
      ->check(CLI::Range(1, 1024))
      ->type_name("N");
  app.add_option("--timeout", timeout_s, "seconds that one arm may take, instead of the scenarios' own limits")
      ->check(CLI::Range(0.001, 86400.0))
      ->type_name("S");
  app.add_flag("--resume", request.resume, "keep what an earlier run finished in the same directory");
  app.add_flag("--list", request.list, "print the ids of the cells and run nothing");
  app.add_flag("--dry-run", request.dry_run, "print what each cell would run and expect, and run nothing");
  app.add_flag("--json", request.json, "print JSON on standard output, progress on standard error");
  app.footer(std::string(kRunExamples) + kExitCodes);
}

int run_parsed(int argc, char** argv, const Program& program) {
  CLI::App app("Benchmark and correctness suite for FP8 distributed training.", "fp8lab");
  app.require_subcommand(1);
  app.set_version_flag("--version", "fp8lab " + program.build.version);
  app.footer(std::string(kExamples) + kExitCodes);
  app.failure_message([](const CLI::App* failed, const CLI::Error& error) {
    return std::string("fp8lab: error: ") + error.what() + "\nSee " + failed->get_name() + " --help.\n";
  });

  RunRequest request;
  double timeout_s = 0;
  CLI::App& run = *app.add_subcommand("run", "run scenarios and judge them");
  add_run(run, request, timeout_s);

  std::vector<std::string> paths;
  std::string directory;
  bool json = false;
  CLI::App& validate = *app.add_subcommand("validate", "check scenario files and run nothing");
  validate.add_option("PATH", paths, "scenario files, or directories to search for *.yaml")->required();
  CLI::App& fixes = *app.add_subcommand("fixes", "list the fixes, and the scenarios that show each");
  fixes.add_option("--scenarios", directory, "where to look for scenarios")->type_name("DIR");
  CLI::App& recipes = *app.add_subcommand("recipes", "list the quantization recipes");
  CLI::App& devices = *app.add_subcommand("devices", "list the devices, and why one is unavailable");
  CLI::App& env = *app.add_subcommand("env", "show what results record of this machine and build");
  for (CLI::App* command : {&validate, &fixes, &recipes, &devices, &env})
    command->add_flag("--json", json, "print JSON");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (run.count("--timeout") > 0) request.timeout_s = timeout_s;
  if (run.parsed()) return run_command(request, program);
  if (validate.parsed()) return validate_command(paths, json, program);
  if (fixes.parsed()) return fixes_command(directory, json, program);
  if (recipes.parsed()) return recipes_command(json, program);
  if (devices.parsed()) return devices_command(json, program);
  return env_command(json, program);
}

}  // namespace

void report_error(const std::string& message) { std::fprintf(stderr, "fp8lab: error: %s\n", message.c_str()); }

int run_program(int argc, char** argv, const Program& program) {
  try {
    // Before everything else: a child must start fast.
    if (argc == 3 && std::string(argv[1]) == ArmCommand{}.arguments.front())
      return run_arm_in_child(argv[2], program.measure);
    return run_parsed(argc, argv, program);
  } catch (const std::exception& error) {
    report_error(error.what());
    return 2;
  }
}

}  // namespace fp8lab
