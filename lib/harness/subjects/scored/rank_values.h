#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "harness/measure/scores.h"
#include "harness/train/element_range.h"

// The values that a worker leaves in files.
namespace fp8lab {

/// One forward and backward with the trained weights. The last of the gradients is the input's.
struct PassValues {
  std::vector<float> output;
  Lists gradients;
};

/// The same on one rank, over the sequences of all: the output of each rank's last micro-batch, and unsharded
/// gradients.
struct JoinedValues {
  Lists outputs;
  Lists gradients;
};

/// What one rank of a run left.
struct RankValues {
  std::vector<std::string> names;
  std::vector<std::int64_t> rows;  ///< rows of the unsharded parameters; a vector has one
  std::vector<ElementRange> shards;
  std::optional<bool> gathered_equals_unsharded;
  std::vector<float> losses, output;
  Lists initial, weights, gradients;
  std::optional<PassValues> own_pass, bf16_pass;  ///< the second: BF16 layers with the same weights
  std::optional<PassValues> again_pass;           ///< newly built layers with the same weights
  std::optional<JoinedValues> joined, exact;      ///< only on the first rank; the second: in FP32
};

/// Reads what `count` ranks left in `folder`.
std::vector<RankValues> rank_values(const std::filesystem::path& folder, int count);

std::string file_text(const std::filesystem::path& path);

}  // namespace fp8lab
