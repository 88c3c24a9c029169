#pragma once

#include <string>

// cuDNN, opened when it is first needed, so that a program built with it also runs if it is missing.
namespace fp8lab::cuda {

/// Empty if libcudnn is loaded, else why it is not. cuDNN's functions may be called only if this is empty.
const std::string& load_cudnn();

}  // namespace fp8lab::cuda
