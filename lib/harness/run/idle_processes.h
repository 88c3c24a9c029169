#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "harness/run/arm_process.h"

namespace fp8lab {

/// Arm processes that wait for another arm, by the device that they have open and the GPU that is their first.
class IdleProcesses {
 public:
  /// Removes and returns a process that is ready for an arm, or null.
  std::unique_ptr<ArmProcess> take(const std::string& device, int first_gpu);
  void put(const std::string& device, int first_gpu, std::unique_ptr<ArmProcess> process);
  std::size_t count(const std::string& device) const;
  /// Ends one process; false if there is none.
  bool drop(const std::string& device);
  void clear() { by_device_.clear(); }

 private:
  struct Idle {
    int first_gpu;
    std::unique_ptr<ArmProcess> process;
  };
  std::map<std::string, std::vector<Idle>> by_device_;
};

}  // namespace fp8lab
