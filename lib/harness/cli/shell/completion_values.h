#pragma once

#include "harness/cli/program.h"
#include "harness/cli/shell/completion.h"

namespace fp8lab {

/// The values of the options and arguments of every command, read from the program's tables when they are wanted.
ValueTable completion_values(const Program& program);

}  // namespace fp8lab
