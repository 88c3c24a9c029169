#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/cell/cell.h"

namespace fp8lab {

/// Computes the memory and traffic of an arm on rank 0, by metric name ("memory.retained_bytes"), from closed formulas
/// over the cell's configuration that share no code with the runtime. A metric without a closed form is absent: traffic
/// if nothing is sharded; and every metric if training stops with an error, resumes, or has an optimizer that
/// predict_optimizer.cpp does not cover.
std::map<std::string, double> predict(const CellConfig& config, Arm arm);

/// Bytes that a rank moves in a step: of parameters it receives in all-gathers, and of gradients it sends in
/// reduce-scatters, what others have of each array; and what it sends in all-to-alls to other ranks.
struct MovedBytes {
  double received = 0, sent = 0, exchanged = 0;
};

struct Estimate {
  std::map<std::string, double> figures;  ///< the map that predict() returns
  std::string peak_phase;                 ///< setup, forward, backward or optimizer: the phase of memory.peak_bytes
  /// Bytes at the peak by what they are for, largest first; their sum is memory.peak_bytes.
  std::vector<std::pair<std::string_view, std::int64_t>> peak_by_owner;
  /// The weights to be kept in FP8. Refused weights, a part of them, stay in high precision because shards would cut
  /// their blocks or, before a fix, lose their type.
  std::int64_t fp8_weights = 0, refused_weights = 0;
  std::optional<MovedBytes> moved{};  ///< rank 0's; nothing without shards, and for memory profiles
};

/// predict(), with what is alive at the peak.
Estimate estimate(const CellConfig& config, Arm arm);

}  // namespace fp8lab
