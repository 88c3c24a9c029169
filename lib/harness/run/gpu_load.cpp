#include "harness/run/gpu_load.h"

#include <algorithm>
#include <sstream>

namespace fp8lab {

GpuLoad::GpuLoad(const std::vector<std::int64_t>& memory) {
  for (const std::int64_t bytes : memory) gpus_.push_back({.free_bytes = static_cast<double>(bytes)});
}

std::vector<int> GpuLoad::ranks_by_gpu(int first, int ranks) const {
  std::vector<int> counts(gpus_.size());
  const int count = static_cast<int>(gpus_.size());
  for (int gpu = 0; gpu < count; ++gpu) {
    const int from_first = (gpu - first + count) % count;
    counts[static_cast<std::size_t>(gpu)] = (ranks - from_first + count - 1) / count;
  }
  return counts;
}

void GpuLoad::add(int first, const GpuNeed& need) {
  const std::vector<int> ranks = ranks_by_gpu(first, need.ranks);
  for (std::size_t gpu = 0; gpu < gpus_.size(); ++gpu) {
    if (ranks[gpu] <= 0) continue;
    gpus_[gpu].free_bytes -= need.process_bytes + need.rank_bytes * ranks[gpu];
    ++gpus_[gpu].arms;
  }
}

void GpuLoad::add_idle(const GpuNeed& need) {
  for (Gpu& gpu : gpus_) gpu.free_bytes -= need.process_bytes;
}

std::optional<int> GpuLoad::place(const GpuNeed& need) const {
  std::optional<int> best;
  int fewest = 0;
  for (int first = 0; first < static_cast<int>(gpus_.size()); ++first) {
    const std::vector<int> ranks = ranks_by_gpu(first, need.ranks);
    bool fits = true;
    int arms = 0;
    for (std::size_t gpu = 0; gpu < gpus_.size(); ++gpu) {
      if (ranks[gpu] <= 0) continue;
      fits = fits && gpus_[gpu].arms < need.most_arms &&
             need.process_bytes + need.rank_bytes * ranks[gpu] <= gpus_[gpu].free_bytes;
      arms += gpus_[gpu].arms;
    }
    if (!fits || (best && arms >= fewest)) continue;
    best = first;
    fewest = arms;
  }
  return best;
}

std::string visible_gpus(const char* visible, int count, int first) {
  std::vector<std::string> names;
  std::istringstream list(visible != nullptr ? visible : "");
  for (std::string name; std::getline(list, name, ',');) names.push_back(name);
  while (static_cast<int>(names.size()) < count) names.push_back(std::to_string(names.size()));
  names.resize(static_cast<std::size_t>(count));
  std::rotate(names.begin(), names.begin() + first, names.end());
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

}  // namespace fp8lab
