#pragma once

#include <string>

#include "core/check.h"

namespace fp8lab::support {

/// The message of the Error that `action` throws; empty if it throws none.
template <class Action>
std::string error_of(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace fp8lab::support
