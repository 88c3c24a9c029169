#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/cell/cell.h"
#include "harness/values/sketch.h"

// Sketches of the tensors of a training run in the order of its execution: a folder with a file of each rank,
// `rank-0.tsv`. The first line is the schema. Each other line is a tensor: step, phase, module, name, type, shape,
// norm, checksum and sums, between tabs.
namespace fp8lab {

/// The environment variable that names the folder in which each arm makes the folder of its recording.
inline constexpr const char* kValuesVariable = "FP8LAB_VALUES";
/// "1:3": the steps that are recorded, the first is 1; unset or empty: all.
inline constexpr const char* kValuesStepsVariable = "FP8LAB_VALUES_STEPS";

struct RecordedTensor {
  std::int64_t step = 0;
  std::string phase;   ///< setup | forward | backward | optimizer
  std::string module;  ///< "" if the program does not show it: products of backward
  std::string name;    ///< "output", "gradient of output", "operand 1 of mm", "updated weight"
  std::string type, shape;
  Sketch sketch;
};

/// The tensors of each rank.
using Recording = std::map<int, std::vector<RecordedTensor>>;

/// The folder of an arm's recording; nothing if no recording is wanted.
std::optional<std::filesystem::path> recording_folder(Arm arm);

/// True if step `step`, the first is 1, is recorded.
bool records_step(std::int64_t step);

/// Writes the file of a rank. Throws Error if it cannot be written.
class RecordingWriter {
 public:
  RecordingWriter(const std::filesystem::path& folder, int rank);
  void add(const RecordedTensor& tensor);
  /// Throws Error if a line was lost.
  void finish();

 private:
  std::filesystem::path path_;
  std::ofstream file_;
};

/// True if a rank left a file in the folder, which may be absent.
bool has_recording(const std::filesystem::path& folder);

/// Removes the ranks' files of an earlier recording from a folder, and nothing else. The folder may be absent.
void clear_recording(const std::filesystem::path& folder);

/// Reads a folder. Throws Error, which names file and line, for a folder without a rank's file and for any other text
/// than a recording.
Recording read_recording(const std::filesystem::path& folder);

}  // namespace fp8lab
