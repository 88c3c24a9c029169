#include "harness/subjects/profile/recorded_layers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "core/check.h"
#include "harness/cell/regular_file.h"
#include "harness/cell/sharding_keys.h"
#include "harness/results/json_reader.h"
#include "harness/subjects/profile/memory_profile.h"
#include "harness/subjects/recorded_keys.h"

namespace fp8lab {
namespace {

constexpr std::string_view kRecordSchema = "fp8lab.te-memory/1";
constexpr std::size_t kLargestRecord = std::size_t{64} << 20;

/// How many runs are less than 1 % off in both figures, and the largest distance.
struct Distance {
  int runs = 0, within = 0;
  double worst = 0.0;

  void add(const RecordedLayers& run, const std::map<std::string, double>& figures) {
    double off = 0.0;
    for (const char* name : {"memory.end_of_forward_bytes", "memory.peak_bytes"})
      off = std::max(off, std::abs(figures.at(name) / run.bytes.at(name) - 1.0));
    ++runs;
    within += off < 0.01;
    worst = std::max(worst, off);
  }
  std::string text() const {
    return fmt::format("within 1 % in {} of {} runs, worst {:.2f} %", within, runs, 100 * worst);
  }
};

}  // namespace

LayerRecord read_layer_record(const std::string& path) {
  const std::string text = read_regular_file(path, kLargestRecord);
  try {
    const JsonDocument document(text);
    const JsonReader root = document.root();
    if (!root.at("schema").is_text(kRecordSchema)) root.at("schema").refuse(std::string(kRecordSchema));
    LayerRecord out;
    out.measured = root.at("measured").text();
    out.release = out.measured.substr(out.measured.rfind(' ') + 1);
    CellConfig common;
    common.subject = root.at("subject").text();
    set_recorded_keys(root.at("keys"), common);
    root.at("rows").each_item([&](const JsonReader& row) {
      RecordedLayers& run = out.runs.emplace_back();
      run.name = row.at("name").text();
      run.cell = common;
      set_recorded_keys(row.at("keys"), run.cell);
      run.error = row.text_or_empty("error");
      if (!run.error.empty()) return;
      const JsonReader bytes = row.at("bytes");
      for (const char* figure : {"end_of_forward", "peak"})
        if (!(bytes.at(figure).number() > 0.0)) bytes.at(figure).refuse("a number above 0");
      bytes.each_member([&](const std::string& figure, const JsonReader& value) {
        run.bytes[fmt::format("memory.{}_bytes", figure)] = value.number();
      });
    });
    return out;
  } catch (const Error& error) {
    fail(fmt::format("{}: {}", path, error.what()));
  }
}

std::string accuracy_of_profiles(const std::string& worker_directory, const std::string& subject) {
  std::vector<std::string> paths, releases;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(worker_directory + "/measured", ignored))
    if (entry.path().filename().string().starts_with("te-memory-")) paths.push_back(entry.path().string());
  std::ranges::sort(paths);
  Distance others, replicas;
  for (const std::string& path : paths) {
    const LayerRecord record = read_layer_record(path);
    if (record.runs.empty() || record.runs.front().cell.subject != subject) continue;
    if (std::ranges::find(releases, record.release) == releases.end()) releases.push_back(record.release);
    const MemoryProfile profile =
        MemoryProfile::find(worker_directory + "/profiles", fmt::format("{}@{}", subject, record.release));
    for (const RecordedLayers& run : record.runs)
      if (const auto figures = profile.figures_if_covered(run.cell, Arm::kAfter); run.error.empty() && !figures.empty())
        (is_replicated(run.cell) ? replicas : others).add(run, figures);
  }
  if (others.runs == 0) return "";
  std::ranges::sort(releases, {}, [](const std::string& one) { return std::pair(one.size(), one); });
  return fmt::format(
      "End of forward and peak compared with recorded runs of {}: {}.\nDistributedDataParallel {}: NCCL's process "
      "group "
      "may hold the buckets\nof the first step, as large as all gradients.\n",
      fmt::join(releases, ", "), others.text(), replicas.text());
}

}  // namespace fp8lab
