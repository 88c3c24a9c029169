#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "core/check.h"
#include "harness/cli/program.h"
#include "harness/cli/schema/schemas.h"
#include "harness/subjects/captured_process.h"
#include "harness/subjects/python_path.h"

namespace fp8lab {
namespace {

constexpr const char* kPythonVariable = "FP8LAB_PYTHON";
constexpr const char* kReportsVariable = "FP8LAB_REPORTS";
constexpr const char* kSchemaVariable = "FP8LAB_RESULTS_SCHEMA";  // the report's program reads it
// The probe only finds the packages, which is far quicker than importing them. "" in sys.path is the working directory,
// whose files are not the report's packages.
constexpr const char* kProbe =
    "import sys\n"
    "sys.path[:] = [folder for folder in sys.path if folder]\n"
    "from importlib.util import find_spec\n"
    "sys.exit(sys.version_info < (3, 11) or not "
    "all(map(find_spec, ('matplotlib', 'jinja2', 'fastjsonschema'))))\n";

constexpr double kProbeSeconds = 60;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::vector<char*> pointers(std::vector<std::string>& arguments) {
  std::vector<char*> out;
  for (std::string& argument : arguments) out.push_back(argument.data());
  out.push_back(nullptr);
  return out;
}

/// The first Python that has the packages of a report. The system's own is tried last, because PATH may name another
/// one before it.
std::string find_python() {
  const std::string named = variable(kPythonVariable);
  const std::vector<std::string> candidates =
      named.empty() ? std::vector<std::string>{"python3", "/usr/bin/python3"} : std::vector{named};
  for (const std::string& candidate : candidates)
    if (captured({candidate, "-c", kProbe}, "", kProbeSeconds).status == 0) return candidate;
  fail(fmt::format(
      "report: {} is no Python 3.11 with matplotlib, Jinja2 and fastjsonschema; install them (apt-get install "
      "python3-matplotlib python3-jinja2 python3-fastjsonschema), or name another Python in {}",
      fmt::join(candidates, " or "), kPythonVariable));
}

std::string find_reports(const std::string& built_in) {
  const std::string named = variable(kReportsVariable);
  const std::string directory = named.empty() ? built_in : named;
  check(std::filesystem::is_regular_file(std::filesystem::path(directory) / "__main__.py"),
        fmt::format(
            "report: '{}' does not hold the report's program (__main__.py); name the checkout's folder reports in {}",
            directory, kReportsVariable));
  return directory;
}

}  // namespace

int report_command(const ReportRequest& request, const Program& program) {
  const std::string reports = find_reports(program.reports_directory);
  ::setenv("PYTHONPATH", python_path().c_str(), 1);
  ::setenv(kSchemaVariable, results_schema().c_str(), 1);
  std::vector<std::string> arguments{find_python(), reports};
  arguments.insert(arguments.end(), {"--out=" + request.out, "--title=" + request.title,
                                     "--figures=" + std::to_string(request.figures)});
  if (request.snapshots) arguments.emplace_back("--snapshots");
  if (request.traces) arguments.emplace_back("--traces");
  if (!request.cells.empty()) arguments.push_back("--cells=" + request.cells);
  arguments.emplace_back("--");
  arguments.insert(arguments.end(), request.results.begin(), request.results.end());
  const std::vector<char*> argv = pointers(arguments);
  ::execvp(argv[0], argv.data());
  fail(fmt::format("report: cannot start {}: {}", arguments[0], std::strerror(errno)));
}

}  // namespace fp8lab
