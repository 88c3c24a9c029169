#include "harness/run/idle_processes.h"

#include <utility>

namespace fp8lab {

std::unique_ptr<ArmProcess> IdleProcesses::take(const std::string& device) {
  std::vector<std::unique_ptr<ArmProcess>>& idle = by_device_[device];
  while (!idle.empty()) {
    std::unique_ptr<ArmProcess> process = std::move(idle.back());
    idle.pop_back();
    if (process->ready()) return process;
  }
  return nullptr;
}

void IdleProcesses::put(const std::string& device, std::unique_ptr<ArmProcess> process) {
  by_device_[device].push_back(std::move(process));
}

std::size_t IdleProcesses::count(const std::string& device) const {
  const auto found = by_device_.find(device);
  return found == by_device_.end() ? 0 : found->second.size();
}

bool IdleProcesses::drop(const std::string& device) {
  if (count(device) == 0) return false;
  by_device_[device].pop_back();
  return true;
}

}  // namespace fp8lab
