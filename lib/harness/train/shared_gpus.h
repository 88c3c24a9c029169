#pragma once

#include <string>
#include <vector>

namespace fp8lab {

class Device;
class ProcessGroup;

/// Collective over `world`. One line if several of its ranks train on one GPU, else none.
std::vector<std::string> shared_gpus(Device& device, ProcessGroup& world);

}  // namespace fp8lab
