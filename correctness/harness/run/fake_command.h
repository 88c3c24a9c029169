#pragma once

#include "harness/run/arm_process.h"
#include "support/paths.h"

namespace fp8lab::sample {

/// The program whose arms are fake_arm().
inline ArmCommand fake_command() { return {paths::kFakeProgram, {"__arm"}}; }

}  // namespace fp8lab::sample
