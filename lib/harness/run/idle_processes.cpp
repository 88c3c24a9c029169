#include "harness/run/idle_processes.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace fp8lab {

std::unique_ptr<ArmProcess> IdleProcesses::take(const std::string& device, int first_gpu) {
  std::vector<Idle>& idle = by_device_[device];
  for (;;) {
    const auto last = std::ranges::find(idle.rbegin(), idle.rend(), first_gpu, &Idle::first_gpu);
    if (last == idle.rend()) return nullptr;
    std::unique_ptr<ArmProcess> process = std::move(last->process);
    idle.erase(std::next(last).base());
    if (process->ready()) return process;
  }
}

void IdleProcesses::put(const std::string& device, int first_gpu, std::unique_ptr<ArmProcess> process) {
  by_device_[device].push_back({first_gpu, std::move(process)});
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
