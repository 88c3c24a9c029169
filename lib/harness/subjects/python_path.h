#pragma once

#include <string>

namespace fp8lab {

/// Environment variable PYTHONPATH without its empty components, or "". Python takes an empty component, as in
/// "/opt/lib:", for the working directory, whose files would then replace modules of the same name.
std::string python_path();

}  // namespace fp8lab
