#include "comm/launch.h"

#include <fmt/core.h>

#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <string>

#include "core/check.h"

namespace fp8lab {
namespace {

struct Launcher {
  std::string_view name;
  const char* rank;
  const char* size;
  const char* local_rank;
};

// The earlier one is reported where several agree.
constexpr std::array kLaunchers = {
    Launcher{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"},
    Launcher{"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    Launcher{"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"},
};
constexpr const Launcher& kSlurm = kLaunchers.back();

std::optional<int> number(const Variable& variable, const char* name) {
  const char* text = variable(name);
  if (text == nullptr) return std::nullopt;
  int value = -1;
  const char* end = text + std::strlen(text);
  const auto [last, error] = std::from_chars(text, end, value);
  if (error != std::errc() || last != end || value < 0)
    fail(fmt::format("{}={} is no whole number from 0 up", name, text));
  return value;
}

std::optional<Launch> told_by(const Launcher& launcher, const Variable& variable) {
  const std::optional<int> rank = number(variable, launcher.rank);
  const std::optional<int> size = number(variable, launcher.size);
  // A Slurm batch script has a SLURM_PROCID without being a step of several tasks.
  if (!size && (!rank || &launcher == &kSlurm)) return std::nullopt;
  if (!rank || !size)
    fail(fmt::format("{} is set and {} is not; {} sets both", rank ? launcher.rank : launcher.size,
                     rank ? launcher.size : launcher.rank, launcher.name));
  if (*rank >= *size) fail(fmt::format("{}={} is not below {}={}", launcher.rank, *rank, launcher.size, *size));
  return Launch{.launcher = launcher.name,
                .rank = *rank,
                .size = *size,
                .local_rank = number(variable, launcher.local_rank).value_or(0)};
}

std::string describe(const Launcher& launcher, const Launch& launch) {
  return fmt::format("{} ({}, {}) says rank {} of {}", launch.launcher, launcher.rank, launcher.size, launch.rank,
                     launch.size);
}

}  // namespace

Launch discover_launch(const Variable& variable) {
  const Launcher* found_by = nullptr;
  Launch found;
  for (const Launcher& launcher : kLaunchers) {
    const std::optional<Launch> told = told_by(launcher, variable);
    if (!told) continue;
    if (found_by == nullptr) {
      found_by = &launcher;
      found = *told;
      continue;
    }
    const bool of_daemons = &launcher == &kSlurm && told->size != found.size;
    if (of_daemons || (told->rank == found.rank && told->size == found.size)) continue;
    fail(fmt::format("{}, but {}; unset the variables of the one that did not start this process",
                     describe(*found_by, found), describe(launcher, *told)));
  }
  return found;
}

}  // namespace fp8lab
