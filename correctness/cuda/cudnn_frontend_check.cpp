#include <fmt/core.h>

#include <cstddef>
#include <string>

#include "backend/cuda/attention/cudnn_library.h"

// Attention through cuDNN, linked with one release of cuDNN's frontend. It needs no GPU: linking shows that every
// function which the frontend calls is forwarded, and running shows that a forwarded function reaches the library.

extern "C" std::size_t cudnnGetVersion();

int main() {
  const std::string& reason = fp8lab::cuda::load_cudnn();
  const std::size_t version = cudnnGetVersion();
  fmt::print("cuDNN {} {}\n", version, reason);
  return reason.empty() == (version >= 90000) ? 0 : 1;
}
