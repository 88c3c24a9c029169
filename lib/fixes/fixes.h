#pragma once

#include <span>
#include <string>
#include <string_view>

#include "behavior/behaviors.h"

namespace fp8lab {

/// One fix of upstream's: the decision that it changed, and how to have the old one back.
struct Fix {
  std::string_view name;
  std::span<const std::string_view> upstream;  ///< "TransformerEngine#1935"
  std::string_view symptom;                    ///< what a user saw, in one line
  std::string_view decision;                   ///< what is switched, in one line
  void (*revert)(Behaviors&);
};

/// The table of fixes; adding one is one row here and one decision in behavior/behaviors.h.
std::span<const Fix> fixes();

/// Throws Error listing the known ones.
const Fix& fix(std::string_view name);

/// Fixed behaviour with the named fixes reverted.
Behaviors behaviors_without(std::span<const std::string_view> names);

}  // namespace fp8lab
