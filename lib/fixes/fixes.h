#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "behavior/behaviors.h"

namespace fp8lab {

/// Upstream's fix: its pull request and releases.
struct Upstream {
  /// Reports and pull requests, one or more: "TransformerEngine#1935". The rest of the array is empty.
  std::array<std::string_view, 3> references;
  std::string_view commit;   ///< the commit on the main branch, abbreviated; empty: none yet, or not known
  std::string_view release;  ///< the first release that contains it: "2.15"; empty: none yet
};

/// One upstream fix: the decision that it changed, and how to revert it.
struct Fix {
  std::string_view name;
  Upstream upstream;
  std::string_view symptom;   ///< what a user observes without the fix, in one line
  std::string_view decision;  ///< what the fix decides, in one line
  void (*revert)(Behaviors&);
  /// True if no release was ever without the fix, because it came with the feature that needs it.
  bool counterfactual = false;
};

/// The table of fixes. lib/extending.md lists what else a new one needs.
std::span<const Fix> fixes();

/// The fix called `name`. Throws Error listing the known names if there is none.
const Fix& fix(std::string_view name);

/// The fixed behaviour with the named fixes reverted.
Behaviors behaviors_without(std::span<const std::string_view> names);

}  // namespace fp8lab
