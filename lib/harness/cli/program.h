#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/cell/vocabulary.h"
#include "harness/results/environment.h"
#include "harness/run/launched_runner.h"
#include "harness/run/runner.h"

namespace fp8lab {

/// What makes the command line a program: scenarios/main.cpp gives the real thing, tests give their own arms.
struct Program {
  BuildInfo build;
  std::string scenarios_directory;  ///< the bundled definitions, for `fixes`; may be absent
  std::string reports_directory;    ///< the Python program of `report`; may be absent
  const Vocabulary& (*vocabulary)() = nullptr;
  ArmFunction measure;
  MeasureOver measure_over = {};  ///< as `measure`, over ranks that a launcher started
  PredictFunction predict;
  TaskFunction task = {};  ///< RunnerOptions
};

/// The command line. Returns the exit code of DESIGN's table: see exit_code().
int run_program(int argc, char** argv, const Program& program);

/// The arguments of `fp8lab run`.
struct RunRequest {
  std::vector<std::string> paths;
  std::vector<std::string> devices;  ///< empty: all
  std::string filter;                ///< regular expression on ids, negated by a leading '-'; empty: all
  int sample = 0;                    ///< cells of each scenario and device at most; 0: all
  std::string out = "out";
  int jobs = 0;  ///< arms at a time; 0: one per usable core
  std::optional<double> timeout_s;
  bool resume = false;
  bool isolate = false;  ///< each arm of each cell is run, in a process of its own
  bool list = false;
  bool dry_run = false;
  bool json = false;
};

/// The arguments of `fp8lab compare`.
struct CompareRequest {
  std::string baseline, run;  ///< results.json, or directories that hold one
  std::string allow;          ///< regular expression on ids of cells that may become worse; empty: none
  bool json = false;
};

/// The arguments of `fp8lab report`.
struct ReportRequest {
  std::vector<std::string> results;  ///< directories and files, as `LABEL=PATH` or `PATH`
  std::string out;
  std::string title = "fp8lab report";
  int figures = 1;  ///< cells per fix whose memory is drawn
  bool snapshots = false;
  bool traces = false;
  std::string cells;  ///< regular expression on ids: what snapshots and traces are made of; empty: the cells drawn
};

int run_command(const RunRequest& request, const Program& program);
/// Of `request` reads the paths, the devices, the filter, the sample and `json`.
int plan_command(const RunRequest& request, const Program& program);
int compare_command(const CompareRequest& request);
int validate_command(const std::vector<std::string>& paths, bool json, const Program& program);
/// `directory` empty: the bundled definitions where they are found, or no scenarios. Files that cannot be read are
/// reported on standard error and passed over; then the exit code is 2.
int fixes_command(std::string directory, bool json, const Program& program);
int recipes_command(bool json, const Program& program);
int devices_command(bool json, const Program& program);
/// Becomes the Python program under `reports/`, and returns only by an error: where no Python has what that needs.
int report_command(const ReportRequest& request, const Program& program);
/// Prints the JSON Schema of "scenario", "results" or "comparison", made from the tables of keys, metrics and words: the
/// files of scenarios/schema.
int schema_command(const std::string& document, const Program& program);
int env_command(bool json, const Program& program);

/// One line on standard error: "fp8lab: error: ...".
void report_error(const std::string& message);

}  // namespace fp8lab
