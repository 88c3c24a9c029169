#pragma once

#include <span>
#include <string>
#include <string_view>

#include "behavior/behaviors.h"

namespace fp8lab {

/// One upstream fix: the decision that it changed, and how to revert it.
struct Fix {
  std::string_view name;
  std::span<const std::string_view> upstream;  ///< "TransformerEngine#1935"
  std::string_view symptom;                    ///< what a user observes without the fix, in one line
  std::string_view decision;                   ///< what the fix decides, in one line
  void (*revert)(Behaviors&);
};

/// The table of fixes. To add one, add a row here and a decision in behavior/behaviors.h.
std::span<const Fix> fixes();

/// The fix called `name`. Throws Error listing the known names if there is none.
const Fix& fix(std::string_view name);

/// The fixed behaviour with the named fixes reverted.
Behaviors behaviors_without(std::span<const std::string_view> names);

}  // namespace fp8lab
