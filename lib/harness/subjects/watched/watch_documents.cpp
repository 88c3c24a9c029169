#include "harness/subjects/watched/watch_documents.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string_view>

#include "core/check.h"
#include "harness/cell/regular_file.h"
#include "harness/results/json_codec.h"
#include "harness/results/json_reader.h"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSchema = "fp8lab.watch/1";
constexpr std::int64_t kMost = std::numeric_limits<int>::max();

int count_from(const JsonReader& json, std::string_view key, int absent) {
  const auto found = json.find(key);
  return found ? static_cast<int>(found->integer(0, kMost)) : absent;
}

std::vector<WatchFinding> findings_from(const JsonReader& json, std::string_view key, int rank) {
  std::vector<WatchFinding> out;
  if (const auto list = json.find(key))
    list->each_item([&](const JsonReader& one) {
      out.push_back({.kind = one.at("kind").text(),
                     .subject = one.at("subject").text(),
                     .text = one.at("text").text(),
                     .size = one.at("size").number(),
                     .ranks = {rank}});
    });
  return out;
}

WatchedProcess process_from(const JsonReader& json) {
  if (const JsonReader schema = json.at("schema"); !schema.is_text(kSchema))
    schema.refuse(fmt::format("\"{}\"", kSchema));
  WatchedProcess out;
  out.pid = count_from(json, "pid", 0);
  out.rank = count_from(json, "rank", 0);
  out.world = count_from(json, "world", 1);
  out.on_this_host = count_from(json, "on_this_host", out.world);
  out.steps = count_from(json, "steps", 0);
  out.state = json.at("state").text();
  out.error = json.text_or_empty("error");
  out.where = json.text_or_empty("where");
  out.device = json.text_or_empty("device");
  out.torch = json.text_or_empty("torch");
  out.python = json.text_or_empty("python");
  out.overhead = json.text_or_empty("overhead");
  if (const auto trained = json.find("trained")) out.trained = trained->object_json();
  if (const auto guesses = json.find("guesses"))
    guesses->each_item([&](const JsonReader& one) { out.guesses.push_back(one.text()); });
  if (const auto lines = json.find("lines"))
    lines->each_item(
        [&](const JsonReader& one) { out.lines.emplace_back(one.at("topic").text(), one.at("text").text()); });
  out.findings = findings_from(json, "findings", out.rank);
  out.failed = findings_from(json, "failed", out.rank);
  if (const auto result = json.find("result")) {
    out.has_result = true;
    out.result = arm_from_json(result->object_json());
  }
  return out;
}

double peak_of(const WatchedProcess& process) {
  const auto peak = process.result.metrics.find("memory.peak_bytes");
  return peak == process.result.metrics.end() ? 0 : peak->second.value.value_or(0);
}

/// True if `a` is shown for its rank, and `b` is one of the others.
bool stands_before(const WatchedProcess& a, const WatchedProcess& b) {
  return a.steps != b.steps ? a.steps > b.steps : a.pid < b.pid;
}

void add(std::map<int, WatchedProcess>& by_rank, WatchedProcess process) {
  const auto [place, is_new] = by_rank.try_emplace(process.rank, process);
  if (is_new) return;
  WatchedProcess& shown = place->second;
  if (stands_before(process, shown)) std::swap(process, shown);
  if (process.steps == 0) return;  // such as a launcher
  shown.others += 1 + process.others;
  shown.findings.insert(shown.findings.end(), process.findings.begin(), process.findings.end());
  shown.failed.insert(shown.failed.end(), process.failed.begin(), process.failed.end());
}

}  // namespace

std::vector<WatchedProcess> read_watched(const fs::path& folder) {
  std::map<int, WatchedProcess> by_rank;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("process-") || !name.ends_with(".json")) continue;
    try {
      const JsonDocument document(read_regular_file(entry.path()));
      add(by_rank, process_from(document.root()));
    } catch (const Error& error) {
      fail(fmt::format("{}: {}", entry.path().string(), error.what()));
    }
  }
  std::vector<WatchedProcess> out;
  for (auto& [rank, process] : by_rank) out.push_back(std::move(process));
  return out;
}

const WatchedProcess& worst_of(const std::vector<WatchedProcess>& processes) {
  const auto order = [](const WatchedProcess& one) { return std::pair(one.steps > 0, peak_of(one)); };
  return *std::ranges::max_element(processes, {}, order);
}

std::vector<WatchFinding> merged(const std::vector<WatchedProcess>& processes,
                                 std::vector<WatchFinding> WatchedProcess::* list) {
  std::vector<WatchFinding> out;
  for (const WatchedProcess& process : processes)
    for (const WatchFinding& finding : process.*list) {
      const auto same = std::find_if(out.begin(), out.end(), [&](const WatchFinding& one) {
        return one.kind == finding.kind && one.subject == finding.subject;
      });
      if (same == out.end()) {
        out.push_back(finding);
        continue;
      }
      std::vector<int> ranks = same->ranks;
      if (finding.size > same->size) {
        *same = finding;
      } else {
        ranks = finding.ranks;
      }
      for (const int rank : ranks)
        if (std::ranges::find(same->ranks, rank) == same->ranks.end()) same->ranks.push_back(rank);
    }
  return out;
}

}  // namespace fp8lab
