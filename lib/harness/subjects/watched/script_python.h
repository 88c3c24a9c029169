#pragma once

#include <string>

// Which Python runs a training program of the user's, by a value of `versions` of subject script.
namespace fp8lab {

struct ScriptPython {
  std::string python;  ///< a path, or a program of PATH
  std::string folder;  ///< an absolute path that comes first on PYTHONPATH; empty: none
};

/// "torch==2.14.0": the environment of that release, below `environments`. A folder with bin/python: this environment.
/// Another folder: a checkout, for $FP8LAB_SUBJECT_PYTHON or python3. Empty: that Python. The files need not exist.
ScriptPython script_python(const std::string& version, const std::string& environments);

/// Why the release or the folder cannot be used, and the remedy; or "".
std::string why_no_script_python(const std::string& version, const std::string& environments);

}  // namespace fp8lab
