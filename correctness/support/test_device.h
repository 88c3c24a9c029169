#pragma once

#include <cstdlib>
#include <memory>
#include <string_view>

#include "backend/device.h"

namespace fp8lab::support {

/// The device that a suite runs on: `cpu`, or the device that its CTest entry names (fp8lab_test(GPU) in
/// Modules.cmake), so that one suite tests every backend.
inline std::string_view test_device() {
  const char* const name = std::getenv("FP8LAB_TEST_DEVICE");
  return name ? name : "cpu";
}

/// A device whose fresh memory holds NaN, so that elements that a kernel did not write are noticed.
inline std::unique_ptr<Device> open_poisoned_device(std::string_view arch = "hopper") {
  return open_device(test_device(), {.arch = arch, .memory = {.capacity_bytes = 0, .poison = true}});
}

}  // namespace fp8lab::support
