#pragma once

#include <string>
#include <utility>
#include <vector>

#include "harness/cell/vocabulary.h"

namespace fp8lab {

/// What was decided when the program was built.
struct BuildInfo {
  std::string version;
  std::string git_commit;  ///< empty outside a checkout
  bool git_dirty = false;
  std::string compiler;
  std::string flags;
  std::string build_type;
  std::vector<std::pair<std::string, std::string>> libraries;  ///< name, version
};

/// environment.json: the build, the machine, its limits, its devices, and environment variables of an allowlist.
std::string environment_json(const BuildInfo& build, const std::vector<Term>& devices);

/// "fp8lab 0.1.0 (commit 1234567, modified), g++ 12.2.0; AMD EPYC, 2 of 64 cores"
std::string environment_line(const BuildInfo& build);

/// Cores that this process may keep busy: its affinity, less where a cgroup quota allows less. At least 1.
int usable_cores();

/// True for a variable that results may carry: known to change how a run behaves, and not named like a secret.
bool may_record_variable(const std::string& name);

}  // namespace fp8lab
