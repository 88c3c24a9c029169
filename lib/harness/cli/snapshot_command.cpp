#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>

#include "core/check.h"
#include "harness/cell/escape.h"
#include "harness/cell/spelling.h"
#include "harness/cell/units.h"
#include "harness/cli/one_cell_results.h"
#include "harness/cli/program.h"
#include "harness/results/json_codec.h"
#include "harness/results/json_reader.h"
#include "harness/subjects/captured_process.h"
#include "harness/subjects/python_path.h"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

constexpr double kLimitSeconds = 1800;
constexpr std::size_t kMostHolders = 8, kMostStacks = 3;
/// "" in sys.path is the working directory, whose files would replace modules of the same name.
constexpr const char* kRead =
    "import sys; sys.path[:] = [folder for folder in sys.path if folder]; import runpy; "
    "runpy.run_module('fp8lab_subjects.snapshots', run_name='__main__', alter_sys=True)";

/// The document that the Python program prints. Throws Error with its message.
std::string read_snapshots(const SnapshotRequest& request, const Program& program) {
  std::string path = worker_folder_with("fp8lab_subjects/snapshots.py", program.worker_directory, "snapshot");
  if (const std::string others = python_path(); !others.empty()) path += ":" + others;
  std::vector<std::string> words{"/usr/bin/env", "PYTHONPATH=" + path, "python3", "-c", kRead};
  words.push_back(request.first);
  if (!request.second.empty()) words.push_back(request.second);
  const Captured run = captured(words, "", kLimitSeconds);
  if (run.status == 0) return run.output;
  std::string error = run.errors.substr(0, run.errors.find_last_not_of('\n') + 1);
  error.erase(0, error.rfind('\n') + 1);
  fail(fmt::format("snapshot: {}", run.late        ? fmt::format("took longer than {:g} s", kLimitSeconds)
                                   : error.empty() ? fmt::format("python3 ended with status {}", run.status)
                                                   : error));
}

std::string size_of(const JsonReader& json, std::string_view key) { return short_figure(json.at(key).number(), "B"); }

std::string signed_size(double bytes) {
  return (bytes < 0 ? "-" : "+") + short_figure(bytes < 0 ? -bytes : bytes, "B");
}

void print(const std::string& line) { std::printf("%s\n", for_terminal(line).c_str()); }

/// Prints the first rows of list `name`, and how many there are more.
void print_rows(const JsonReader& json, const std::string& name, std::size_t most, bool with_sign, bool with_frames) {
  std::size_t shown = 0;
  json.at(name).each_item([&](const JsonReader& row) {
    if (shown == most) return;
    ++shown;
    const double bytes = row.at("bytes").number();
    const std::int64_t blocks = row.at("blocks").integer();
    print(fmt::format("  {:>12} {:>8} {}", with_sign ? signed_size(bytes) : short_figure(bytes, "B"),
                      with_sign ? fmt::format("{:+}", blocks) : fmt::format("{}", blocks), row.at("holder").text()));
    if (with_frames) row.at("frames").each_item([](const JsonReader& frame) { print("        " + frame.text()); });
  });
  const auto all = static_cast<std::size_t>(json.at(name + "_total").integer(0));
  if (all > shown) print(fmt::format("  and {} more", all - shown));
}

void print_headline(const JsonReader& one) {
  std::string line =
      fmt::format("{}: GPU {}: {} in use in {}, {} reserved", one.at("path").text(), one.at("device").integer(),
                  size_of(one, "in_use_bytes"), counted(static_cast<std::size_t>(one.at("blocks").integer(0)), "block"),
                  size_of(one, "reserved_bytes"));
  if (one.at("history_events").integer() > 0)
    line += fmt::format(", peak of the history {}", size_of(one, "peak_bytes"));
  if (one.at("with_stack_bytes").number() < one.at("in_use_bytes").number())
    line += fmt::format("; {} of it have a stack", size_of(one, "with_stack_bytes"));
  print(line);
}

void print_text(const JsonReader& json, bool compared) {
  json.at("snapshots").each_item([&](const JsonReader& one) {
    print_headline(one);
    if (!compared) print_rows(one, "holders", kMostHolders, false, false);
  });
  if (!compared) {
    std::printf("The largest stacks:\n");
    json.at("snapshots").each_item([](const JsonReader& one) { print_rows(one, "stacks", kMostStacks, false, true); });
    return;
  }
  const JsonReader difference = json.at("difference");
  print(fmt::format("The second holds {} in use, {} reserved:", signed_size(difference.at("in_use_bytes").number()),
                    signed_size(difference.at("reserved_bytes").number())));
  print_rows(difference, "holders", kMostHolders, true, false);
  if (difference.at("stacks_total").integer(0) == 0) {
    std::printf("  they hold the same\n");
    return;
  }
  std::printf("The stacks that differ most:\n");
  print_rows(difference, "stacks", kMostStacks, true, true);
}

ArmResult arm_of(const JsonReader& one, const JsonReader& timeline) {
  ArmResult out;
  const auto add = [&](const char* metric, const char* key) {
    out.metrics[metric] = {.value = one.at(key).number(), .predicted = std::nullopt, .unit = "B", .reason = ""};
  };
  add("memory.peak_bytes", "peak_bytes");
  add("memory.reserved_peak_bytes", "reserved_bytes");
  add("memory.end_of_step_bytes", "in_use_bytes");
  one.at("peak_holders").each_item([&](const JsonReader& row) {
    out.peak_by_holder.emplace_back(row.at("holder").text(), row.at("bytes").integer());
  });
  out.notes.push_back(fmt::format("from {}: bytes in use when the snapshot was taken, and the peak of its history",
                                  one.at("path").text()));
  if (one.at("history_events").integer() > 0) out.timeline_json = timeline.object_json() + "\n";
  return out;
}

/// Writes a result set with a cell of the snapshots, so that `report` draws their histories.
void write_results(const JsonReader& json, const SnapshotRequest& request, const Program& program) {
  CellRecord record;
  record.config.scenario = record.config.id = fs::path(request.first).stem().string();
  record.config.subject = "script";
  record.config.device = "cuda";
  record.config.measure = {"memory"};
  record.title = request.second.empty() ? request.first : fmt::format("{} and {}", request.first, request.second);
  record.file = request.first;
  record.verdict = Verdict::kPass;
  const bool compared = !request.second.empty();
  const std::vector<Arm> arms = compared ? std::vector{Arm::kBefore, Arm::kAfter} : std::vector{Arm::kAfter};
  std::size_t index = 0;
  json.at("snapshots").each_item([&](const JsonReader& one) {
    std::size_t number = 0;
    json.at("timelines").each_item([&](const JsonReader& timeline) {
      if (number++ == index) record.arms[arms.at(index)] = arm_of(one, timeline);
    });
    ++index;
  });
  PlannedCell cell;
  cell.config = record.config;
  record.hash = hash_of(cell);
  OneCellResults(request.out, program).write(record, /*prints=*/false);
}

}  // namespace

int snapshot_command(const SnapshotRequest& request, const Program& program) {
  const std::string text = read_snapshots(request, program);
  const JsonDocument document(text);
  if (request.json)
    std::fputs(text.c_str(), stdout);
  else
    print_text(document.root(), !request.second.empty());
  if (!request.out.empty()) {
    write_results(document.root(), request, program);
    if (!request.json) print(fmt::format("results: {0}/results.json; fp8lab report {0} -o report", request.out));
  }
  return 0;
}

}  // namespace fp8lab
