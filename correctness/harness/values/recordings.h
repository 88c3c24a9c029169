#pragma once

#include <map>
#include <utility>
#include <vector>

#include "harness/values/divergence.h"

// Recordings in memory.
namespace fp8lab::sample {

using Recording = std::map<int, RankRecording>;

inline Recording recording_of(std::map<int, std::vector<RecordedTensor>> tensors) {
  Recording out;
  for (auto& [rank, one] : tensors) out[rank].tensors = std::move(one);
  return out;
}

inline Recording read_recording(const std::filesystem::path& folder) {
  Recording out;
  for (const auto& [rank, path] : recorded_ranks(folder)) out[rank] = read_rank(path);
  return out;
}

/// The comparison of all ranks of `a`. `repeats`: recordings of equal runs.
inline Divergence compare_recordings(const Recording& a, const Recording& b,
                                     const std::vector<std::pair<const Recording*, const Recording*>>& repeats = {},
                                     double tolerance = 0) {
  RecordingComparison comparison(tolerance);
  for (const auto& [rank, one] : a) {
    std::vector<Repeat> of_rank;
    for (const auto& [first, second] : repeats) of_rank.push_back({&first->at(rank), &second->at(rank)});
    comparison.add(rank, one, b.at(rank), of_rank);
  }
  return comparison.result();
}

}  // namespace fp8lab::sample
