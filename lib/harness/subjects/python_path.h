#pragma once

#include <string>

namespace fp8lab {

/// Environment variable PYTHONPATH without its empty components, or "". Python takes an empty component, as in
/// "/opt/lib:", for the working directory, whose files would then replace modules of the same name.
std::string python_path();

/// The folder of the package fp8lab_subjects: variable FP8LAB_WORKER, else `built_in`.
std::string worker_folder(const std::string& built_in);

/// The same as an absolute path. Throws Error, which begins with `who`, if there is no `needed` below it.
std::string worker_folder_with(const std::string& needed, const std::string& built_in, const std::string& who);

}  // namespace fp8lab
