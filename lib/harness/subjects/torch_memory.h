#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/eager/program.h"
#include "harness/predict/predict.h"

// Memory of PyTorch programs, also with torchao's float8: harness/eager for the cells that it covers, held to recorded
// runs.
namespace fp8lab {

/// A configuration that python -m fp8lab_subjects.recording.torch_memory measured.
struct TorchRun {
  CellConfig cell;
  eager::Program program = eager::Program::kWorker;
  eager::Operators operators = eager::Operators::kHost;
  double peak = 0, end_of_forward = 0, end_of_backward = 0, end_of_step = 0;  ///< bytes
  double reserved = 0;                                                        ///< bytes, on CUDA
  /// Over ranks of a host, if they were counted: traffic.*_bytes of the last step; no entry for 0 bytes.
  std::optional<std::map<std::string, double>> traffic;
  std::string what;  ///< for messages: its row as JSON
};

struct TorchRuns {
  std::string measured;  ///< "torch 2.15.0, 2026-11-27, python -m ..."
  std::vector<TorchRun> rows;
};
/// Throws Error for a file that is no record of runs, with the place.
TorchRuns read_torch_runs(const std::string& path);

/// How far predictions are from runs.
struct Accuracy {
  std::size_t runs = 0, within = 0;  ///< `within`: all figures are within 1 %
  double worst = 0;                  ///< the largest distance, as a part of the measured figure
};
/// Peaks and ends of forward.
Accuracy accuracy_of(const TorchRuns& runs, eager::Operators operators);
/// Bytes that the allocator reserved in runs on CUDA.
Accuracy accuracy_of_reserved(const TorchRuns& runs);

/// The first kind of collective that carried other bytes than predicted, in words; "": none. `run` has `traffic`.
std::string traffic_mismatch(const TorchRun& run);

/// What PyTorch's caching allocator reserves for an arm, and 2 %, within which 117 of 120 runs are; nothing on a
/// host, whose allocator reserves nothing.
std::optional<double> reserved_with_margin(const Estimate& estimate);

class TorchMemory {
 public:
  /// `folder`: of lib/subjects. `release`: "torch@2.15" or "torchao@0.18". Throws Error for a release that is not
  /// covered, and for a file that is no record of runs.
  static TorchMemory find(const std::string& folder, const std::string& release);
  /// Files of recorded runs in `folder`: without a GPU, and on GPUs.
  static std::string runs_in(const std::string& folder);
  static std::string gpu_runs_in(const std::string& folder);
  /// True for "torch@...", "torch", "torchao@..." and "torchao".
  static bool is_named(const std::string& release);
  /// "torch@2.9 to torch@2.15" and the same of torchao: the releases that are covered.
  static std::vector<std::string> ranges();
  /// The newest release that is covered: "torch@2.15".
  static std::string newest(std::string_view library = "torch");

  const std::string& name() const { return name_; }  ///< "torch@2.15"
  /// The recipes that the library trains with.
  std::vector<std::string> recipes() const;
  /// The lines that state what the figures are, how they were compared, and what a GPU does that no run showed.
  std::string title(eager::Program program) const;

  /// The memory of an arm. Throws Error with every key that is not covered: "KEY: reason; KEY: reason".
  Estimate estimate(const CellConfig& cell, Arm arm, eager::Program program) const;

 private:
  /// True for the release whose FSDP2 can shard a module over two meshes, and whose varlen_attn() was read.
  bool is_newest() const;

  std::string name_;
  TorchRuns runs_, gpu_runs_;
};

/// The cell as a torchtitan program trains it: gradients are reduced in FP32 unless the cell sets another type, and it
/// trains for the steps after which the allocator reserves no more.
CellConfig as_torchtitan(CellConfig cell);

}  // namespace fp8lab
