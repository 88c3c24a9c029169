#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "harness/cell/vocabulary.h"
#include "harness/predict/predict.h"
#include "harness/results/environment.h"
#include "harness/run/launched_runner.h"
#include "harness/run/runner.h"

namespace fp8lab {

/// The figures of a library's release: "torch@2.15".
struct ReleaseFigures {
  std::string release;
  Estimate estimate;
};

/// The functions and data on which the command line depends. scenarios/main.cpp passes the real ones, tests pass fakes.
struct Program {
  BuildInfo build;
  std::string scenarios_directory;    ///< the bundled scenarios, for `fixes`; need not exist
  std::string reports_directory;      ///< the Python program of `report`; need not exist
  std::string worker_directory = {};  ///< the Python package that drives libraries; need not exist
  const Vocabulary& (*vocabulary)() = nullptr;
  ArmFunction measure;
  MeasureOver measure_over = {};  ///< measures an arm over ranks that a launcher started
  PredictFunction predict;
  /// predict() with what is alive at the peak; null: `plan` prints figures only.
  std::function<Estimate(const CellConfig&, Arm)> estimate = {};
  /// Whose figures estimate() returns: a library's, "transformer_engine 2.15 to 2.16"; "": the own runtime's.
  std::string estimated_library = {};
  /// What a PyTorch program holds that trains a cell; throws Error with the keys that no figures cover. Null: not
  /// known.
  std::function<ReleaseFigures(const CellConfig&, Arm)> torch = {};
  TaskFunction task = {};  ///< see RunnerOptions::task
};

/// Runs the command line and returns the exit code; see exit_code().
int run_program(int argc, char** argv, const Program& program);

/// The arguments of `fp8lab run`.
struct RunRequest {
  std::vector<std::string> paths;
  std::vector<std::string> devices;  ///< empty: all
  std::vector<std::string> filters;  ///< regular expressions, all of which an id matches; a leading '-' negates one
  int sample = 0;                    ///< the most cells of each scenario and device; 0: all
  std::string out = "out";
  int jobs = 0;  ///< arms at a time; 0: one per usable core
  std::optional<double> timeout_s;
  int processes = 0;                ///< per arm of cells that measure time or the host; 0: the runner decides
  std::optional<double> gate_time;  ///< most percent by which a step may take longer after a fix than before it
  std::string tiers, tier;          ///< a table of tiers, and the one to run in place of `paths`; empty: none
  std::string against;              ///< an earlier run that this one is compared with; empty: none
  std::string allow;                ///< as CompareRequest::allow
  std::string accept;               ///< a file of accepted changes (acceptance.h); empty: none
  bool annotate = false;            ///< the outcome is reported to a CI system
  bool controls = false;            ///< cells that test the measurement run too (control_cells)
  bool resume = false;
  bool isolate = false;  ///< every arm of every cell runs in a process of its own, and no results are shared
  bool list = false;
  bool dry_run = false;
  bool json = false;
};

/// The arguments of `fp8lab plan`.
struct PlanRequest {
  RunRequest selection;              ///< its paths, devices, filter and sample
  std::string capacity;              ///< "80GiB"; empty: the GPU's, or the cells' own
  std::string gpu;                   ///< a name of plan_tables.h, or empty
  std::string model;                 ///< a name of plan_tables.h, or a config.json; empty: the scenarios of `selection`
  std::vector<int> ranks;            ///< ranks of `model`; empty: several
  std::vector<std::string> recipes;  ///< recipes of `model`; empty: all that the GPU has
  std::vector<std::string> settings;  ///< keys of `model`: "model.seq=4096"
  std::string as;                     ///< a library's release, "transformer_engine@2.16"; empty: the own runtime
  bool json = false;
};

/// The arguments of `fp8lab compare`.
struct CompareRequest {
  std::string baseline;           ///< results.json, or a directory that holds one
  std::vector<std::string> runs;  ///< newer ones, in order; the last is compared with the baseline
  std::string allow;              ///< regular expression on ids of cells that may become worse; empty: none
  bool json = false;
  bool markdown = false;
};

/// The arguments of `fp8lab report`.
struct ReportRequest {
  std::vector<std::string> results;  ///< directories and files, as `LABEL=PATH` or `PATH`
  std::string out;
  std::string title = "fp8lab report";
  int figures = 1;  ///< number of cells per fix whose memory is drawn
  bool snapshots = false;
  bool traces = false;
  std::string cells;  ///< regular expression on ids of the cells of snapshots and traces; empty: the drawn cells
};

/// The steps of a recording of tensors, if none are given.
inline constexpr const char* kRecordedSteps = "1:3";

/// The arguments of `fp8lab watch`.
struct WatchRequest {
  std::vector<std::string> command;                                         ///< a program of PATH, and its arguments
  std::vector<std::string> measure{"memory", "traffic", "host", "parity"};  ///< groups of metrics
  std::string steps;  ///< "3:10": those that are measured, the first is 1; empty: all
  std::string out = "out";
  std::string values;               ///< the folder of a recording of tensors (harness/values); empty: none
  std::string name;                 ///< the cell's name; empty: the program's
  std::optional<double> timeout_s;  ///< how long the program may run
  bool json = false;
};

/// The arguments of `fp8lab bisect`.
struct BisectRequest {
  std::string scenario;
  std::vector<std::string> filters;   ///< as RunRequest::filters; one cell must be left
  std::string good, bad;              ///< releases, also with their library ("torch==2.9.0"), or commits
  std::vector<std::string> releases;  ///< those to search; empty: the installed ones
  bool install = false;               ///< install releases that are missing
  std::string checkout;               ///< a git checkout, whose commits are searched; empty: releases are
  std::string build;                  ///< a shell command that builds a commit; empty: none
  double build_timeout_s = 3600;
  std::string metric;                  ///< judged by `above` or `below`; empty: the scenario's gates judge
  std::optional<double> above, below;  ///< a figure beyond it is bad, in the metric's unit
  std::optional<double> timeout_s;     ///< seconds that a run may take
  std::string out = "bisect";          ///< the folder of the state from which a search resumes
  bool json = false;
};

/// The arguments of `fp8lab divergence`.
struct DivergenceRequest {
  std::vector<std::string> inputs;   ///< a scenario, or two folders of recordings
  std::vector<std::string> filters;  ///< as RunRequest::filters; one cell must be left
  std::vector<std::string> arms{"before", "after"};
  std::vector<std::string> noise;      ///< folders: a second run of the first recording, and one of the second
  std::string steps = kRecordedSteps;  ///< the steps that are recorded, the first is 1
  double tolerance = 0;                ///< a relative difference up to it is none
  std::optional<double> timeout_s;     ///< seconds that an arm may take
  std::string out = "divergence";      ///< the folder of the results, and of the recordings of a scenario's arms
  bool json = false;
};

/// The arguments of `fp8lab snapshot`.
struct SnapshotRequest {
  std::string first, second;  ///< files that PyTorch's allocator wrote; `second` may be empty
  std::string out;            ///< directory for results; empty: none are written
  bool json = false;
};

/// The arguments of `fp8lab init`.
struct InitRequest {
  std::string kind = "memory";
  std::string out;  ///< empty: KIND.yaml; "-": standard output
  bool force = false;
  bool list = false;
  bool json = false;  ///< for the list
};

/// Writes a scenario to start from. Throws if the file exists and `force` is false.
int init_command(const InitRequest& request);
/// The kinds of scenarios that it writes, each with a title.
std::vector<std::pair<std::string, std::string>> scenario_kinds();
/// Explain one row of the table of keys or metrics, or with an empty name list all. Throw for an unknown name.
int keys_command(const std::string& name, bool json, const Program& program);
int metrics_command(const std::string& name, bool json);
int run_command(RunRequest request, const Program& program);
/// Runs a training program with instruments. Returns 0 if nothing was found that a training program should not do, 1 if
/// something was, 4 if the program failed, 5 if nothing was measured, 124 if it took too long, 128 + signal if stopped.
int watch_command(const WatchRequest& request, const Program& program);
/// Searches for the first bad version. Returns 0 if it is found, 1 if skipped versions leave several, 3 if an end is
/// not as stated or a version has different results in two runs, 5 if an end cannot run, 128 + signal if stopped.
int bisect_command(const BisectRequest& request, const Program& program);
/// Finds the first tensor in which two runs differ by more than equal runs do. Returns 0 if there is none, 1 if there
/// is one, 128 + signal if stopped. Throws Error for recordings that cannot be read and for an arm that fails.
int divergence_command(const DivergenceRequest& request, const Program& program);
/// Prints who holds the memory of one snapshot of PyTorch's allocator, or what a second one holds more. Runs no code of
/// the files. Throws Error for a file that is no snapshot.
int snapshot_command(const SnapshotRequest& request, const Program& program);
int plan_command(const PlanRequest& request, const Program& program);
int compare_command(const CompareRequest& request);
int validate_command(const std::vector<std::string>& paths, bool json, const Program& program);
/// `directory`: empty for the bundled scenarios, or none if they are not found. Files that cannot be read are reported
/// on standard error and skipped; then the exit code is 2.
/// All fixes, or the one called `name`.
int fixes_command(const std::string& name, std::string directory, bool json, const Program& program);
int recipes_command(bool json, const Program& program);
int devices_command(bool json, const Program& program);
/// `release`: the one to install, "torch==2.10.0"; empty: none, and all are listed.
int subjects_command(const std::string& release, bool json, const Program& program);
/// Replaces this process with the Python program under `reports/`. Returns only by an exception, if no Python has the
/// packages that the program needs.
int report_command(const ReportRequest& request, const Program& program);
/// Prints the JSON Schema of `document`, "scenario", "results" or "comparison", made from the tables of keys, metrics
/// and words.
int schema_command(const std::string& document, const Program& program);
std::vector<std::string> schema_documents();
int env_command(bool json, const Program& program);

/// Prints one line on standard error: "fp8lab: error: ...".
void report_error(const std::string& message);

}  // namespace fp8lab
