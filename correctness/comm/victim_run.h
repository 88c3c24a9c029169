#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>

#include "support/paths.h"

namespace fp8lab::comm_test {

struct Outcome {
  int status = 0;
  std::string output;
  double seconds = 0;
  int survivors = 0;
};

/// Processes whose command line contains `marker`.
inline int processes_with(const std::string& marker) {
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "cmdline", std::ios::binary);
    const std::string words{std::istreambuf_iterator<char>(file), {}};
    if (words.find(marker) != std::string::npos) ++found;
  }
  return found;
}

/// Runs a command of a shell, and waits until no process has `marker` in its command line.
inline Outcome run_command(const std::string& command, const std::string& marker) {
  Outcome outcome;
  const auto start = std::chrono::steady_clock::now();
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("popen: " + command);
  for (int c = fgetc(pipe); c != EOF; c = fgetc(pipe)) outcome.output += static_cast<char>(c);
  outcome.status = pclose(pipe);
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  // A process that the launcher has just killed takes a moment to end.
  const auto enough = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  do outcome.survivors = processes_with(marker);
  while (outcome.survivors > 0 && std::chrono::steady_clock::now() < enough);
  return outcome;
}

/// Runs the victim program under the launcher that the build names, once for each end: a run takes some seconds.
inline const Outcome& run_victim(std::string_view way) {
  const std::string end(way);
  static std::map<std::string, Outcome> outcomes;
  const auto [entry, is_new] = outcomes.try_emplace(end);
  const std::string marker = "fp8lab-victim-" + std::to_string(getpid()) + "-" + end;
  if (is_new)
    entry->second =
        run_command(std::string(paths::kLauncher) + " " + paths::kVictim + " " + end + " " + marker, marker);
  return entry->second;
}

}  // namespace fp8lab::comm_test
