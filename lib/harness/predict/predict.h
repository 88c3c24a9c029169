#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/cell/cell.h"

namespace fp8lab {

/// Computes the memory and traffic of an arm on rank 0, by metric name ("memory.retained_bytes"), from closed formulas
/// over the cell's configuration that share no code with the runtime. A metric without a closed form is absent: traffic
/// where nothing is sharded; and every metric where training stops with an error, resumes, or has an optimizer that
/// predict_optimizer.cpp does not know.
std::map<std::string, double> predict(const CellConfig& config, Arm arm);

/// What a language model adds to its layers: an embedding [vocabulary, hidden], a last norm, and a head of the
/// embedding's shape that is not tied to it. Both matrices stay in the type of the parameters. The loss is a cross
/// entropy in FP32: it reads a copy of the logits in FP32 and saves their log-probabilities.
struct LanguageModel {
  std::int64_t vocabulary = 0;
  /// More than 1: head and loss run forward and backward over so many pieces of the tokens, one after the other, so
  /// that the logits of one piece are alive at a time.
  std::int64_t loss_chunks = 1;
};

struct Estimate {
  std::map<std::string, double> figures;  ///< as predict() returns them; empty where that is empty
  std::string peak_phase;                 ///< setup, forward, backward or optimizer: the phase of memory.peak_bytes
  /// Bytes at the peak by what they are for, largest first; their sum is memory.peak_bytes.
  std::vector<std::pair<std::string_view, std::int64_t>> peak_by_owner;
};

/// predict(), with what is alive at the peak. `model`, if not null, adds embedding, last norm, head and loss, which the
/// runtime does not have, so that no run has verified them.
Estimate estimate(const CellConfig& config, Arm arm, const LanguageModel* model = nullptr);

}  // namespace fp8lab
