#pragma once

#include <string>

namespace fp8lab {

/// Makes the virtual environment of a release, "transformer_engine==2.16.1", below `folder` with `python3 -m venv`, and
/// installs the release in it with pip. Returns a sentence naming what was made. Throws Error if `release` is not of
/// that form or names no library, if the environment exists, and if a step fails, with what to do by hand; a failed
/// environment is removed.
std::string install_release(const std::string& release, const std::string& folder);

}  // namespace fp8lab
