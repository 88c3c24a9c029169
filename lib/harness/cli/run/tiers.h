#pragma once

#include <string>
#include <vector>

#include "harness/cli/program.h"

// Tables of what a CI system runs: a tier each, with a name.
namespace fp8lab {

struct Tier {
  std::string name, title;
  std::vector<std::string> scenarios;  ///< files and folders
  std::vector<std::string> devices;    ///< empty: all
  std::string filter;                  ///< as --filter; "": none
  int sample = 0;                      ///< as --sample
  bool controls = false;               ///< as --controls
  double limit_s = 0;                  ///< a run that takes longer than this is warned of
};

/// The tiers of a file, in its order. Throws Error, which names file and key, for the first mistake.
std::vector<Tier> read_tiers(const std::string& file);

/// A line for each tier: its name, its title and its limit.
std::string tier_lines(const std::vector<Tier>& tiers);

/// The tier `request.tier` of the file `request.tiers`. Sets scenarios, devices, filter and sample of the request to
/// the tier's; the request's own devices choose among the tier's. Throws Error if there is no such tier or device.
Tier apply_tier(RunRequest& request);

}  // namespace fp8lab
