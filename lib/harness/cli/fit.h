#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/cell/cell.h"
#include "harness/cell/vocabulary.h"
#include "harness/predict/predict_vocabulary.h"
#include "harness/run/runner.h"

// Does a training run fit into a GPU, what holds its peak, and what would make it fit?
namespace fp8lab {

/// A model whose sizes are public.
struct KnownModel {
  std::string_view name;  ///< "llama3-70b"
  std::string_view title;
  std::string_view form;  ///< of ModelConfig
  std::int64_t layers, hidden, heads, kv_heads, ffn;
  VocabularySize vocabulary;
};
std::span<const KnownModel> known_models();

struct KnownGpu {
  std::string_view name;  ///< "h100"
  std::string_view title;
  double bytes;  ///< of its memory
};
std::span<const KnownGpu> known_gpus();

/// Memory of a GPU that the driver and its libraries take; measured on H200.
inline constexpr double kDriverOverheadBytes = 0.6 * (1 << 30);

/// What a cell needs on the rank that needs the most.
struct Need {
  double bytes = 0;
  std::string phase;  ///< in which the peak is: setup, forward, backward, optimizer, loss
};
/// The closed form of the after arm, and what the vocabulary adds. Throws Error where there is no closed form.
Need need_of(const CellConfig& cell, const VocabularySize& vocabulary, const PredictFunction& predict);

/// A change to a cell that lowers what it needs.
struct Change {
  std::string text;  ///< "training.checkpoint: full"
  CellConfig cell;   ///< with the change
  Need need;
};
/// Changes tried in order of what they cost the training: each alone, then each on top of those before it. Returns the
/// first after which the cell needs at most `capacity`; nothing if none does. Changes that a rule of the vocabulary
/// forbids are left out.
std::optional<Change> change_that_fits(const CellConfig& cell, const VocabularySize& vocabulary, double capacity,
                                       const PredictFunction& predict, const Vocabulary& words);

/// Who holds the bytes of the peak, largest first, summed over owners: "saved for backward". From a run on device meta.
std::vector<std::pair<std::string, double>> peak_by_kind(const CellConfig& cell, const ArmFunction& measure);

/// Bytes of `capacity` ("80GiB") or, if that is empty, of the GPU of this name without the driver's; nothing if both
/// are empty. Throws Error for words that are neither.
std::optional<std::int64_t> capacity_of(const std::string& capacity, const std::string& gpu);

/// "80GiB", "80 GB", "85899345920" in bytes; nothing for other text.
std::optional<double> parse_bytes(std::string_view text);

}  // namespace fp8lab
