#pragma once

#include <string>

// cuDNN as a library that is looked for when it is first needed, so that a program built with it also runs without.
namespace fp8lab::cuda {

/// Empty once libcudnn is loaded, else why it is not. cuDNN's functions may be called only after it was empty.
const std::string& load_cudnn();

}  // namespace fp8lab::cuda
