#pragma once

#include <string>

namespace fp8lab::cuda {

/// One line for Device::notes() if the GPU lowers its clocks now, with the causes and the clock of its multiprocessors;
/// empty if it does not, or if NVML, which reports it, is not there. A GPU that is merely idle is not held back.
std::string throttling_note(int ordinal);

}  // namespace fp8lab::cuda
