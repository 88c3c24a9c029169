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
// norm, checksum, checksum of what is not finite, and sums, between tabs. The last line is `end` and the number of
// tensors; a program that was killed leaves none.
namespace fp8lab {

/// The environment variable that names the folder in which each arm makes the folder of its recording.
inline constexpr const char* kValuesVariable = "FP8LAB_VALUES";
/// "1:3": the steps that are recorded, the first is 1; unset or empty: all.
inline constexpr const char* kValuesStepsVariable = "FP8LAB_VALUES_STEPS";

struct RecordedTensor {
  std::int64_t step = 0;
  std::string phase;   ///< setup | forward | backward | optimizer, or the time between them
  std::string module;  ///< "" if the program does not show it: products of backward
  std::string name;    ///< "output", "gradient of output", "operand 1 of mm", "updated weight"
  std::string type, shape;
  Sketch sketch;
};

/// The tensors of one rank.
struct RankRecording {
  std::vector<RecordedTensor> tensors;
  /// Why it may lack tensors: "a/rank-0.tsv: ends at line 9 in step 2; the program was killed"; "": it is complete.
  std::string incomplete;
};

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
  std::size_t tensors_ = 0;
};

/// True if a rank left a file in the folder, which may be absent.
bool has_recording(const std::filesystem::path& folder);

/// Removes the ranks' files of an earlier recording from a folder, and nothing else. The folder may be absent.
void clear_recording(const std::filesystem::path& folder);

/// The files of the ranks in a recording's folder. Throws Error for a folder without one.
std::map<int, std::filesystem::path> recorded_ranks(const std::filesystem::path& folder);

/// Reads the file of a rank. Throws Error, which names file and line, for any other text than a recording.
RankRecording read_rank(const std::filesystem::path& path);

}  // namespace fp8lab
