#pragma once

#include <string>
#include <utility>
#include <vector>

#include "harness/cell/vocabulary.h"

namespace fp8lab {

/// Facts that are fixed when the program is built.
struct BuildInfo {
  std::string version;
  std::string git_commit;  ///< empty outside a checkout
  bool git_dirty = false;
  std::string compiler;
  std::string flags;
  std::string build_type;
  std::vector<std::pair<std::string, std::string>> libraries;  ///< name, version
};

/// The content of environment.json: the build, the machine, its limits, its devices, and environment variables of an
/// allowlist.
std::string environment_json(const BuildInfo& build, const std::vector<Term>& devices);

/// "fp8lab 0.1.0 (commit 1234567, modified), g++ 12.2.0; AMD EPYC, 2 of 64 cores"
std::string environment_line(const BuildInfo& build);

/// The time now, in UTC: "2026-11-27T08:00:00Z".
std::string now_utc();

/// The number of cores that this process may keep busy: the smaller of its affinity and its cgroup quota; at least 1.
int usable_cores();

/// True for an environment variable that results may contain: it is known to affect a run, and is not named like a
/// secret.
bool may_record_variable(const std::string& name);

}  // namespace fp8lab
